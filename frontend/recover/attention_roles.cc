// What makes q, k and v, and what takes the heads' results.
#include <algorithm>
#include <utility>

#include "frontend/recover/match.h"
#include "frontend/recover/roles.h"
#include "ir/op_def.h"

namespace shardc::recover {
namespace {

constexpr size_t kMostValues = 10000;  // on the ways back from a dim

class AttentionRoles {
 public:
  explicit AttentionRoles(LinearRoles& roles) : roles_(roles) {}

  void Visit(Op* op) {
    if (op->name() == "attention") SetAttention(op);
    if (op->name() == "softmax") SetWrittenOutAttention(op);
    if (IsProduct(op)) SetAttentionWithoutSoftmax(op);
  }

 private:
  void SetAttention(const Op* attention) {
    bool found = false;
    Seen seen;
    for (int i = 0; i < 3; ++i) found |= SetQkv(attention->operands[i], seen);
    if (found) SetAttentionOut(attention->result());
  }

  // matmul(softmax(a function of matmul(q, k)), v), where scores have more than a mask and a scale.
  void SetWrittenOutAttention(const Op* softmax) {
    std::vector<Op*> scores;
    std::set<const Op*> seen;
    FindScores(softmax->operands[0], 0, seen, scores);
    std::vector<Op*> products;
    FindProducts(softmax->result(), 0, products);
    if (scores.empty() || products.empty()) return;
    bool found = false;
    Seen tried;
    for (Op* score : scores) {
      for (const Value* v : score->operands) found |= SetQkv(v, tried);
    }
    for (Op* product : products) {
      found |= SetQkv(product->operands[1], tried);
      if (found) SetAttentionOut(product->result());
    }
  }

  // Heads' products of products, matmul(a function of matmul(q, k), v) or matmul(q, one of
  // matmul(k, v)): scores that go through a sigmoid, or decay with the distance, and linear
  // attention.
  void SetAttentionWithoutSoftmax(Op* product) {
    if (product->out().rank() < 4 || roles_.At(product->result())) return;
    std::vector<Op*> inner;
    std::set<const Op*> seen;
    for (const Value* v : product->operands) FindScores(v, 0, seen, inner);
    std::erase_if(inner, [&](const Op* op) { return roles_.At(op->result()) != nullptr; });
    if (inner.empty()) return;
    inner.push_back(product);
    // Where something else is among them, as what a convolution gives, a part of the projections
    // would be cut alone.
    std::vector<const Linear*> projections;
    for (const Op* op : inner) {
      for (const Value* v : op->operands) {
        Seen tried;
        if (!FindQkv(v, 0, tried, projections) && !IsOfProduct(v)) return;
      }
    }
    if (!HasHeads(*product)) return;
    for (const Linear* linear : projections) SetProjection(*linear);
    if (!projections.empty()) SetAttentionOut(product->result());
  }

  // Whether a dim that the product only goes along is of the columns of a projection: what mixes
  // the streams of each token (hyper-connections) goes along the positions alone.
  bool HasHeads(const Op& product) const {
    for (int d = 0; d + 2 < product.out().rank(); ++d) {
      std::set<std::pair<const Value*, int>> seen;
      std::vector<std::pair<const Value*, int>> open;
      auto add = [&](const Value* v, int dim) {
        if (seen.emplace(v, dim).second) open.emplace_back(v, dim);
      };
      add(product.result(), d);
      while (!open.empty() && seen.size() < kMostValues) {
        const auto [v, dim] = open.back();
        open.pop_back();
        if (const Linear* linear = roles_.At(v)) {
          if (dim == v->type.rank() - 1 || linear->experts) return true;
          continue;
        }
        AddWaysBack(v, dim, add);
      }
    }
    return false;
  }

