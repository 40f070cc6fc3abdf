// packed_attention and its gradient: attention on q, k and v where the projection before it left
// them, beside each other in one tensor, so that nothing is copied.
#include <algorithm>
#include <array>

#include "ir/attention_part.h"
#include "ir/op_def.h"
#include "ir/ops/draws.h"
#include "ir/ops/infer_util.h"
#include "ir/ops/reference_floats.h"

namespace shardc {
namespace {

constexpr int kParts = 3;  // q, k, v
constexpr int kHeads = 2;  // the dim of a tensor [b, s, heads, d]

// What splits the tensor that holds the values as heads, in this order, along its last dim; or
// null.
Op* SplitInto(std::span<Value* const> heads) {
  Op* split = nullptr;
  for (size_t i = 0; i < kParts; ++i) {
    const Op* reshape = heads[i]->producer;
    if (!reshape || reshape->name() != "reshape") return nullptr;
    const Value* part = reshape->operands[0];
    if (!part->producer || part->producer->name() != "split") return nullptr;
    if (part->index != static_cast<int>(i) || (split && part->producer != split)) return nullptr;
    split = part->producer;
  }
  const Op& s = *split;
  const int rank = s.in(0).rank();
  if (s.results.size() != kParts || rank != 3) return nullptr;
  return NormalizeAxis("split", s.attrs.Int("axis"), rank) == rank - 1 ? split : nullptr;
}

// The operands q, k, v of an attention or its gradient, or nothing.
std::span<Value* const> PartsOf(const Op& op) {
  std::span<Value* const> all = op.operands;
  const size_t masked = all.size() - Drops(op);
  if (op.name() == "attention" && masked == 3) return all.subspan(0, kParts);
  if (op.name() == "attention_grad" && masked == 6) return all.subspan(1, kParts);
  return {};
}

// What concatenates dq, dk and dv as the split had q, k and v; or null.
Op* ConcatOf(const Graph& graph, const Op& grad) {
  Op* concat = nullptr;
  for (size_t i = 0; i < kParts; ++i) {
    const Value* d = grad.results[i];
    const Op* reshape = graph.OnlyUser(d);
    if (!reshape || reshape->name() != "reshape") return nullptr;
    const Value* part = reshape->result();
    Op* user = graph.OnlyUser(part);
    if (!user || user->name() != "concat" || user->operands.size() != kParts) return nullptr;
    if (user->operands[i] != part || (concat && user != concat)) return nullptr;
    concat = user;
  }
  const int rank = concat->out().rank();
  const bool last = NormalizeAxis("concat", concat->attrs.Int("axis"), rank) == rank - 1;
  return last ? concat : nullptr;
}

// [b, s, 3 h, d] of which [b, s, h, d] is each part.
TensorType Together(const TensorType& part) {
  TensorType all = part;
  all.shape[kHeads] *= kParts;
  DimSharding& dim = all.sharding.dims[kHeads];
  if (dim.cut()) dim.segments.assign(kParts, part.shape[kHeads]);
  return all;
}

// Whether q, k and v may be left together for this op.
bool Fits(const Graph& graph, const Op& op, const Op& split) {
  std::span<Value* const> parts = PartsOf(op);
  if (parts.empty() || SplitInto(parts) != &split || !op.RunsWith(split)) return false;
  if (op.attrs.String("layout", "bhsd") != "bshd") return false;
  const TensorType& part = parts[0]->type;
  // The heads of a row lie in one row of what was split.
  const Shape& whole = split.in(0).shape;
  if (part.shape[0] != whole[0] || part.shape[1] != whole[1]) return false;
  // Of a part of the queries the mask would be another.
  const int64_t rows = part.shape[1];
  if (op.attrs.Bool("causal") && CausalDiagonal(op.attrs, rows, rows) != 0) return false;
  if (parts[1]->type != part || parts[2]->type != part || part.sharding.partial()) return false;
  if (!part.sharding.dims[kHeads].segments.empty() || part.sharding.dims[3].cut()) return false;
  // A view: the parts begin where the heads of each do.
  if (LocalBytes(Together(part), graph.mesh) != LocalBytes(split.in(0), graph.mesh)) return false;
  if (LocalBytes(part, graph.mesh) * kParts != LocalBytes(split.in(0), graph.mesh)) return false;
  if (op.name() == "attention") return true;
  const Op* concat = ConcatOf(graph, op);
  return concat && concat->RunsWith(op) && concat->out() == split.in(0);
}

// Only where nobody else needs q, k or v apart, or both they and what they are part of would be
// kept.
Op* PackedIn(const Graph& graph, const Op& op) {
  std::span<Value* const> parts = PartsOf(op);
  if (parts.empty()) return nullptr;
  Op* split = SplitInto(parts);
  if (!split) return nullptr;
  for (const Value* part : split->results) {
    if (graph.IsOutput(part)) return nullptr;
    for (const Op* reshape : part->users) {
      if (reshape->name() != "reshape" || graph.IsOutput(reshape->result())) return nullptr;
      for (const Op* user : reshape->result()->users) {
        if (!Fits(graph, *user, *split)) return nullptr;
      }
    }
  }
  return split;
}

Value* View(Graph& graph, Value* v, const TensorType& type, const Op& like, Op* before) {
  return graph.AddOp(GetOpDef("reshape"), {v}, {type}, {{"shape", Ints(type.shape)}}, before, like)
      ->result();
}

Attributes AttrsOf(const Op& op) {
  Attributes attrs = op.attrs;
  attrs.Erase("layout");
  return attrs;
}

std::vector<Value*> WithStep(std::vector<Value*> operands, const Op& op) {
  if (Drops(op)) operands.push_back(op.operands.back());
  return operands;
}

bool FuseForward(Graph& graph, Op& op) {
  const Op* split = PackedIn(graph, op);
  if (!split) return false;
  Value* all = View(graph, split->operands[0], Together(op.in(0)), op, &op);
  Op* packed = graph.AddOp(GetOpDef("packed_attention"), WithStep({all}, op),
                           {op.out(0), op.out(1)}, AttrsOf(op), &op, op);
  for (int i = 0; i < 2; ++i) {
    packed->result(i)->name = op.result(i)->name;
    graph.ReplaceAllUses(op.result(i), packed->result(i));
  }
  return true;
}

bool FuseGrad(Graph& graph, Op& op) {
  const Op* split = PackedIn(graph, op);
  if (!split) return false;
  Op* concat = ConcatOf(graph, op);
  const TensorType type = Together(op.in(1));
  Value* all = View(graph, split->operands[0], type, op, &op);
  Op* packed = graph.AddOp(GetOpDef("packed_attention_grad"),
                           WithStep({op.operands[0], all, op.operands[4], op.operands[5]}, op),
                           {type}, AttrsOf(op), &op, op);
  Value* whole = View(graph, packed->result(), concat->out(), *concat, concat);
  whole->name = concat->result()->name;
  graph.ReplaceAllUses(concat->result(), whole);
  return true;
}

// Of the probabilities, o of this shape.
Shape Drawn(const Shape& o) { return {o[0], o[kHeads], o[1], o[1]}; }

// Of x at the operand; the op has `operands` without the step.
Shape CheckPacked(std::string_view op, const InferArgs& args, size_t operand, size_t operands) {
  const TensorType& x = args[operand];
  RequireFloat(op, x, "the operand");
  if (x.rank() != 4 || x.shape[kHeads] % kParts != 0) {
    InferError(op, StrCat("needs q, k and v as [b, s, 3 h, d], not ", ShapeToString(x.shape)));
  }
  Shape part = x.shape;
  part[kHeads] /= kParts;
  const bool drops = args.attrs.Has("ratio");
  if (args.size() != operands + drops) {
    InferError(op, "has the step as its last operand where it has a ratio, and only there");
  }
  if (drops) CheckDraws(op, args, Drawn(part));
  if (args.attrs.Bool("causal")) {
    CheckPart(op, args.attrs, Drawn(part));
    if (CausalDiagonal(args.attrs, part[1], part[1]) != 0) {
      InferError(op, "its queries are its keys, and so the last of the whole");
    }
  }
  return part;
}

std::vector<TensorType> Infer(const InferArgs& args) {
  const Shape part = CheckPacked("packed_attention", args, 0, 1);
  return {TensorType(args[0].dtype, part),
          TensorType(StatisticType(args[0].dtype), {part[0], part[kHeads], part[1]})};
}

std::vector<TensorType> InferGrad(const InferArgs& args) {
  constexpr std::string_view op = "packed_attention_grad";
  const Shape part = CheckPacked(op, args, 1, 4);
  const DType dtype = args[1].dtype;
  RequireTensor(op, args[0], dtype, part, "the gradient of o");
  RequireTensor(op, args[2], dtype, part, "o");
  RequireTensor(op, args[3], StatisticType(dtype), {part[0], part[kHeads], part[1]}, "lse");
  return {TensorType(dtype, args[1].shape)};
}

// Factors: b, h heads; queries are keys too, so that s stays whole.
ShardingRule Rule(const Op& op, bool grad) {
  const Shape& o = grad ? op.in(0).shape : op.out(0).shape;
  ShardingRule rule;
  using Dims = std::vector<DimFactors>;
  const int b = rule.AddFactor(o[0]), s = rule.AddFactor(o[1], FactorKind::kReplicated),
            h = rule.AddFactor(o[kHeads]), d = rule.AddFactor(o[3], FactorKind::kReplicated);
  const Dims out = {{{b}, {}}, {{s}, {}}, {{h}, {}}, {{d}, {}}};
  const Dims lse = {{{b}, {}}, {{h}, {}}, {{s}, {}}};
  Dims all = out;
  all[kHeads].segments.assign(kParts, o[kHeads]);
  if (grad) {
    rule.operands = {out, all, out, lse};
    rule.results = {all};
  } else {
    rule.operands = {all};
    rule.results = {out, lse};
  }
  if (Drops(op)) rule.operands.emplace_back();  // the step
  return rule;
}

// The parts of x and of dx as tensors of their own, in double.
struct Apart {
  std::array<std::vector<double>, kParts> data;
  Shape shape;

