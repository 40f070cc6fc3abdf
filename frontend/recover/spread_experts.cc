// Experts whose weights each token looks up, [tokens * k, in, out] of [experts, in, out], become
// products [experts, tokens, out] of those rows that are an expert's tokens. There is no copy of
// the weights for every token, each weight is read once, and experts are a dim that a spec can cut.
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

// Which of the experts [tokens, k, 1] each is, [tokens, k, experts].
Value* ChosenOf(Builder& b, Value* ids, int64_t experts) {
  HostTensor counted(ids->type.dtype, {1, 1, experts});
  for (int64_t e = 0; e < experts; ++e) counted.SetDouble(e, static_cast<double>(e));
  return b.Make("equal", {ids, b.Constant(std::move(counted))});
}

// The rows [tokens * k, ...] or [tokens, k, ...] of a graph as [experts, tokens, ...], with 1 for
// either where all rows of it are the same.
class Spreader {
 public:
  Spreader(Op* before, Graph& graph, int64_t tokens, int64_t k)
      : before_(before), graph_(graph), tokens_(tokens), k_(k) {}

  // Null where it is made by anything but lookups of experts, tokens and what goes row by row.
  Value* Spread(Value* v) {
    if (Lead(v->type.shape) == 0 || v->producer == nullptr) return nullptr;
    auto [at, added] = spread_.emplace(v, nullptr);
    if (!added) return at->second;
    Value* made = Make(v);
    // With one expert for each token what is not of all experts may stay as it is.
    if (k_ == 1 && (made == nullptr || made->type.shape[0] == 1)) {
      Builder b(graph_, before_, *v->producer);
      made = AsTokens(b, v, Rest(v));
    }
    spread_[v] = made;
    return made;
  }

  Value* expert_ids() const { return ids_; }  // null: no weight was looked up
  int64_t experts() const { return experts_; }

 private:
  // How many dims count the rows; 0: they are no such rows.
  size_t Lead(const Shape& shape) const {
    if (!shape.empty() && shape[0] == tokens_ * k_) return 1;
    return shape.size() > 1 && shape[0] == tokens_ && shape[1] == k_ ? 2 : 0;
  }
  Shape Rest(const Value* v) const { return Tail(v->type.shape, Lead(v->type.shape)); }

  Value* Make(Value* v) {
    Op* op = v->producer;
    Builder b(graph_, before_, *op);
    if (IsLookup(op)) return Weights(b, op);
    if (Value* token = Token(b, v)) return token;
    if (IsProduct(op)) return Product(b, op);
    if (op->def->elementwise) return Elementwise(b, op);
    if (OneOf(op->name(), {"reshape", "broadcast_to"})) {
      const bool in_place = op->name() == "reshape" || op->in(0).rank() == v->type.rank();
      Value* x = in_place ? Spread(op->operands[0]) : nullptr;
      if (x == nullptr) return BesideEachOther(b, v);
      const Shape shape = Behind({x->type.shape[0], x->type.shape[1]}, Rest(v));
      return b.Make(op->name(), {x}, {{"shape", shape}});
    }
    return OneOf(op->name(), {"split", "slice", "transpose", "rms_norm", "layer_norm"})
               ? ByRows(b, v)
               : nullptr;
  }

  Value* Weights(Builder& b, Op* op) {
    Value *weight = op->operands[0], *ids = op->operands[1];
    if (ids->type.num_elements() != tokens_ * k_ || !IsParam(ArrangedFrom(weight)) ||
        !TrainsAllRows(op)) {
      return nullptr;
    }
    if (ids_ != nullptr && (ids_ != ids || experts_ != weight->type.shape[0])) return nullptr;
    ids_ = ids;
    experts_ = weight->type.shape[0];
    return b.Reshape(weight, Behind({experts_, 1}, Tail(weight->type.shape, 1)));
  }

  Value* AsTokens(Builder& b, Value* v, const Shape& rest) {
    return b.Reshape(v, Behind({1, tokens_}, rest));
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
    return AsTokens(b, broadcast->operands[0], Rest(v));
  }

  Value* Product(Builder& b, Op* op) {
    if (op->operands.size() != 2) return nullptr;
    Value *x = Spread(op->operands[0]), *weight = Spread(op->operands[1]);
    if (x == nullptr || weight == nullptr) return nullptr;
    const Shape &of_x = x->type.shape, &w = weight->type.shape;
    if (of_x.size() != 4 || w.size() != 4 || of_x[1] != tokens_ || w[0] != experts_ || w[1] != 1)
      return nullptr;
    Value* rows = b.Reshape(x, {of_x[0], tokens_ * of_x[2], of_x[3]});
    Value* y = OfChosen(b, MultipliesByTransposed(op), rows, b.Reshape(weight, {w[0], w[2], w[3]}));
    return b.Reshape(y, {experts_, tokens_, of_x[2], op->out().shape.back()});
  }

