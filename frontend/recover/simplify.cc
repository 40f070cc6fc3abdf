// Local rewrites that make exporters' spellings alike before and between the patterns.
#include <algorithm>
#include <numeric>

#include "frontend/recover/patterns.h"
#include "ir/op_def.h"
#include "ir/row_major.h"

namespace shardc::recover {
namespace {

constexpr int kMostBetween = 500;  // ops between two transposes that cancel each other

Value* FoldReshape(Builder& b, Op* op) {
  if (op->name() != "reshape") return nullptr;
  Value* x = op->operands[0];
  if (x->type.shape == op->out().shape) return x;
  if (const HostTensor* data = ConstantOf(x)) return b.Constant(data->Reshaped(op->out().shape));
  Op* inner = ProducedBy(x, "reshape");
  return inner ? b.Reshape(inner->operands[0], op->out().shape) : nullptr;
}

Value* FoldTranspose(Builder& b, Op* op) {
  if (op->name() != "transpose") return nullptr;
  const Ints& perm = op->attrs.IntList("perm");
  if (std::is_sorted(perm.begin(), perm.end())) return op->operands[0];
  Op* inner = ProducedBy(op->operands[0], "transpose");
  if (inner == nullptr) return nullptr;
  Ints combined;
  for (int64_t p : perm) combined.push_back(inner->attrs.IntList("perm")[p]);
  return b.Transpose(inner->operands[0], std::move(combined));
}

// reshape(transpose(reshape(x))); null where the op is not the outer reshape of that.
struct ReshapedTranspose {
  explicit ReshapedTranspose(const Op* op) {
    if (op->name() == "reshape") transpose = ProducedBy(op->operands[0], "transpose");
    if (transpose) inner = ProducedBy(transpose->operands[0], "reshape");
  }
  Op *transpose = nullptr, *inner = nullptr;
};

// reshape(transpose(reshape(x))) where the reshapes only regroup leading dims that the transpose
// leaves in place: how exporters transpose the last two dims of a tensor of rank 4.
Value* FoldTransposeBetweenReshapes(Builder& b, Op* op) {
  const auto [transpose, inner] = ReshapedTranspose(op);
  if (inner == nullptr) return nullptr;
  const Ints& perm = transpose->attrs.IntList("perm");
  size_t lead = 0;
  while (lead < perm.size() && perm[lead] == static_cast<int64_t>(lead)) ++lead;
  size_t tail = perm.size() - lead;
  auto same_tail = [&](const Shape& a, const Shape& b) {
    return a.size() >= tail && b.size() >= tail &&
           std::equal(a.end() - tail, a.end(), b.end() - tail);
  };
  Value* x = inner->operands[0];
  if (lead == 0 || !same_tail(x->type.shape, inner->out().shape) ||
      !same_tail(op->out().shape, transpose->out().shape)) {
    return nullptr;
  }
  Shape shape(op->out().shape.begin(), op->out().shape.end() - tail);
  size_t new_lead = shape.size();
  shape.insert(shape.end(), x->type.shape.end() - tail, x->type.shape.end());
  Ints new_perm(new_lead);
  std::iota(new_perm.begin(), new_perm.end(), 0);
  for (size_t i = lead; i < perm.size(); ++i) {
    new_perm.push_back(perm[i] - static_cast<int64_t>(lead) + static_cast<int64_t>(new_lead));
  }
  return b.Transpose(b.Reshape(x, std::move(shape)), std::move(new_perm));
}

// Whether `to` takes the dims of `from` apart and merges none.
bool TakesApart(const Shape& from, const Shape& to) {
  size_t at = 0;
  for (int64_t n : from) {
    int64_t taken = 1;
    while (at < to.size() && (taken < n || to[at] == 1)) taken *= to[at++];
    if (taken != n) return false;
  }
  return at == to.size();
}

// For each dim of `from` the dims into which it must come apart, so that only whole ones are merged
// to form `to`; nothing where the boundaries do not fit.
std::optional<std::vector<Shape>> CommonParts(const Shape& from, const Shape& to) {
  std::vector<Shape> parts;
  size_t j = 0;
  int64_t open = 1;  // what is left of a dim of `to`
  for (int64_t left : from) {
    Shape& part = parts.emplace_back();
    while (left > 1) {
      while (open == 1) {
        if (j == to.size()) return std::nullopt;
        open = to[j++];
      }
      const int64_t n = std::min(left, open);
      if (n == 0 || left % n != 0 || open % n != 0) return std::nullopt;
      part.push_back(n);
      left /= n;
      open /= n;
    }
    if (part.empty()) part.push_back(1);
  }
  return parts;
}

// reshape(transpose(reshape(x))) where the last reshape takes apart what the first has merged, as
// batch and heads are around bmm: the transpose moves each of the dims, and nothing is merged, or
// only whole dims of x are, as kv heads with what repeats them.
Value* TransposeDimsApart(Builder& b, Op* op) {
  const auto [transpose, inner] = ReshapedTranspose(op);
  if (inner == nullptr) return nullptr;
  Value* x = inner->operands[0];
  std::optional<std::vector<Shape>> parts = CommonParts(transpose->out().shape, op->out().shape);
  if (!parts || TakesApart(x->type.shape, inner->out().shape)) return nullptr;
  const Ints& perm = transpose->attrs.IntList("perm");
  std::vector<size_t> place(perm.size());  // of a dim of `inner` in the transpose's result
  for (size_t i = 0; i < perm.size(); ++i) place[perm[i]] = i;
  Shape shape;
  std::vector<int64_t> first(perm.size());  // of the dims that one of `inner` comes apart into
  for (size_t d = 0; d < perm.size(); ++d) {
    first[d] = static_cast<int64_t>(shape.size());
    const Shape& part = (*parts)[place[d]];
    shape.insert(shape.end(), part.begin(), part.end());
  }
  if (!TakesApart(x->type.shape, shape) &&
      (!TakesApart(shape, x->type.shape) || TakesApart(shape, inner->out().shape))) {
    return nullptr;
  }
  Ints moved;
  for (size_t i = 0; i < perm.size(); ++i) {
    for (size_t k = 0; k < (*parts)[i].size(); ++k) {
      moved.push_back(first[perm[i]] + static_cast<int64_t>(k));
    }
  }
  Value* apart = b.Transpose(b.Reshape(x, std::move(shape)), std::move(moved));
  return b.Reshape(apart, op->out().shape);
}

// reshape(transpose(reshape(x))) where the first reshape takes dims apart whose parts the transpose
// leaves beside each other, as heads into groups, or only adds dims of 1 -> the transpose of x.
Value* TransposeDimsTogether(Builder& b, Op* op) {
  const auto [transpose, inner] = ReshapedTranspose(op);
  if (inner == nullptr) return nullptr;
  Value* x = inner->operands[0];
  const Shape &from = x->type.shape, &to = inner->out().shape;
  if (to.size() <= from.size() || !TakesApart(from, to)) return nullptr;
  std::vector<Ints> parts(from.size());  // of each dim of x
  size_t at = 0;
  for (size_t d = 0; d < from.size(); ++d) {
    for (int64_t left = from[d]; left > 1; left /= to[at++]) {
      if (to[at] != 1) parts[d].push_back(static_cast<int64_t>(at));
    }
  }
  Ints moved = transpose->attrs.IntList("perm"), perm;
  std::erase_if(moved, [&](int64_t i) { return to[i] == 1; });
  auto put_ones = [&] {  // they stay where they are
    while (perm.size() < from.size() && from[perm.size()] == 1) {
      perm.push_back(static_cast<int64_t>(perm.size()));
    }
  };
  for (auto next = moved.begin(); next != moved.end();) {
    auto part = std::ranges::find_if(
        parts, [&](const Ints& dims) { return !dims.empty() && dims[0] == *next; });
    if (part == parts.end() || moved.end() - next < std::ssize(*part)) return nullptr;
    if (!std::equal(part->begin(), part->end(), next)) return nullptr;
    put_ones();
    perm.push_back(part - parts.begin());
    next += std::ssize(*part);
  }
  put_ones();
  if (std::ranges::is_sorted(perm)) return nullptr;  // it only moves dims of 1
  return b.Reshape(b.Transpose(x, std::move(perm)), op->out().shape);
}

Value* FoldBroadcast(Builder& b, Op* op) {
  if (op->name() != "broadcast_to") return nullptr;
  Value* x = op->operands[0];
  if (x->type.shape == op->out().shape) return x;
  Op* inner = ProducedBy(x, "broadcast_to");
  return inner ? b.BroadcastTo(inner->operands[0], op->out().shape) : nullptr;
}

// One value many times along a dim of 1, as kv heads are stacked for all that share them: a
// broadcast, which is seen through.
Value* ConcatOfOne(Builder& b, Op* op) {
  if (op->name() != "concat") return nullptr;
  Value* x = op->operands[0];
  const bool same = std::ranges::all_of(op->operands, [&](const Value* v) { return v == x; });
  if (!same || x->type.shape[AxisOf(op->attrs, x->type.rank())] != 1) return nullptr;
  return b.BroadcastTo(x, op->out().shape);
}

Value* FoldSliceCastConcat(Builder&, Op* op) {
  bool slice = op->name() == "slice", cast = op->name() == "cast";
  bool single = (op->name() == "concat" || op->name() == "split") && op->operands.size() == 1 &&
                op->results.size() == 1;
  if (!slice && !cast && !single) return nullptr;
  if (!op->in(0).SameTensor(op->out())) return nullptr;
  if (slice) {
    // A slice of full size may still run backwards.
    for (int64_t step : op->attrs.IntList("steps")) {
      if (step < 0) return nullptr;
    }
  }
  return op->operands[0];
}

// x * 1, x / 1, x + 0, x - 0, x ^ 1, b and true, b or false.
Value* FoldNeutral(Builder&, Op* op) {
  struct Neutral {
    std::string_view op;
    double value;
    bool commutes;
  };
  constexpr Neutral kNeutral[] = {{"mul", 1, true},  {"div", 1, false}, {"add", 0, true},
                                  {"sub", 0, false}, {"pow", 1, false}, {"and", 1, true},
                                  {"or", 0, true}};
  for (const Neutral& n : kNeutral) {
    if (op->name() != n.op || op->attrs.Bool("detached", false)) continue;
    for (int i = 0; i < (n.commutes ? 2 : 1); ++i) {
      if (op->in(i).SameTensor(op->out()) && IsSplat(op->operands[1 - i], n.value)) {
        return op->operands[i];
      }
    }
  }
  return nullptr;
}

Value* FoldWhere(Builder& b, Op* op) {
  if (op->name() != "where") return nullptr;
  if (std::optional<double> condition = SplatOf(op->operands[0])) {
    return b.BroadcastTo(op->operands[*condition != 0 ? 1 : 2], op->out().shape);
  }
  if (Op* negated = ProducedBy(op->operands[0], "not")) {
    return b.Make("where", {negated->operands[0], op->operands[2], op->operands[1]});
  }
  return nullptr;
}

// A parameter, or a slice of one, as position embeddings are.
bool IsParameter(const Value* v) {
  const Op* op = v->producer;
  return op && (op->def->is_state || (op->name() == "slice" && IsParameter(op->operands[0])));
}

// With a batch of 1 exporters leave out leading dims of 1 here and there: what an elementwise op
// does not broadcast gets the shape of its result, so that patterns see one value under one shape.
Value* AddLeadingOnes(Builder& b, Op* op) {
  if (!op->def->elementwise || op->operands.size() < 2 || op->results.size() != 1) return nullptr;
  const TensorType& out = op->out();
  for (size_t i = 0; i < op->operands.size(); ++i) {
    const TensorType& in = op->operands[i]->type;
    if (in.rank() == out.rank() || in.num_elements() != out.num_elements()) continue;
    if (IsParameter(op->operands[i])) continue;
    std::vector<Value*> operands = op->operands;
    operands[i] = b.Reshape(operands[i], out.shape);
    return b.Make(op->name(), std::move(operands), op->attrs);
  }
  return nullptr;
}

// An elementwise op broadcasts by itself: a broadcast or leading dims of 1 made for it are not
// needed.
Value* DropExplicitBroadcast(Builder& b, Op* op) {
  if (!op->def->elementwise || op->operands.size() < 2 || op->results.size() != 1) return nullptr;
  for (size_t i = 0; i < op->operands.size(); ++i) {
    Op* maker = op->operands[i]->producer;
    if (maker == nullptr || (maker->name() != "broadcast_to" && maker->name() != "reshape"))
      continue;
    Value* x = maker->operands[0];
    if (maker->name() == "reshape") {
      const Shape &from = x->type.shape, &to = maker->out().shape;
      if (to.size() <= from.size() || x->type.num_elements() == op->out().num_elements() ||
          !std::equal(from.begin(), from.end(), to.end() - from.size()) ||
          std::any_of(to.begin(), to.end() - from.size(), [](int64_t d) { return d != 1; })) {
        continue;
      }
    }
    std::optional<Shape> shape = x->type.shape;
    for (size_t j = 0; j < op->operands.size() && shape; ++j) {
      if (j != i) shape = Broadcast(*shape, op->operands[j]->type.shape);
    }
    if (!shape || *shape != op->out().shape) continue;
    std::vector<Value*> operands = op->operands;
    operands[i] = x;
    return b.Make(op->name(), std::move(operands), op->attrs);
  }
  return nullptr;
}

// What a transpose orders, an elementwise function of it and dims of 1 between the two leave, and a
// second transpose puts back, as models do whose convolutions have channels first: neither.
Value* CancelTransposes(Builder& b, Op* op) {
  if (op->name() != "transpose") return nullptr;
  // Which of the dims of v that are not 1 is which of the result's.
  std::vector<size_t> order;
  auto reorder = [&order](const Op* transpose) {
    const Ints& perm = transpose->attrs.IntList("perm");
    const Shape& shape = transpose->in(0).shape;
    std::vector<size_t> of_all(perm.size()), moved;
    size_t next = 0;
    for (size_t d = 0; d < shape.size(); ++d) of_all[d] = shape[d] == 1 ? 0 : next++;
    for (int64_t p : perm) {
      if (shape[p] != 1) moved.push_back(of_all[p]);
    }
    if (order.empty()) {
      order = std::move(moved);
    } else {
      for (size_t& at : order) at = moved[at];
    }
  };
  auto without_ones = [](Shape shape) {
    std::erase(shape, 1);
    return shape;
  };
  auto in_order = [&order] { return std::is_sorted(order.begin(), order.end()); };
  reorder(op);
  if (in_order()) return nullptr;  // it only moves dims of 1, which patterns look for
  std::vector<const Op*> functions;
  Value* v = op->operands[0];
  while (const Op* maker = in_order() ? nullptr : v->producer) {
    if (maker->name() == "transpose") {
      reorder(maker);
      v = maker->operands[0];
    } else if (maker->name() == "reshape" &&
               without_ones(maker->in(0).shape) == without_ones(v->type.shape)) {
      v = maker->operands[0];
    } else if (maker->def->elementwise && maker->operands.size() == 1 && CountUses(v) == 1) {
      functions.push_back(maker);
      v = maker->operands[0];
    } else {
      break;
    }
  }
  if (!in_order()) return nullptr;
  for (auto f = functions.rbegin(); f != functions.rend(); ++f) {
    v = b.Make((*f)->name(), {v}, (*f)->attrs);
  }
  return b.Reshape(v, op->out().shape);
}

// What a transpose by `perm` makes of a product of two that are both computed, as einsum's of
// "btnh,bsnh->bnst": the product of the transposes. Scores are larger than what they are made of.
Value* TransposedProduct(Builder& b, const Op* product, const Ints& perm) {
  const auto rank = std::ssize(perm);
  Ints swap(perm.size());
  std::iota(swap.begin(), swap.end(), 0);
  if (product->operands.size() != 2 || rank < 3 || CountUses(product->result()) != 1)
    return nullptr;
  std::swap(swap[rank - 1], swap[rank - 2]);
  Value *x = product->operands[0], *y = product->operands[1];
  if (perm != swap || x->type.rank() != rank || y->type.rank() != rank ||
      IsParam(ArrangedFrom(x)) || IsParam(ArrangedFrom(y))) {
    return nullptr;
  }
  if (product->name() == "matmul") y = b.Transpose(y, swap);
  return b.Make("matmul_nt", {y, x});
}

// What a transpose by `perm` makes of v, where that takes no transpose of as many elements: it
// undoes one, or is one of a product, and between the two are elementwise ops and softmaxes; else
// null.
Value* Undone(Builder& b, Value* v, const Ints& perm, int steps = kMostBetween) {
  Op* maker = v->producer;
  if (maker == nullptr || steps == 0) return nullptr;
  if (IsProduct(maker)) return TransposedProduct(b, maker, perm);
  if (maker->name() == "transpose") {
    const Ints& inner = maker->attrs.IntList("perm");
    for (size_t i = 0; i < perm.size(); ++i) {
      if (inner[perm[i]] != static_cast<int64_t>(i)) return nullptr;
    }
    return maker->operands[0];
  }
  const bool softmax = maker->name() == "softmax";
  if ((!softmax && !maker->def->elementwise) || maker->results.size() != 1 || CountUses(v) != 1)
    return nullptr;
  std::vector<Value*> operands;
  bool undoes = false;
  for (Value* x : maker->operands) {
    if (x->type.num_elements() == v->type.num_elements()) {
      x = x->type.shape == v->type.shape ? Undone(b, x, perm, steps - 1) : nullptr;
      if (x == nullptr) return nullptr;
      undoes = true;
    } else if (x->type.num_elements() > 1) {
      Shape shape(v->type.rank() - x->type.rank(), 1);
      shape.insert(shape.end(), x->type.shape.begin(), x->type.shape.end());
      x = b.Transpose(b.Reshape(x, std::move(shape)), perm);
    }
    operands.push_back(x);
  }
  if (!undoes) return nullptr;
  Attributes attrs = maker->attrs;
  if (softmax) {
    const int64_t axis = AxisOf(attrs, v->type.rank());
    attrs.Set("axis", int64_t{std::ranges::find(perm, axis) - perm.begin()});
  }
  return b.Make(maker->name(), std::move(operands), std::move(attrs));
}

// Scores that are masked and normalised in another order of their dims than the products around
// have, as einsum makes of "bshd,bthd->bsht".
Value* CancelTransposesAroundMasks(Builder& b, Op* op) {
  if (op->name() != "transpose" || !op->operands[0]->producer) return nullptr;
  if (op->operands[0]->producer->name() == "transpose") return nullptr;
  return Undone(b, op->operands[0], op->attrs.IntList("perm"));
}

}  // namespace

bool Simplify(Graph& graph) {
  return ApplyRules(graph, {FoldReshape, FoldTranspose, FoldTransposeBetweenReshapes,
                            TransposeDimsApart, TransposeDimsTogether, FoldBroadcast, ConcatOfOne,
                            FoldSliceCastConcat, FoldNeutral, FoldWhere, AddLeadingOnes,
                            DropExplicitBroadcast, CancelTransposes, CancelTransposesAroundMasks});
}

}  // namespace shardc::recover
