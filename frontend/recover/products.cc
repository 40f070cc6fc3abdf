// Products with weights, written as one product where that is better and apart where a cut wants
// it.
#include <algorithm>
#include <numeric>
#include <utility>

#include "frontend/recover/patterns.h"
#include "ir/op_def.h"

namespace shardc::recover {
namespace {

// matmul(x, transpose(w)) -> matmul_nt(x, w), and the reverse, for matrices w, and for parameters
// that are a matrix for each expert.
Value* FoldTransposedWeight(Builder& b, Op* op) {
  if (!IsProduct(op)) return nullptr;
  Op* transpose = ProducedBy(op->operands[1], "transpose");
  if (transpose == nullptr) return nullptr;
  const bool experts =
      IsPerm(transpose, {0, 2, 1}) && ProducedBy(transpose->operands[0], "param") != nullptr;
  if (transpose->out().rank() != 2 && !experts) return nullptr;
  std::string name(op->name());
  if (MultipliesByTransposed(op)) {
    name.erase(name.size() - 3);
  } else {
    name += "_nt";
  }
  std::vector<Value*> operands = op->operands;
  operands[1] = transpose->operands[0];
  return b.Make(name, std::move(operands), op->attrs);
}

// Each of a batch times the same weight, as PyTorch writes a linear layer of what was transposed ->
// all of it times the weight.
Value* UnbroadcastWeight(Builder& b, Op* op) {
  Op* broadcast = IsProduct(op) ? ProducedBy(op->operands[1], "broadcast_to") : nullptr;
  if (broadcast == nullptr || op->operands.size() != 2) return nullptr;
  const Shape &x = op->in(0).shape, &each = op->in(1).shape, &one = broadcast->in(0).shape;
  if (each.size() != x.size() || one.size() < 2 || !IsParam(ArrangedFrom(broadcast->operands[0])))
    return nullptr;
  const Shape matrix(one.end() - 2, one.end());
  if (!std::equal(each.begin(), each.end() - 2, x.begin()) ||
      NumElements(one) != NumElements(matrix) || matrix != Shape(each.end() - 2, each.end())) {
    return nullptr;
  }
  Value* weight = b.Reshape(broadcast->operands[0], matrix);
  return b.Make(op->name(), {op->operands[0], weight}, op->attrs);
}

// weight @ x for a column x, as experts that each token looks up are multiplied -> x @ weight for a
// row: where the roles and the gradients want a weight.
Value* PutWeightRight(Builder& b, Op* op) {
  if (!IsProduct(op) || op->operands.size() != 2) return nullptr;
  Value *weight = op->operands[0], *x = op->operands[1];
  if (weight->type.rank() < 2 || x->type.rank() < 2 || op->out().shape.back() != 1) return nullptr;
  if (weight->type.shape[weight->type.rank() - 2] == 1) return nullptr;  // a row times a column
  if (!IsParam(ArrangedFrom(weight)) || IsParam(ArrangedFrom(x))) return nullptr;
  if (op->name() == "matmul") {
    Shape row = x->type.shape;
    std::swap(row[row.size() - 1], row[row.size() - 2]);
    x = b.Reshape(x, std::move(row));
  }
  return b.Reshape(b.Make("matmul_nt", {x, weight}), op->out().shape);
}

// Whether v is, but for its order and its parts, a parameter with a matrix for each of n experts.
bool IsExpertsWeight(const Value* v, int64_t n) {
  v = ArrangedFrom(v);
  return IsParam(v) && v->type.rank() == 3 && v->type.shape[0] == n;
}

// The size of the dim before the last two, and 1 where there is none.
int64_t Stacked(const Value* v) {
  return v->type.rank() < 3 ? 1 : v->type.shape[v->type.rank() - 3];
}

// The same of a parameter in which they lie one behind the other. So may weights of heads.
bool IsStackOfWeights(const Value* v, int64_t n) {
  const Value* from = ArrangedFrom(v);
  return Stacked(v) == n && IsParam(from) && from->type.rank() == 2;
}

// Whether the op is an activation, which stands between weights of experts and not of heads.
bool Activates(const Op* op) {
  return op->def->elementwise && op->operands.size() == 1 && !Arranges(op) &&
         !OneOf(op->name(), {"neg", "cast"});
}

// Whether v is what the model computes, no weight and no constant.
bool IsComputed(const Value* v) {
  return !IsParam(ArrangedFrom(v)) && ProducedBy(v, "constant") == nullptr;
}

// Whether an elementwise function of what the op makes goes through other weights of n experts. The
// heads of an attention meet each other, and are better made by one product: also where some go
// through weights of each head, too (as those of TTT do).
bool FeedsExperts(const Op* op, int64_t n) {
  constexpr size_t kMaxOps = 64;
  bool feeds = false;
  std::vector<std::pair<const Op*, bool>> waiting = {{op, false}};  // whether behind an activation
  for (size_t i = 0; i < waiting.size() && i < kMaxOps; ++i) {
    const auto [at, activated] = waiting[i];
    for (const Value* result : at->results) {
      for (const Op* user : result->users) {
        if (IsProduct(user)) {
          if (IsComputed(user->operands[0]) && IsComputed(user->operands[1])) return false;
          const Value* weight = user->operands[1];
          feeds |= IsExpertsWeight(weight, n) || (activated && IsStackOfWeights(weight, n));
        } else if (user->def->elementwise || Arranges(user) || user->name() == "dropout") {
          const std::pair next(user, activated || Activates(user));
          if (std::ranges::find(waiting, next) == waiting.end()) waiting.push_back(next);
        }
      }
    }
  }
  return feeds;
}

// x @ weight of all experts, [n, in, out] or (nt) [n, out, in], in the place of the product with
// these beside each other.
Value* ByExperts(Builder& b, Op* op, Value* weight, bool nt) {
  Value* x = op->operands[0];
  Shape apart = x->type.shape;
  const auto rows = static_cast<int64_t>(apart.size()) - 2;
  apart.insert(apart.begin() + rows, 1);
  Value* y =
      b.Make(nt ? "matmul_nt" : "matmul", {b.Reshape(x, std::move(apart)), weight}, op->attrs);
  Ints perm(static_cast<size_t>(rows) + 3);
  std::iota(perm.begin(), perm.end(), 0);
  std::swap(perm[rows], perm[static_cast<size_t>(rows) + 1]);
  return b.Reshape(b.Transpose(y, std::move(perm)), op->out().shape);
}

// x @ [in, experts * out], the weights [experts, in, out] (or [experts, out, in]) of all experts
// beside each other, as an einsum makes it, before others of them -> a product batched over
// experts: nothing is copied, and the columns of each can be cut.
Value* TakeExpertsApart(Builder& b, Op* op) {
  if (!IsProduct(op) || op->in(1).rank() != 2 || op->operands.size() != 2) return nullptr;
  Op* merged = ProducedBy(op->operands[1], "reshape");
  if (merged == nullptr || merged->in(0).rank() != 3) return nullptr;
  Value* weight = merged->operands[0];
  bool nt = op->name() == "matmul_nt";
  if (!nt) {
    Op* transpose = ProducedBy(weight, "transpose");
    nt = IsPerm(transpose, {2, 0, 1});
    if (!nt && !IsPerm(transpose, {1, 0, 2})) return nullptr;
    weight = transpose->operands[0];
  }
  const Shape& w = weight->type.shape;
  const int64_t in = op->in(0).shape.back();
  if (ProducedBy(weight, "param") == nullptr || w[nt ? 2 : 1] != in || w[0] < 2) return nullptr;
  return FeedsExperts(op, w[0]) ? ByExperts(b, op, weight, nt) : nullptr;
}

// The same of experts that a parameter [experts * out, in] has one behind the other.
Value* TakeStackApart(Builder& b, Op* op) {
  if (op->name() != "matmul_nt" || op->operands.size() != 2 || op->in(1).rank() != 2 ||
      !IsParam(op->operands[1])) {
    return nullptr;
  }
  for (const Op* user : op->result()->users) {
    if (user->name() != "reshape") continue;
    const ShardingRule last = user->def->rule(*user);
    const auto& factors = last.operands[0].back().factors;
    if (factors.size() != 2) continue;
    const int64_t n = last.factors[factors[0]].size, each = last.factors[factors[1]].size;
    if (n < 2 || !FeedsExperts(op, n)) continue;
    return ByExperts(b, op, b.Reshape(op->operands[1], {n, each, op->in(1).shape[1]}), true);
  }
  return nullptr;
}

// Whether v is an elementwise function of what other weights of n experts make.
bool ComesFromExperts(const Value* v, int64_t n, bool activated = false, int depth = 0) {
  const Op* op = v->producer;
  if (op == nullptr || depth > 16) return false;
  if (IsProduct(op)) {
    const Value* weight = op->operands[1];
    return IsExpertsWeight(weight, n) || (activated && IsStackOfWeights(weight, n));
  }
  if (!op->def->elementwise && !Arranges(op) && op->name() != "dropout") return false;
  activated |= Activates(op);
  return std::ranges::any_of(
      op->operands, [&](const Value* x) { return ComesFromExperts(x, n, activated, depth + 1); });
}

// A parameter [n, ., .], maybe with dims of 1 before these; null when v is none.
Value* StackedWeight(Builder& b, Value* v) {
  const Shape& shape = v->type.shape;
  if (Stacked(v) < 2 || !IsParam(ArrangedFrom(v))) return nullptr;
  if (std::any_of(shape.begin(), shape.end() - 3, [](int64_t d) { return d != 1; })) return nullptr;
  return b.Reshape(v, Shape(shape.end() - 3, shape.end()));
}

// [..., a, b, c] -> [..., b, a, c], or the reverse.
Value* SwapBeforeLast(Builder& b, Value* v) {
  Ints perm(v->type.rank());
  std::iota(perm.begin(), perm.end(), 0);
  std::swap(perm[perm.size() - 2], perm[perm.size() - 3]);
  return b.Transpose(v, std::move(perm));
}

// x @ weight of each head, [..., 1, s, d] @ [heads, d, e] -> one product with [d, heads * e].
Value* JoinHeads(Builder& b, Op* op) {
  const bool nt = op->name() == "matmul_nt";
  if (!IsProduct(op) || op->operands.size() != 2) return nullptr;
  Value* x = op->operands[0];
  if (Stacked(x) != 1 || Stacked(op->operands[1]) < 2 ||
      op->out().rank() != std::max(x->type.rank(), 3)) {
    return nullptr;
  }
  Value* weight = StackedWeight(b, op->operands[1]);
  if (weight == nullptr || FeedsExperts(op, weight->type.shape[0])) return nullptr;
  const Shape w = weight->type.shape, &out = op->out().shape;
  Shape flat = x->type.shape;
  if (flat.size() > 2) flat.erase(flat.end() - 3);
  Value* joined = nt ? b.Reshape(weight, {w[0] * w[1], w[2]})
                     : b.Reshape(SwapBeforeLast(b, weight), {w[1], w[0] * w[2]});
  Value* y = b.Make(op->name(), {b.Reshape(x, std::move(flat)), joined}, op->attrs);
  Shape apart = out;
  std::swap(apart[apart.size() - 2], apart[apart.size() - 3]);
  return SwapBeforeLast(b, b.Reshape(y, std::move(apart)));
}

// The sum over heads of each one's [..., heads, s, e] @ [heads, e, d] -> one product with [heads *
// e, d].
Value* JoinHeadsSum(Builder& b, Op* op) {
  if (op->name() != "reduce_sum") return nullptr;
  Op* product = op->operands[0]->producer;
  if (product == nullptr || !IsProduct(product) || product->operands.size() != 2 ||
      CountUses(product->result()) != 1) {
    return nullptr;
  }
  const bool nt = product->name() == "matmul_nt";
  Value* z = product->operands[0];
  const int64_t rank = product->out().rank(), n = Stacked(z);
  const Ints& axes = op->attrs.IntList("axes");
  if (axes.size() != 1 || (axes[0] + rank) % rank != rank - 3 || z->type.rank() != rank ||
      Stacked(product->operands[1]) != n) {
    return nullptr;
  }
  Value* weight = StackedWeight(b, product->operands[1]);
  if (weight == nullptr || ComesFromExperts(z, n)) return nullptr;
  const Shape w = weight->type.shape;
  Value* joined = nt ? b.Reshape(SwapBeforeLast(b, weight), {w[1], w[0] * w[2]})
                     : b.Reshape(weight, {w[0] * w[1], w[2]});
  Value* rows = SwapBeforeLast(b, z);
  Shape flat = rows->type.shape;
  flat.pop_back();
  flat.back() = n * z->type.shape.back();
  Value* y = b.Make(product->name(), {b.Reshape(rows, std::move(flat)), joined}, product->attrs);
  return b.Reshape(y, op->out().shape);
}

// What a concat along the dim puts together from pieces of these sizes; nothing where v is none.
std::vector<Value*> PiecesOf(const Value* v, int64_t axis, const Ints& sizes) {
  const Op* concat = ProducedBy(v, "concat");
  if (concat == nullptr || concat->operands.size() != sizes.size()) return {};
  if (concat->attrs.Int("axis") != axis) return {};
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (concat->in(i).shape[axis] != sizes[i]) return {};
  }
  return concat->operands;
}

// split(x @ concat(weights)), as optimizers write the products of q, k and v -> x @ each weight:
// where each has its role.
Value* TakeLinearsApart(Builder& b, Op* op) {
  if (op->name() != "split" || !IsLastAxis(op->attrs.Int("axis"), op->in(0).rank())) return nullptr;
  const Ints& sizes = op->attrs.IntList("sizes");
  const Value* all = op->operands[0];
  std::vector<Value*> biases;
  if (Op* add = ProducedBy(all, "add")) {
    for (int i = 0; i < 2 && biases.empty(); ++i) {
      const Value* bias = add->operands[i];
      biases = PiecesOf(bias, bias->type.rank() - 1, sizes);
      if (!biases.empty() && CountUses(all) == 1) all = add->operands[1 - i];
    }
  }
  Op* product = all->producer;
  if (product == nullptr || !IsProduct(product) || product->operands.size() != 2 ||
      product->in(1).rank() != 2 || CountUses(all) != 1) {
    return nullptr;
  }
  const std::vector<Value*> weights =
      PiecesOf(product->operands[1], MultipliesByTransposed(product) ? 0 : 1, sizes);
  auto is_weight = [](const Value* v) { return IsParam(ArrangedFrom(v)); };
  if (weights.empty() || !std::ranges::all_of(weights, is_weight)) return nullptr;
  b.BelongWith(*product);
  for (size_t i = weights.size(); i-- > 0;) {
    Value* y = b.Make(product->name(), {product->operands[0], weights[i]}, product->attrs);
    if (!biases.empty()) y = b.Add(y, biases[i]);
    if (i == 0) return y;
    b.graph().ReplaceAllUses(op->results[i], y);
  }
  return nullptr;
}

}  // namespace

bool SimplifyProducts(Graph& graph) {
  return ApplyRules(graph,
                    {FoldTransposedWeight, UnbroadcastWeight, PutWeightRight, TakeExpertsApart,
                     TakeStackApart, JoinHeads, JoinHeadsSum, TakeLinearsApart});
}

}  // namespace shardc::recover