  static void AddWaysBack(const Value* v, int dim, const auto& add) {
    const Op* op = v->producer;
    if (op == nullptr || !op->def->rule) return;
    const ShardingRule rule = op->def->rule(*op);
    const auto& factors = rule.results[v->index][dim].factors;
    if (factors.empty()) return;
    for (size_t i = 0; i < op->operands.size(); ++i) {
      const int d = DimOfFactor(rule.operands[i], factors[0]);
      if (d >= 0) add(op->operands[i], d);
    }
  }

  static bool IsOfProduct(const Value* v) {
    std::vector<Op*> products;
    std::set<const Op*> seen;
    FindScores(v, 0, seen, products);
    return !products.empty();
  }

  // The batched matmuls with the probabilities p, maybe dropped, in other dims, without those of a
  // key that has no value (a sink), or masked and scaled after the softmax.
  static void FindProducts(const Value* p, int depth, std::vector<Op*>& products) {
    for (Op* user : p->users) {
      if (user->name() == "matmul" && user->operands[0] == p && user->in(1).rank() >= 3) {
        products.push_back(user);
      } else if (depth < 6 &&
                 (OneOf(user->name(), {"dropout", "cast", "reshape", "slice", "split"}) ||
                  (user->def->elementwise &&
                   user->out().num_elements() == p->type.num_elements()))) {
        for (const Value* result : user->results) FindProducts(result, depth + 1, products);
      }
    }
  }

  // The batched matmuls that v is an elementwise function of: of q and k, and of either and what
  // stands for distances, whose products are read at the distance of query and key.
  static void FindScores(const Value* v, int depth, std::set<const Op*>& seen,
                         std::vector<Op*>& scores) {
    Op* op = v->producer;
    if (op == nullptr || depth > 16 || !seen.insert(op).second) return;
    if (IsProduct(op)) {
      if (op->in(1).rank() >= 3) scores.push_back(op);
      return;
    }
    if (OneOf(op->name(), {"gather", "gather_nd"}))
      return FindScores(op->operands[0], depth + 1, seen, scores);
    // A concat adds the scores of sinks.
    const bool more = op->name() == "concat";
    if (!op->def->elementwise && !more &&
        !OneOf(op->name(), {"reshape", "cast", "transpose", "slice", "pad"}))
      return;
    for (const Value* operand : op->operands) {
      bool as_many = operand->type.num_elements() == v->type.num_elements();
      if (as_many || more || OneOf(op->name(), {"slice", "pad"}))
        FindScores(operand, depth + 1, seen, scores);
    }
  }

  // Values that a walk has been at, so many steps from where it began: there may be very many ways
  // to one.
  using Seen = std::set<std::pair<const Value*, int>>;

  // Of what q, k or v is made of. Whether a projection is there that was not seen: without one the
  // heads of the result are not cut either.
  bool SetQkv(const Value* v, Seen& seen) {
    std::vector<const Linear*> projections;
    const bool found = FindQkv(v, 0, seen, projections);
    for (const Linear* linear : projections) SetProjection(*linear);
    return found;
  }

  // Whether it multiplies each head by a matrix of its own, as the absorbed projections of
  // DeepSeek's latent attention do.
  static bool IsOfEachHead(const Linear& linear) {
    const TensorType& x = linear.matmul->in(0);
    const int64_t n = linear.experts ? NumExperts(linear) : 0;
    return n > 1 && x.rank() >= 3 && x.shape[x.rank() - 3] == n;
  }

  // The projection of which the linear sums over positions instead of columns, so that fewer keys
  // or values are left (Linformer): its dims are none of heads.
  const Value* WhatItMixes(const Linear& linear) const {
    const Op* turned = ProducedBy(linear.matmul->operands[0], "transpose");
    if (turned == nullptr) return nullptr;
    const int64_t last = turned->out().rank() - 1;
    if (turned->attrs.IntList("perm").back() == last) return nullptr;
    const Value* of = turned->operands[0];
    const Op* split = ProducedBy(of, "reshape");
    return roles_.At(split == nullptr ? of : split->operands[0]) ? of : nullptr;
  }