  explicit Apart(const TensorView& x) : shape(x.shape) {
    shape[kHeads] /= kParts;
    const std::vector<double> all = ToDoubles(x);
    ForEachRow([&](size_t part, int64_t row, int64_t at, int64_t width) {
      data[part].insert(data[part].end(), all.begin() + at, all.begin() + at + width);
      SHARDC_CHECK(static_cast<int64_t>(data[part].size()) == (row + 1) * width);
    });
  }
  void Join(const TensorView& x) const {
    std::vector<double> all(static_cast<size_t>(x.num_elements()));
    ForEachRow([&](size_t part, int64_t row, int64_t at, int64_t width) {
      std::copy_n(data[part].begin() + row * width, width, all.begin() + at);
    });
    FromDoubles(all, x);
  }
  // Whole, as far as attention can see: it only asks o where it is on the mesh.
  std::vector<TensorView> Views() {
    std::vector<TensorView> views;
    for (auto& part : data) {
      views.push_back({reinterpret_cast<std::byte*>(part.data()), DType::kF64, shape});
    }
    return views;
  }

 private:
  // fn(part, row, where it lies in x, elements)
  template <typename Fn>
  void ForEachRow(Fn fn) const {
    const int64_t rows = shape[0] * shape[1], width = shape[kHeads] * shape[3];
    for (int64_t row = 0; row < rows; ++row) {
      for (size_t part = 0; part < kParts; ++part) {
        fn(part, row, (row * kParts + static_cast<int64_t>(part)) * width, width);
      }
    }
  }
};

Attributes Unpacked(const Attributes& attrs) {
  Attributes out = attrs;
  out.Set("layout", std::string("bshd"));
  return out;
}

void Reference(const KernelCall& call) {
  Apart apart(call.in[0]);
  const Attributes attrs = Unpacked(*call.attrs);
  std::vector<TensorView> in = apart.Views();
  in.insert(in.end(), call.in.begin() + 1, call.in.end());
  RunPart("attention", call, attrs, in, {call.out.begin(), call.out.end()});
}

void ReferenceGrad(const KernelCall& call) {
  Apart apart(call.in[1]), grads = apart;
  const Attributes attrs = Unpacked(*call.attrs);
  std::vector<TensorView> in = {call.in[0]};
  for (const TensorView& part : apart.Views()) in.push_back(part);
  in.insert(in.end(), call.in.begin() + 2, call.in.end());
  RunPart("attention_grad", call, attrs, in, grads.Views());
  grads.Join(call.out[0]);
}

// As attention: two products of [s, d] and [s, s] a head forward, five backward.
int64_t FlopsOf(const Op& op, const TensorType& o, int64_t products) {
  const int64_t flops = 2 * products * o.num_elements() * o.shape[1];
  return op.attrs.Bool("causal") ? flops / 2 : flops;
}

int64_t ScratchOfGrad(const InferArgs& args) {
  if (args.size() > 4) return 0;
  const TensorType* part = &args[0];
  const TensorType* apart[] = {part, part, part, part, part, &args[3]};
  return GetOpDef("attention_grad").scratch_bytes({apart, Unpacked(args.attrs)});
}

OpDef Def(std::string_view name, std::string_view fuses_at, int operands) {
  OpDef def;
  def.name = name;
  def.min_operands = operands;
  def.max_operands = operands + 1;
  def.attrs = {{"scale", AttrKind::kFloat, true}, {"causal", AttrKind::kBool}};
  AddDropAttrs(def, false);
  def.undropped = WithoutStep;
  def.resized = [grad = operands != 1](const Op& op, std::span<const TensorType>,
                                       const Shape& origin) {
    if (!Drops(op)) return op.attrs;
    const Shape& o = grad ? op.in(0).shape : op.out(0).shape;
    return AttributesOfDrawnPart(op, Drawn(o), {origin[0], origin[kHeads], origin[1], 0});
  };
  def.precision = Precision::kCompute;
  def.cpu_halves = CpuHalves::kBf16;
  def.no_gradient = kMadeByFuse;
  def.fuses_at = fuses_at;
  return def;
}

}  // namespace

void RegisterPackedAttentionOps(OpRegistry& registry) {
  OpDef forward = Def("packed_attention", "attention", 1);
  forward.fuse = FuseForward;
  forward.infer = Infer;
  forward.rule = [](const Op& op) { return Rule(op, false); };
  forward.flops = [](const Op& op) { return FlopsOf(op, op.out(0), 2); };
  forward.reference = Reference;
  registry.Add(std::move(forward));

  OpDef grad = Def("packed_attention_grad", "attention_grad", 4);
  grad.full_operands = {3};
  grad.fuse = FuseGrad;
  grad.infer = InferGrad;
  grad.rule = [](const Op& op) { return Rule(op, true); };
  grad.flops = [](const Op& op) { return FlopsOf(op, op.in(0), 5); };
  grad.scratch_bytes = ScratchOfGrad;
  grad.reference = ReferenceGrad;
  grad.keeps_zero_padding = true;
  registry.Add(std::move(grad));
}

}  // namespace shardc
