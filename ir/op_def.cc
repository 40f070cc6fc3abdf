#include "ir/op_def.h"

#include <algorithm>
#include <map>

#include "ir/contains.h"
#include "ir/diagnostic.h"
#include "ir/ops/infer_util.h"
#include "ir/row_major.h"

namespace shardc {
namespace {

using Table = std::map<std::string_view, OpDef, std::less<>>;

Table& MutableTable() {
  static Table table;
  return table;
}

const Table& RegisteredOps() {
  OpRegistry registry;
  RegisterStateOps(registry);
  RegisterElementwiseOps(registry);
  RegisterActivationOps(registry);
  RegisterShapeOps(registry);
  RegisterReduceOps(registry);
  RegisterMatmulOps(registry);
  RegisterIndexOps(registry);
  RegisterNormOps(registry);
  RegisterAttentionOps(registry);
  RegisterRotaryOps(registry);
  RegisterLossOps(registry);
  RegisterOptimizerOps(registry);
  RegisterDropoutOps(registry);
  RegisterRandomOps(registry);
  RegisterReshardOps(registry);
  RegisterFusedOps(registry);
  return MutableTable();
}

const Table& Ops() {
  static const Table& table = RegisteredOps();
  return table;
}

}  // namespace

void OpRegistry::Add(OpDef def) {
  std::string_view name = def.name;
  if (def.infer) {
    // A product of tensors that are not too large can be.
    def.infer = [name, infer = std::move(def.infer)](const InferArgs& args) {
      std::vector<TensorType> results = infer(args);
      for (const TensorType& r : results) CheckShape(name, r.dtype, r.shape);
      return results;
    };
  }
  bool added = MutableTable().emplace(name, std::move(def)).second;
  SHARDC_CHECK(added, "op ", name, " registered twice");
}

const OpDef* FindOpDef(std::string_view name) {
  auto it = Ops().find(name);
  return it == Ops().end() ? nullptr : &it->second;
}

const OpDef& GetOpDef(std::string_view name) {
  if (const OpDef* def = FindOpDef(name)) return *def;
  std::vector<std::string_view> names;
  for (const auto& [n, def] : Ops()) names.push_back(n);
  throw Diagnostic("E7002", ExitCode::kBadModel, "", StrCat("there is no op '", name, "'"),
                   DidYouMean(name, names));
}

std::vector<const OpDef*> AllOpDefs() {
  std::vector<const OpDef*> defs;
  for (const auto& [name, def] : Ops()) defs.push_back(&def);
  return defs;
}

static_assert(
    std::is_same_v<std::variant_alternative_t<static_cast<size_t>(AttrKind::kTensor), Attribute>,
                   TensorPtr>);

bool IsOfKind(const Attribute& a, AttrKind kind) {
  const TensorPtr* tensor = std::get_if<TensorPtr>(&a);
  return a.index() == static_cast<size_t>(kind) && (!tensor || *tensor);
}

std::vector<TensorType> InferResults(const OpDef& def, const std::vector<Value*>& operands,
                                     const Attributes& attrs) {
  std::vector<const TensorType*> types;
  types.reserve(operands.size());
  for (const Value* v : operands) types.push_back(&v->type);
  return def.infer({types, attrs});
}

bool IsCheap(const OpDef& def) {
  return (def.cheap || def.elementwise) && !def.communicates && !def.side_effect;
}

const Value* AgainResult(const Op& op) {
  return !op.def->again.empty() && op.attrs.Has(op.def->again) ? op.results.back() : nullptr;
}

bool KeepsZeroPadding(const Op& op) { return op.def->keeps_zero_padding && !AgainResult(op); }

bool IsView(const Op& op, const Mesh& mesh) {
  return op.def->view && LocalBytes(op.in(0), mesh) == LocalBytes(op.out(), mesh);
}

bool IsRandom(const Op& op) { return op.def->random || Drops(op); }

bool Drops(const Op& op) { return op.def->undropped && op.attrs.Has("ratio"); }

bool Constrains(const Op& op, int axis, const Mesh& mesh) {
  if (!op.def->constrains) return false;
  return Contains(op.attrs.StringList("axes"), mesh.axes()[axis].name);
}

Strings WhyOf(const Op& op) { return op.attrs.StringList("why", {}); }

bool MayRunInPlace(const OpDef& def, int operand, int result) {
  return def.in_place ? def.in_place(operand, result) : def.elementwise;
}

int64_t Flops(const Op& op) {
  if (op.def->flops) return op.def->flops(op);
  int64_t n = 0;
  for (const Value* r : op.results) n += r->type.num_elements();
  return n;
}

int64_t BytesMoved(const Op& op) {
  int64_t n = 0;
  for (const Value* v : op.operands) n += v->type.bytes();
  for (const Value* v : op.results) n += v->type.bytes();
  if (op.def->picks) {
    const TensorType& from = op.in(0);
    n -= from.bytes();
    n += std::min(from.num_elements(), op.out().num_elements()) * DTypeSize(from.dtype);
  }
  return n;
}

namespace {

// By the types of the op as they are.
int64_t WidenedBytes(const Op& op) {
  const CpuHalves halves = op.def->cpu_halves;
  if (halves == CpuHalves::kAsTheyAre) return 0;
  int64_t bytes = 0;
  bool as_they_are = halves != CpuHalves::kWidened;
  auto add = [&](const Value& v, bool takes_bf16) {
    if (!IsHalf(v.type.dtype)) return;
    constexpr int64_t kAligned = 64;
    bytes += (v.type.num_elements() * DTypeSize(DType::kF32) + kAligned - 1) / kAligned * kAligned;
    as_they_are &= v.type.dtype == DType::kBF16 && takes_bf16;
  };
  for (size_t i = 0; i < op.operands.size(); ++i) {
    const int operand = static_cast<int>(i);
    add(*op.operands[i],
        (halves == CpuHalves::kBf16 && !Contains(op.def->full_operands, operand)) ||
            Contains(op.def->narrow_operands, operand));
  }
  // Where the policy is to widen what is narrow, kernels do.
  const bool sums = op.def->precision == Precision::kWiden;
  for (const Value* v : op.results) {
    const bool chosen = v->index == op.def->typed_result || v == AgainResult(op);
    add(*v, !sums && (halves == CpuHalves::kBf16 || chosen));
  }
  return as_they_are ? 0 : bytes;
}

}  // namespace

LocalCost CostOnRank(const Op& op, const Mesh& mesh) {
  // An op of its own whose types are the local ones, so that every rule for costs serves.
  std::vector<Value> values;
  values.reserve(op.operands.size() + op.results.size());
  auto local = [&](const Value* v) {
    Value& copy = values.emplace_back();
    copy.type = TensorType(v->type.dtype, LocalShape(v->type, mesh));
    copy.index = v->index;
    return &copy;
  };
  Op alone;
  alone.def = op.def;
  alone.attrs = op.attrs;
  for (const Value* v : op.operands) alone.operands.push_back(local(v));
  for (const Value* v : op.results) alone.results.push_back(local(v));
  return {Flops(alone), BytesMoved(alone), op.def->work_bytes ? op.def->work_bytes(alone) : 0,
          WidenedBytes(alone)};
}

void InferError(std::string_view op, const std::string& what) {
  throw Diagnostic("E1101", ExitCode::kBadModel, StrCat("op '", op, "'"), what);
}

Shape BroadcastShapes(std::string_view op, const Shape& a, const Shape& b) {
  if (std::optional<Shape> joint = Broadcast(a, b)) return *joint;
  InferError(op, StrCat("shapes ", ShapeToString(a), " and ", ShapeToString(b),
                        " do not broadcast together"));
}

int NormalizeAxis(std::string_view op, int64_t axis, int rank) {
  if (axis < -rank || axis >= rank) {
    InferError(op, StrCat("axis ", axis, " is out of range for a tensor of rank ", rank));
  }
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

int AxisOf(const Attributes& attrs, int rank) {
  const int64_t axis = attrs.Int("axis");
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

}  // namespace shardc
