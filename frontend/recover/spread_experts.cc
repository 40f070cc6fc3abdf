// Experts whose weights each token looks up, [tokens * k, in, out] of [experts, in, out], become
// products of all experts with all tokens, of which a token keeps its k. There is no copy of the
// weights for every token, each weight is read once, and experts are a dim that a spec can cut.
#include <algorithm>
#include <map>
#include <numeric>

#include "frontend/recover/patterns.h"
#include "ir/op_def.h"

namespace shardc::recover {
namespace {

Shape Tail(const Shape& shape, size_t from) { return Shape(shape.begin() + from, shape.end()); }
Shape Behind(Shape lead, const Shape& tail) {
  lead.insert(lead.end(), tail.begin(), tail.end());
  return lead;
}

// The rows [tokens * k, ...] of a graph as [experts, tokens, ...], with 1 for either where all rows
// of it are the same.
class Spreader {
 public:
  Spreader(Op* before, Graph& graph, int64_t tokens, int64_t k)
      : before_(before), graph_(graph), tokens_(tokens), k_(k) {}

  // Null where it is made by anything but lookups of experts, tokens and what goes row by row.
  Value* Spread(Value* v) {
    if (v->type.rank() < 1 || v->type.shape[0] != tokens_ * k_ || v->producer == nullptr) {
      return nullptr;
    }
    auto [at, added] = spread_.emplace(v, nullptr);
    if (!added) return at->second;
    Value* made = Make(v);
    // With one expert for each token what is not of all experts may stay as it is.
    if (k_ == 1 && (made == nullptr || made->type.shape[0] == 1)) made = AsToken(v);
    spread_[v] = made;
    return made;
  }

  Value* expert_ids() const { return ids_; }  // null: no weight was looked up
  int64_t experts() const { return experts_; }

 private:
  Value* Make(Value* v) {
    Op* op = v->producer;
    Builder b(graph_, before_, *op);
    if (IsLookup(op)) return Weights(b, op);
    if (Value* token = Token(b, v)) return token;
    if (IsProduct(op)) return Product(b, op);
    if (op->def->elementwise) return Elementwise(b, op);
    if (OneOf(op->name(), {"reshape", "broadcast_to"})) {
      Value* x = Spread(op->operands[0]);
      if (x == nullptr) return nullptr;
      const Shape shape = Behind({x->type.shape[0], x->type.shape[1]}, Tail(v->type.shape, 1));
      return b.Make(op->name(), {x}, {{"shape", shape}});
    }
    return OneOf(op->name(), {"split", "slice", "transpose", "rms_norm", "layer_norm"})
               ? ByRows(b, v)
               : nullptr;
  }

  Value* Weights(Builder& b, Op* op) {
    Value *weight = op->operands[0], *ids = op->operands[1];
    if (ids->type.rank() != 1 || !IsParam(ArrangedFrom(weight))) return nullptr;
    if (ids_ != nullptr && (ids_ != ids || experts_ != weight->type.shape[0])) return nullptr;
    ids_ = ids;
    experts_ = weight->type.shape[0];
    return b.Reshape(weight, Behind({experts_, 1}, Tail(weight->type.shape, 1)));
  }

  Value* AsToken(Value* v) {
    Builder b(graph_, before_, *v->producer);
    return b.Reshape(v, Behind({1, tokens_}, Tail(v->type.shape, 1)));
  }

  // Of rows that are the tokens, each k times.
  Value* Token(Builder& b, Value* v) {
    const Op* broadcast = v->producer;
    if (broadcast->name() == "reshape") broadcast = broadcast->operands[0]->producer;
    if (broadcast == nullptr || broadcast->name() != "broadcast_to") return nullptr;
    const Shape &to = broadcast->out().shape, &from = broadcast->in(0).shape;
    if (from.size() != to.size()) return nullptr;
    int64_t before = 1;
    size_t d = 0;
    while (d < to.size() && from[d] == to[d]) before *= to[d++];
    if (d == to.size() || before != tokens_ || to[d] != k_ || Tail(from, d + 1) != Tail(to, d + 1))
      return nullptr;
    return b.Reshape(broadcast->operands[0], Behind({1, tokens_}, Tail(v->type.shape, 1)));
  }

  Value* Product(Builder& b, Op* op) {
    if (op->in(0).rank() != 3 || op->in(1).rank() != 3 || op->operands.size() != 2) return nullptr;
    Value *x = Spread(op->operands[0]), *weight = Spread(op->operands[1]);
    if (x == nullptr || weight == nullptr) return nullptr;
    const Shape &of_x = x->type.shape, &w = weight->type.shape;
    if (of_x[1] != tokens_ || w[0] != experts_ || w[1] != 1) return nullptr;
    Value* rows = b.Reshape(x, {of_x[0], tokens_ * of_x[2], of_x[3]});
    Value* y = b.Make(op->name(), {rows, b.Reshape(weight, {w[0], w[2], w[3]})}, op->attrs);
    return b.Reshape(y, {experts_, tokens_, of_x[2], op->out().shape.back()});
  }

