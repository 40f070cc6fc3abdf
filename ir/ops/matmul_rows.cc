// Products that compute chosen rows only. Formulas of the gradients are those of matmul, each again
// over the same rows.
#include <algorithm>
#include <string>

#include "ir/ops/infer_util.h"
#include "ir/ops/matmul.h"
#include "ir/ops/reference_floats.h"
#include "ir/ops/reference_util.h"

namespace shardc {
namespace {

constexpr std::string_view kNames[] = {"matmul_rows", "matmul_rows_nt", "matmul_rows_tn"};
enum Form : uint8_t { kNN, kNT, kTN };

Shape Leading(const Shape& shape) { return Shape(shape.begin(), shape.end() - 2); }

std::vector<TensorType> InferRows(Form form, const InferArgs& args) {
  const TensorType &a = args[0], &b = args[1], &rows = args[2];
  const std::string_view name = kNames[form];
  TensorType y;
  Shape all;
  if (form == kTN) {
    RequireFloat(name, a, "left operand");
    RequireDType(name, b, a.dtype, "the right operand");
    if (a.rank() < 2 || b.rank() < 2 || a.shape[a.rank() - 2] != b.shape[b.rank() - 2]) {
      InferError(name, StrCat("needs matrices of as many rows, not ", ShapeToString(a.shape),
                              " and ", ShapeToString(b.shape)));
    }
    Shape shape = all = BroadcastShapes(name, Leading(a.shape), Leading(b.shape));
    all.push_back(a.shape[a.rank() - 2]);
    shape.insert(shape.end(), {a.shape.back(), b.shape.back()});
    y = TensorType(OutType(name, args.attrs, a.dtype), std::move(shape));
  } else {
    const TensorType* product[] = {&a, &b};
    y = GetOpDef(form == kNT ? "matmul_nt" : "matmul").infer({product, args.attrs})[0];
    all = WithoutLast(y.shape);
  }
  RequireTensor(name, rows, DType::kBool, all, "what says which rows are chosen");
  if (const double density = args.attrs.Float("density", 1); !(density >= 0 && density <= 1)) {
    InferError(name, StrCat("density ", density, " is not within [0, 1]"));
  }
  if (args.size() > 3) {
    RequireTensor(name, args[3], y.dtype, y.shape, "what the product is added to");
  }
  return {std::move(y)};
}

ShardingRule RuleOf(Form form, const Op& op) {
  if (op.operands.size() > 3) {  // what is summed is whole before it is added
    return EinsumRule(op, "... c! m, ... c n, ... c, ... m n -> ... m n", {{0, 3}, {1, 3}});
  }
  if (form == kTN) return EinsumRule(op, "... c m, ... c n, ... c -> ... m n", {{0}, {1}});
  return EinsumRule(
      op, form == kNT ? "... m k, ... n k, ... m -> ... m n" : "... m k, ... k n, ... m -> ... m n",
      {{0}, {1}});
}

std::vector<Value*> Gradient(Form form, const GradientArgs& args) {
  Builder& builder = args.builder;
  Value *a = args.op.operands[0], *b = args.op.operands[1], *rows = args.op.operands[2],
        *sum = args.result_grads[0], *dy = builder.Cast(sum, a->type.dtype);
  Attributes attrs;
  if (args.op.attrs.Has("density")) attrs.Set("density", args.op.attrs.Float("density"));
  auto make = [&](int i, Form product, Value* left, Value* right) -> Value* {
    if (!args.wanted[i]) return nullptr;
    return builder.SumTo(builder.Make(kNames[product], {left, right, rows}, attrs),
                         args.op.in(i).shape);
  };
  std::vector<Value*> grads;
  switch (form) {
    case kNN:
      grads = {make(0, kNT, dy, b), make(1, kTN, a, dy), nullptr};
      break;
    case kNT:
      grads = {make(0, kNN, dy, b), make(1, kTN, dy, a), nullptr};
      break;
    case kTN:
      grads = {make(0, kNT, b, dy), make(1, kNN, a, dy), nullptr};
  }
  if (args.op.operands.size() > 3) grads.push_back(sum);
  return grads;
}

void Reference(Form form, const KernelCall& call) {
  const TensorView& rows = call.in[2];
  const auto* chosen = rows.as<const uint8_t>();
  if (form != kTN) {
    const TensorView& y = call.out[0];
    RunPart(form == kNT ? "matmul_nt" : "matmul", call, Attributes(), {call.in[0], call.in[1]},
            {y});
    const int64_t bytes = y.shape.back() * DTypeSize(y.dtype);
    for (int64_t i = 0; i < rows.num_elements(); ++i) {
      if (!chosen[i]) std::fill_n(y.data + i * bytes, bytes, std::byte{0});
    }
    return;
  }
  // The chosen rows of all leading dims, zeros for the others.
  std::vector<double> values[2];
  std::vector<TensorView> selected;
  for (int i : {0, 1}) {
    const TensorView& from = call.in[i];
    const std::vector<double> all = ToDoubles(from);
    const int64_t n = from.shape.back();
    const Shape strides = BroadcastStrides(WithoutLast(from.shape), rows.shape);
    values[i].assign(static_cast<size_t>(rows.num_elements() * n), 0.0);
    for (int64_t row = 0; row < rows.num_elements(); ++row) {
      if (!chosen[row]) continue;
      const int64_t at = reference::Offset(PlaceOf(row, rows.shape), strides);
      std::copy_n(all.begin() + at * n, n, values[i].begin() + row * n);
    }
    TensorView view = ViewOf(values[i], from);
    view.shape = rows.shape;
    view.shape.push_back(n);
    selected.push_back(std::move(view));
  }
  if (call.in.size() > 3) selected.push_back(call.in[3]);
  RunPart("matmul_tn", call, {{"batch", static_cast<int64_t>(rows.rank()) - 1}}, selected,
          {call.out[0]});
}

int64_t DenseFlops(Form form, const Op& op) {
  const Shape& a = op.in(0).shape;
  return 2 * op.out().num_elements() * (form == kTN ? a[a.size() - 2] : a.back());
}

// Chosen rows beside each other, of operands and result, so many at a time, and where they are; and
// of a sum in halves that takes several times, part of it (runtime/cpu/kernels/matmul_rows.cc).
int64_t WorkBytes(Form form, const Op& op) {
  constexpr int64_t kRows = 1024, kSumRows = 512;
  auto size = [](const TensorType& t) {
    return DTypeSize(t.dtype == DType::kF16 ? DType::kF32 : t.dtype);
  };
  const TensorType &a = op.in(0), &b = op.in(1), &y = op.out();
  const int64_t all = op.in(2).shape.back(), rows = std::min(all, kRows), k = a.shape.back();
  const int64_t places = 8 * op.in(2).num_elements();
  if (form != kTN) return rows * (k * size(a) + y.shape.back() * size(y)) + places;
  const int64_t n = b.shape.back(),
                sum = all > kRows && size(y) < 4 ? 4 * std::min(k, kSumRows) * n : 0;
  return rows * (k + n) * size(a) + sum + places;
}

OpDef RowsDef(Form form) {
  OpDef def;
  def.name = kNames[form];
  def.min_operands = def.max_operands = 3;
  def.attrs = {{"out", AttrKind::kString}, {"density", AttrKind::kFloat}};
  def.infer = [form](const InferArgs& args) { return InferRows(form, args); };
  def.rule = [form](const Op& op) { return RuleOf(form, op); };
  def.gradient = [form](const GradientArgs& args) { return Gradient(form, args); };
  if (form == kTN) {
    def.max_operands = 4;
    def.adds_to = 3;
    def.in_place = [](int operand, int) { return operand == 3; };
  } else {
    def.simplify = [form](Builder& b, const Op& op) {
      return AbsorbTranspose(b, op, kNames[form == kNN ? kNT : kNN]);
    };
  }
  def.flops = [form](const Op& op) {
    return static_cast<int64_t>(static_cast<double>(DenseFlops(form, op)) *
                                op.attrs.Float("density", 1)) +
           (op.operands.size() > 3 ? op.out().num_elements() : 0);
  };
  def.work_bytes = [form](const Op& op) { return WorkBytes(form, op); };
  def.reference = [form](const KernelCall& call) { Reference(form, call); };
  def.cpu_halves = CpuHalves::kBf16;
  def.precision = Precision::kCompute;
  def.typed_result = 0;
  // Padding of a contracted dim adds 0 * 0.
  def.keeps_zero_padding = true;
  return def;
}

}  // namespace

void AddMatmulRows(OpRegistry& registry) {
  for (Form form : {kNN, kNT, kTN}) registry.Add(RowsDef(form));
}

}  // namespace shardc