  // Between heads, where it has a matrix for each of them.
  void SetProjection(const Linear& linear) {
    if (!linear.experts) return roles_.Set(linear, "QKV");
    Linear by_heads = linear;
    const int64_t heads = linear.stacked.empty() ? 0 : linear.stacked[0];
    by_heads.rows.clear();
    for (int64_t d = 0; d < linear.weight->out().rank(); ++d) {
      if (d != heads) by_heads.rows.push_back(d);
    }
    by_heads.columns = {heads};
    roles_.Set(by_heads, "QKV");
  }

  // Back from q, k or v, through splitting heads, rotary positions and norms of q and k.
  bool FindQkv(const Value* v, int depth, Seen& seen,
               std::vector<const Linear*>& projections) const {
    if (!seen.emplace(v, depth).second) return false;
    if (const Linear* linear = roles_.At(v)) {
      if (IsOfEachHead(*linear)) {
        const Value* heads = linear->matmul->operands[0];
        if (!FindQkv(heads, depth + 1, seen, projections)) return false;
        projections.push_back(linear);
        return true;
      }
      if (linear->experts) return false;
      if (const Value* mixed = WhatItMixes(*linear))
        return FindQkv(mixed, depth + 1, seen, projections);
      // Of keys of low rank (as DeepSeek's), what is common to all heads comes from the projection
      // that makes them: no head is a part of its columns.
      const bool fits = !FeedsLinear(linear->out, 0);
      if (fits) projections.push_back(linear);
      const std::string role = LinearRoles::Of(*linear);
      return role == "QKV" || (fits && role.empty());
    }
    const Op* op = v->producer;
    if (op == nullptr || depth > 40) return false;
    if (const Value* x = Unrounded(v)) return FindQkv(x, depth + 1, seen, projections);
    if (op->name() == "dropout") return FindQkv(op->operands[0], depth + 1, seen, projections);
    bool layout =
        OneOf(op->name(), {"reshape", "transpose", "split", "slice", "cast", "broadcast_to", "neg",
                           "concat", "mul", "div", "where", "max", "min"});
    // A sum of two computed tensors over the whole width is the residual stream, over heads a
    // rotation, and of two linears one linear with another of low rank beside it.
    bool sum = OneOf(op->name(), {"add", "sub"}) &&
               (op->out().rank() >= 4 || roles_.Gives(op->result()) ||
                BiasBehind(op->operands[0]) || BiasBehind(op->operands[1]) ||
                (IsScaledLinear(op->operands[0]) && IsScaledLinear(op->operands[1])));
    bool norm = IsNorm(op) && (op->out().rank() >= 4 || roles_.Gives(op->operands[0]));
    // Of linear attention.
    const bool feature =
        op->def->elementwise && (op->out().rank() >= 4 || roles_.Gives(op->operands[0]));
    // Into a cache, at places that are data. With ones, whose products are the sums that linear
    // attention divides by.
    const bool written = OneOf(op->name(), {"gather_nd", "gather_nd_grad", "gather", "pad"});
    if (norm || written || op->name() == "rotary")
      return FindQkv(op->operands[0], depth + 1, seen, projections);
    if (!layout && !sum && !feature) return false;
    bool found = false;
    for (const Value* operand : op->operands)
      found |= FindQkv(operand, depth + 1, seen, projections);
    return found;
  }

  // Whether v goes into another linear, maybe in parts or normed.
  bool FeedsLinear(const Value* v, int depth) const {
    return depth < 6 && std::any_of(v->users.begin(), v->users.end(), [&](const Op* user) {
             if (!user->results.empty() && user->operands[0] == v && roles_.At(user->result()))
               return true;
             return (IsNorm(user) || OneOf(user->name(), {"split", "slice", "reshape", "cast"})) &&
                    std::any_of(user->results.begin(), user->results.end(),
                                [&](const Value* r) { return FeedsLinear(r, depth + 1); });
           });
  }

