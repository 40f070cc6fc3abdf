// cross_entropy_with_grad: the loss of each row of logits and its gradient, while the row is near.
#include <algorithm>
#include <optional>
#include <unordered_set>

#include "ir/op_def.h"
#include "ir/ops/infer_util.h"
#include "ir/ops/reference_floats.h"

namespace shardc {
namespace {

// Products of halves read rows that begin at multiples of 16 bytes several times as fast.
constexpr int64_t kAlignedHalves = 8;
// Ops that are moved before the loss so that the gradient can be made with it.
constexpr size_t kMostMoved = 16;

// Whether they are one value, or made alike, as what is computed again.
bool Same(const Value* a, const Value* b, int depth = 8) {
  if (a == b) return true;
  const Op *x = a->producer, *y = b->producer;
  if (!x || !y || depth == 0 || x->def != y->def || a->index != b->index) return false;
  if (x->def->is_state || x->def->communicates || x->def->side_effect || a->type != b->type ||
      x->attrs != y->attrs || x->operands.size() != y->operands.size()) {
    return false;
  }
  for (size_t i = 0; i < x->operands.size(); ++i) {
    if (!Same(x->operands[i], y->operands[i], depth - 1)) return false;
  }
  return true;
}

// The cross_entropy whose gradient it is, if nothing else needs its lse; or null.
Op* LossOf(const Graph& graph, const Op& grad) {
  const Value* lse = grad.operands[3];
  Op* loss = lse->producer;
  if (!loss || loss->name() != "cross_entropy" || lse->index != 1) return nullptr;
  if (!graph.OnlyUser(lse)) return nullptr;
  if (loss->operands[0] != grad.operands[1] || !Same(loss->operands[1], grad.operands[2])) {
    return nullptr;
  }
  if (!loss->RunsWith(grad)) return nullptr;
  // The gradient's attributes are the loss' and what type it has.
  Attributes attrs = loss->attrs;
  if (const Attribute* out = grad.attrs.Find("out")) attrs.Set("out", *out);
  return attrs == grad.attrs ? loss : nullptr;
}

// The ops after `place` that the value needs, in order, if they may stand before it.
std::optional<std::vector<Op*>> NeededBefore(const Graph& graph, const Op* place, const Value* v,
                                             const Op* end) {
  std::unordered_set<const Op*> needed;
  std::vector<const Op*> open;
  auto need = [&](const Value* value) {
    if (value->producer && needed.insert(value->producer).second) open.push_back(value->producer);
  };
  std::unordered_set<const Op*> between;
  for (const Op* o = place; o && o != end; o = graph.Next(o)) between.insert(o);
  need(v);
  std::vector<Op*> moved;
  while (!open.empty()) {
    const Op* o = open.back();
    open.pop_back();
    if (!between.contains(o)) continue;
    if (o == place || o->def->side_effect || moved.size() == kMostMoved) return std::nullopt;
    moved.push_back(const_cast<Op*>(o));
    for (const Value* operand : o->operands) need(operand);
  }
  std::vector<Op*> in_order;
  for (Op* o = graph.Next(place); o && o != end; o = graph.Next(o)) {
    if (std::find(moved.begin(), moved.end(), o) != moved.end()) in_order.push_back(o);
  }
  return in_order;
}

// Whether the op may be told that the rows of operand 0 are longer than what it multiplies.
bool TakesLongRows(const Op& op, const Value* rows) {
  if (std::count(op.operands.begin(), op.operands.end(), rows) != 1 || op.operands[0] != rows) {
    return false;
  }
  return (op.name() == "matmul" && op.in(1).rank() == 2) ||
         (op.name() == "matmul_tn" && op.attrs.Int("batch", 0) == 0);
}

// How long the rows of logits and gradient are best: both the same, where nothing but products
// makes and reads them.
int64_t RowLength(const Graph& graph, const Value* logits, const Value* gradient) {
  const int64_t classes = gradient->type.shape.back();
  if (!IsHalf(gradient->type.dtype) || classes % kAlignedHalves == 0) return classes;
  for (const Value* v : {logits, gradient}) {
    if (graph.IsOutput(v) || v->type.sharding.dims.back().cut()) return classes;
  }
  const Op* product = logits->producer;
  if (!product || (product->name() != "matmul" && product->name() != "matmul_nt")) return classes;
  if (product->operands.size() > 2 || product->in(1).rank() != 2 || logits->users.size() != 2) {
    return classes;
  }
  const bool products = std::all_of(gradient->users.begin(), gradient->users.end(),
                                    [&](const Op* user) { return TakesLongRows(*user, gradient); });
  if (!products) return classes;
  return (classes + kAlignedHalves - 1) / kAlignedHalves * kAlignedHalves;
}

bool Fuse(Graph& graph, Op& grad) {
  Op* loss = LossOf(graph, grad);
  if (!loss) return false;
  // The gradient is linear in dloss and passes sums of ranks on, the loss beside it does not.
  if (grad.in(0).sharding.partial()) return false;
  auto moved = NeededBefore(graph, loss, grad.operands[0], &grad);
  if (!moved) return false;
  for (Op* op : *moved) graph.MoveBefore(op, loss);
  Value *old = grad.result(), *logits = grad.operands[1];
  TensorType type = old->type;
  Attributes attrs = grad.attrs;
  const int64_t classes = type.shape.back(), length = RowLength(graph, logits, old);
  if (length != classes) {
    attrs.Set("classes", classes);
    type.shape.back() = logits->type.shape.back() = length;
    logits->producer->attrs.Set("length", length);
    for (Op* user : old->users) user->attrs.Set("cols", classes);
  }
  Op* fused = graph.AddOp(GetOpDef("cross_entropy_with_grad"),
                          {grad.operands[0], logits, loss->operands[1]},
                          {loss->out(0), std::move(type)}, std::move(attrs), loss, *loss);
  fused->result(0)->name = loss->result(0)->name;
  fused->result(1)->name = old->name;
  graph.ReplaceAllUses(loss->result(0), fused->result(0));
  graph.ReplaceAllUses(old, fused->result(1));
  return true;
}

// The attributes of cross_entropy alone.
Attributes LossAttributes(const Attributes& attrs) {
  Attributes out = attrs;
  out.Erase("out");
  return out;
}

std::vector<TensorType> Infer(const InferArgs& args) {
  constexpr std::string_view op = "cross_entropy_with_grad";
  const TensorType* parts[] = {args.operands[1], args.operands[2]};
  const Attributes attrs = LossAttributes(args.attrs);
  auto results = GetOpDef("cross_entropy").infer({parts, attrs});
  const DType wide = args[0].dtype;
  RequireShape(op, args[0], args[2].shape, "the gradient of the loss");
  RequireNarrowTensor(op, args[1], wide, args[1].shape, "the logits");
  results[0].dtype = wide;
  results[1] = TensorType(OutType(op, args.attrs, wide), args[1].shape);
  return results;
}

void Reference(const KernelCall& call) {
  const TensorView &logits = call.in[1], &labels = call.in[2];
  std::vector<double> lse(static_cast<size_t>(labels.num_elements())),
      grad(static_cast<size_t>(logits.num_elements()));
  const TensorView lse_view = ViewOf(lse, labels);
  // Read before the loss may take its place.
  std::vector<double> dloss = ToDoubles(call.in[0]);
  RunPart("cross_entropy", call, *call.attrs, {logits, labels}, {call.out[0], lse_view});
  RunPart("cross_entropy_grad", call, *call.attrs,
          {ViewOf(dloss, call.in[0]), logits, labels, lse_view}, {ViewOf(grad, logits)});
  FromDoubles(grad, call.out[1]);
}

}  // namespace

void RegisterFusedLossOps(OpRegistry& registry) {
  OpDef def;
  def.name = "cross_entropy_with_grad";
  def.min_operands = def.max_operands = 3;
  def.attrs = {{"ignore_index", AttrKind::kInt},
               {"label_smoothing", AttrKind::kFloat},
               {"origin", AttrKind::kInts},
               {"classes", AttrKind::kInt},
               {"out", AttrKind::kString}};
  def.fuses_at = "cross_entropy_grad";
  def.fuse = Fuse;
  def.typed_result = 1;
  def.cpu_halves = CpuHalves::kBf16Result;
  def.narrow_operands = {1};
  def.infer = Infer;
  def.index_limit = [](int operand, const InferArgs& args) {
    return operand == 2 ? args.attrs.Int("classes", args[1].shape.back()) : 0;
  };
  def.rule = [](const Op& op) { return EinsumRule(op, "..., ... v!, ... -> ..., ... v!"); };
  def.no_gradient = kMadeByFuse;
  def.flops = [](const Op& op) { return 9 * op.in(1).num_elements(); };
  def.reference = Reference;
  def.in_place = [](int operand, int result) { return operand == 1 && result == 1; };
  def.ignores_padding = true;  // but does not keep it zero: the loss of a row of zeros is not
  registry.Add(std::move(def));
}

}  // namespace shardc