  // The product of the rows, as many for each token, with the experts that are a token's.
  Value* OfChosen(Builder& b, bool nt, Value* rows, Value* weight) {
    if (chosen_ == nullptr) {
      Value* of_k = ChosenOf(b, b.Reshape(ids_, {tokens_, k_, 1}), experts_);
      Value* count = b.ReduceSum(b.Cast(of_k, rows->type.dtype), {1});
      chosen_ = b.Transpose(b.Cast(count, DType::kBool), {1, 0});
    }
    const int64_t each = rows->type.shape[1] / tokens_;
    Value* chosen =
        b.BroadcastTo(b.Reshape(chosen_, {experts_, tokens_, 1}), {experts_, tokens_, each});
    chosen = b.Reshape(chosen, {experts_, tokens_ * each});
    return b.Make(
        nt ? "matmul_rows_nt" : "matmul_rows", {rows, weight, chosen},
        {{"density", static_cast<double>(std::min(k_, experts_)) / static_cast<double>(experts_)}});
  }

  // [tokens, k, out] of a product of each token with the weights of its k experts side by side.
  Value* BesideEachOther(Builder& b, Value* v) {
    Op* product = v->producer->operands[0]->producer;
    while (product && product->name() == "reshape") product = product->operands[0]->producer;
    if (product == nullptr || !IsProduct(product) || product->operands.size() != 2) return nullptr;
    Value* x = product->operands[0];
    const Op* side_by_side = ProducedBy(product->operands[1], "reshape");
    if (side_by_side == nullptr || x->type.rank() != 3 || x->type.shape[0] != tokens_ ||
        x->type.shape[1] != 1) {
      return nullptr;
    }
    Value* each = side_by_side->operands[0];  // nt: [tokens, k, out, in], else [tokens, in, k, out]
    bool nt = product->name() == "matmul_nt";
    if (!nt) {
      const Op* transpose = ProducedBy(each, "transpose");
      nt = IsPerm(transpose, {0, 3, 1, 2});
      if (!nt && !IsPerm(transpose, {0, 2, 1, 3})) return nullptr;
      each = transpose->operands[0];
    }
    Value* weight = Lead(each->type.shape) == 2 ? Spread(each) : nullptr;
    if (weight == nullptr || weight->type.rank() != 4 || weight->type.shape[1] != 1) return nullptr;
    const Shape& w = weight->type.shape;
    if (v->type.shape != Shape{tokens_, k_, w[nt ? 2 : 3]}) return nullptr;
    Value* y = OfChosen(b, nt, b.Reshape(x, {1, tokens_, x->type.shape[2]}),
                        b.Reshape(weight, {w[0], w[2], w[3]}));
    return b.Reshape(y, {experts_, tokens_, v->type.shape[2]});
  }

  Value* Elementwise(Builder& b, Op* op) {
    const auto lead = static_cast<int64_t>(Lead(op->out().shape));
    std::vector<Value*> operands;
    for (Value* x : op->operands) {
      const Shape& shape = x->type.shape;
      // How many of its dims go with those that count the rows.
      const int64_t of_rows = lead - (op->out().rank() - x->type.rank());
      const bool one = std::all_of(shape.begin(), shape.begin() + std::max<int64_t>(of_rows, 0),
                                   [](int64_t n) { return n == 1; });
      if (of_rows == lead) {
        x = one ? b.Reshape(x, Behind({1, 1}, Tail(shape, of_rows))) : Spread(x);
      } else if (!one) {
        return nullptr;
      }
      if (x == nullptr) return nullptr;
      operands.push_back(x);
    }
    return b.Make(op->name(), std::move(operands), op->attrs);
  }

  // What computes each row from the same row of its first operand: other dims in front.
  Value* ByRows(Builder& b, Value* v) {
    Op* op = v->producer;
    const Shape& old = op->in(0).shape;
    const auto lead = static_cast<int64_t>(Lead(old));
    if (IsNorm(op) && std::ssize(old) == lead) return nullptr;
    Attributes attrs = op->attrs;
    if (attrs.Has("axis")) {
      const int at = AxisOf(op->attrs, op->in(0).rank());
      if (at < lead) return nullptr;
      attrs.Set("axis", at - lead + 2);
    }
    std::vector<Value*> operands = op->operands;
    operands[0] = Spread(operands[0]);
    if (operands[0] == nullptr) return nullptr;
    const Shape& shape = operands[0]->type.shape;
    // Of a list with an entry for each dim.
    auto behind = [&](const char* name, Ints first) {
      const Ints& all = op->attrs.IntList(name);
      first.insert(first.end(), all.begin() + lead, all.end());
      return first;
    };
    if (op->name() == "transpose") {
      const Ints& all = op->attrs.IntList("perm");
      for (int64_t d = 0; d < lead; ++d) {
        if (all[d] != d) return nullptr;
      }
      Ints perm = behind("perm", {0, 1});
      for (size_t i = 2; i < perm.size(); ++i) perm[i] += 2 - lead;
      attrs.Set("perm", std::move(perm));
    }
    if (op->name() == "slice") {
      const Ints& steps = op->attrs.IntList("steps");
      for (int64_t d = 0; d < lead; ++d) {
        if (steps[d] != 1 || old[d] != op->out().shape[d]) return nullptr;
      }
      attrs.Set("starts", behind("starts", {0, 0}));
      attrs.Set("limits", behind("limits", {shape[0], shape[1]}));
      attrs.Set("steps", behind("steps", {1, 1}));
    }
    Op* made = b.Create(op->name(), std::move(operands), std::move(attrs));
    for (size_t i = 0; i < op->results.size(); ++i) spread_[op->results[i]] = made->results[i];
    return made->results[v->index];
  }