  bool IsScaledLinear(const Value* v) const {
    const Op* op = v->producer;
    if (op && OneOf(op->name(), {"mul", "div"}) && ProducedBy(op->operands[1], "constant"))
      return roles_.Gives(op->operands[0]);
    return roles_.Gives(v);
  }

  // Back from what a result of heads is multiplied with, to the linear that makes this gate: one
  // for each head, or one for each element. What a linear makes beside a gate may want to be whole.
  void SetGate(const Value* v, int depth, Seen& seen) {
    if (!seen.emplace(v, depth).second) return;
    if (const Linear* linear = roles_.At(v)) {
      // One number for all heads cannot be cut with them.
      if (!linear->experts && linear->out->type.shape.back() > 1) roles_.Set(*linear, "QKV");
      return;
    }
    const Op* op = v->producer;
    if (op == nullptr || depth > 12) return;
    if (const Value* x = Unrounded(v)) return SetGate(x, depth + 1, seen);
    // A sum without a parameter is the residual stream.
    if (OneOf(op->name(), {"add", "sub"}) && !BiasBehind(op->operands[0]) &&
        !BiasBehind(op->operands[1]) && !ProducedBy(op->operands[0], "constant") &&
        !ProducedBy(op->operands[1], "constant"))
      return;
    if (!op->def->elementwise &&
        !OneOf(op->name(), {"reshape", "transpose", "broadcast_to", "cast"}))
      return;
    for (const Value* operand : op->operands) SetGate(operand, depth + 1, seen);
  }

  void SetAttentionOut(const Value* v) {
    Seen seen, gates;
    SetAttentionOut(v, 0, seen, gates);
  }

  void SetAttentionOut(const Value* v, int depth, Seen& seen, Seen& gates) {
    if (!seen.emplace(v, depth).second) return;
    for (Op* user : v->users) {
      if (const Linear* linear = user->results.empty() ? nullptr : roles_.At(user->result())) {
        if (user->operands[0] != v) continue;
        if (!linear->experts) roles_.Set(*linear, "ATTENTION_OUT");
        if (!IsOfEachHead(*linear)) continue;
        SetProjection(*linear);
        SetAttentionOut(user->result(), depth + 1, seen, gates);
      } else if (depth < 12 && KeepsHeads(user)) {
        for (const Value* operand : user->operands) {
          if (user->name() == "mul" && operand != v) SetGate(operand, 0, gates);
        }
        for (const Value* result : user->results) SetAttentionOut(result, depth + 1, seen, gates);
      }
    }
  }

  // What a model does with each head's result before the projection: also norms, functions of its
  // elements, turning back what turned positions gave, and sums of what two attentions give. Over
  // the whole width a sum is the residual stream, but for a norm's bias; what is put beside it goes
  // through one projection with it, as the branches of a parallel block.
  static bool KeepsHeads(const Op* op) {
    const bool heads = !op->results.empty() && op->out().rank() >= 4;
    const bool bias = op->name() == "add" && std::ranges::any_of(op->operands, [](const Value* v) {
                        return IsParam(ArrangedFrom(v));
                      });
    const bool beside =
        op->name() == "concat" && IsLastAxis(op->attrs.Int("axis"), op->out().rank());
    const bool rounds = op->name() == "add" && Unrounded(op->result());
    return IsNorm(op) || beside || bias || rounds ||
           OneOf(op->name(),
                 {"dropout", "reshape", "transpose", "cast", "mul", "div", "where", "rotary"}) ||
           (heads && (op->def->elementwise || OneOf(op->name(), {"concat", "split", "slice"})));
  }

  LinearRoles& roles_;
};

}  // namespace

void SetAttentionRoles(const Graph& graph, LinearRoles& roles) {
  AttentionRoles attentions(roles);
  for (const auto& op : graph.ops()) attentions.Visit(op.get());
}

}  // namespace shardc::recover