  Value* Elementwise(Builder& b, Op* op) {
    std::vector<Value*> operands;
    for (Value* x : op->operands) {
      const Shape& shape = x->type.shape;
      if (x->type.rank() == op->out().rank() && shape[0] != 1) {
        x = Spread(x);
      } else if (x->type.rank() == op->out().rank()) {
        x = b.Reshape(x, Behind({1}, shape));
      }
      if (x == nullptr) return nullptr;
      operands.push_back(x);
    }
    return b.Make(op->name(), std::move(operands), op->attrs);
  }

  // What computes each row from the same row of its first operand: one dim more in front.
  Value* ByRows(Builder& b, Value* v) {
    Op* op = v->producer;
    Attributes attrs = op->attrs;
    if (attrs.Has("axis")) {
      const int at = AxisOf(op->attrs, op->in(0).rank());
      if (at == 0) return nullptr;
      attrs.Set("axis", int64_t{at} + 1);
    }
    std::vector<Value*> operands = op->operands;
    operands[0] = Spread(operands[0]);
    if (operands[0] == nullptr) return nullptr;
    const Shape& shape = operands[0]->type.shape;
    if (op->name() == "transpose") {
      Ints perm = {0};
      for (int64_t p : op->attrs.IntList("perm")) perm.push_back(p + 1);
      if (perm[1] != 1) return nullptr;
      attrs.Set("perm", std::move(perm));
    }
    if (op->name() == "slice") {
      Ints starts = op->attrs.IntList("starts"), limits = op->attrs.IntList("limits"),
           steps = op->attrs.IntList("steps");
      if (limits[0] - starts[0] != op->in(0).shape[0]) return nullptr;
      starts.insert(starts.begin(), 0);
      steps.insert(steps.begin(), 1);
      limits[0] = shape[1];
      limits.insert(limits.begin(), shape[0]);
      attrs.Set("starts", std::move(starts));
      attrs.Set("limits", std::move(limits));
      attrs.Set("steps", std::move(steps));
    }
    Op* made = b.Create(op->name(), std::move(operands), std::move(attrs));
    for (size_t i = 0; i < op->results.size(); ++i) spread_[op->results[i]] = made->results[i];
    return made->results[v->index];
  }

  Op* before_;
  Graph& graph_;
  const int64_t tokens_, k_;
  int64_t experts_ = 0;
  Value* ids_ = nullptr;
  std::map<const Value*, Value*> spread_;
};

// How much of each expert a token takes, [experts, tokens, 1], of the shares [tokens, k, 1] of the
// experts [tokens, k, 1].
Value* SharesOfAll(Builder& b, Value* ids, Value* shares, int64_t experts) {
  HostTensor counted(ids->type.dtype, {1, 1, experts});
  for (int64_t e = 0; e < experts; ++e) counted.SetDouble(e, static_cast<double>(e));
  Value* chosen = b.Make("equal", {ids, b.Constant(std::move(counted))});
  Value* each = b.Mul(b.Cast(chosen, shares->type.dtype), shares);
  const int64_t tokens = ids->type.shape[0];
  return b.Reshape(b.Transpose(b.ReduceSum(each, {1}), {1, 0}), {experts, tokens, 1});
}

// The sum over k of [tokens, k, width], which is what experts give times the shares of a token.
Value* SpreadSum(Builder& b, Op* op) {
  if (op->name() != "reduce_sum" || op->in(0).rank() != 3 || op->out().rank() != 2) return nullptr;
  if (op->attrs.IntList("axes") != Ints{1}) return nullptr;
  const Shape& shape = op->in(0).shape;
  const int64_t tokens = shape[0], k = shape[1], width = shape[2];
  const Value* v = op->operands[0];
  while (Op* reshape = ProducedBy(v, "reshape")) v = reshape->operands[0];
  const Op* mul = ProducedBy(v, "mul");
  if (mul == nullptr || v->type.shape[0] != tokens * k) return nullptr;
  for (int i : {0, 1}) {
    Value *made = mul->operands[i], *share = mul->operands[1 - i];
    if (share->type.num_elements() != tokens * k || made->type.shape != v->type.shape) continue;
    Spreader spreader(op, b.graph(), tokens, k);
    Value* all = spreader.Spread(made);
    const int64_t experts = spreader.experts();
    if (all == nullptr || experts < 2 || all->type.shape[0] != experts) continue;
    // The copies are less than the weights.
    if (tokens * k < experts) continue;
    Value* shares = SharesOfAll(b, b.Reshape(spreader.expert_ids(), {tokens, k, 1}),
                                b.Reshape(share, {tokens, k, 1}), experts);
    return b.ReduceSum(b.Mul(b.Reshape(all, {experts, tokens, width}), shares), {0});
  }
  return nullptr;
}

}  // namespace

bool SpreadExperts(Graph& graph) { return ApplyRules(graph, {SpreadSum}); }

}  // namespace shardc::recover