  Op* before_;
  Graph& graph_;
  const int64_t tokens_, k_;
  int64_t experts_ = 0;
  Value *ids_ = nullptr, *chosen_ = nullptr;
  std::map<const Value*, Value*> spread_;
};

// How much of each expert a token takes, [experts, tokens, 1], of the shares [tokens, k, 1] of the
// experts [tokens, k, 1].
Value* SharesOfAll(Builder& b, Value* ids, Value* shares, int64_t experts) {
  Value* each = b.Mul(b.Cast(ChosenOf(b, ids, experts), shares->type.dtype), shares);
  const int64_t tokens = ids->type.shape[0];
  return b.Reshape(b.Transpose(b.ReduceSum(each, {1}), {1, 0}), {experts, tokens, 1});
}

// The sum over k, [tokens, width], of what experts give times the shares of a token, one for each
// row; null where `made`, [tokens * k, width] or [tokens, k, width], is no such thing.
Value* SumOfExperts(Builder& b, Op* op, Value* made, Value* share, const Shape& rows) {
  const int64_t tokens = rows[0], k = rows[1];
  Spreader spreader(op, b.graph(), tokens, k);
  Value* all = spreader.Spread(made);
  const int64_t experts = spreader.experts();
  if (all == nullptr || experts < 2 || all->type.shape[0] != experts) return nullptr;
  // The copies are less than the weights.
  if (tokens * k < experts) return nullptr;
  Value* shares = SharesOfAll(b, b.Reshape(spreader.expert_ids(), {tokens, k, 1}),
                              b.Reshape(share, {tokens, k, 1}), experts);
  return b.ReduceSum(b.Mul(b.Reshape(all, {experts, all->type.shape[1], rows[2]}), shares), {0});
}

// Whether v, beside rows [tokens * k, ...] or [tokens, k, ...] of this shape, is a number for each.
bool IsOneARow(const Value* v, const Shape& shape, const Shape& rows) {
  const size_t lead = !shape.empty() && shape[0] == rows[0] * rows[1] ? 1 : 2;
  if (shape.size() < lead || v->type.rank() != std::ssize(shape)) return false;
  Shape one(shape.size(), 1);
  std::copy_n(shape.begin(), lead, one.begin());
  return v->type.shape == one;
}

Value* SpreadSum(Builder& b, Op* op) {
  if (op->name() != "reduce_sum" || op->in(0).rank() != 3 || op->out().rank() != 2) return nullptr;
  if (op->attrs.IntList("axes") != Ints{1}) return nullptr;
  const Value* v = op->operands[0];
  while (Op* reshape = ProducedBy(v, "reshape")) v = reshape->operands[0];
  const Op* mul = ProducedBy(v, "mul");
  if (mul == nullptr) return nullptr;
  for (int i : {0, 1}) {
    Value *made = mul->operands[i], *share = mul->operands[1 - i];
    const Shape& rows = op->in(0).shape;
    if (made->type.shape != v->type.shape || !IsOneARow(share, v->type.shape, rows)) continue;
    if (Value* sum = SumOfExperts(b, op, made, share, rows)) return sum;
  }
  return nullptr;
}

// The same sum as a product, [tokens, width, k] @ [tokens, k, 1] or [tokens, 1, k] @ [tokens, k,
// width].
Value* SpreadProduct(Builder& b, Op* op) {
  if (!IsProduct(op) || op->operands.size() != 2 || op->in(0).rank() != 3) return nullptr;
  const bool nt = op->name() == "matmul_nt";
  for (int i : {0, 1}) {
    Value *made = op->operands[i], *share = op->operands[1 - i];
    const bool turned = i == 0 || nt;
    if (turned && !IsPerm(ProducedBy(made, "transpose"), {0, 2, 1})) continue;
    if (turned) made = made->producer->operands[0];
    if (made->type.rank() != 3) continue;
    const int64_t tokens = made->type.shape[0], k = made->type.shape[1];
    if (share->type.shape != (i == 0 && !nt ? Shape{tokens, k, 1} : Shape{tokens, 1, k})) continue;
    Value* sum = SumOfExperts(b, op, made, share, made->type.shape);
    if (sum != nullptr) return b.Reshape(sum, op->out().shape);
  }
  return nullptr;
}

}  // namespace

bool SpreadExperts(Graph& graph) { return ApplyRules(graph, {SpreadSum, SpreadProduct}); }

}  // namespace shardc::recover
