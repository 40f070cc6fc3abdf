// Ops that work row by row run on [b, s, h]: reshapes that flatten leading dims move below them,
// reshapes that bring these dims back move above them, and weights stand on the right.
#include <algorithm>
#include <numeric>

#include "frontend/recover/patterns.h"
#include "ir/op_def.h"

namespace shardc::recover {
namespace {

// The x of reshape(x) that merges leading dims and keeps the last one, else null.
Value* Flattened(const Value* v) {
  Op* reshape = ProducedBy(v, "reshape");
  if (reshape == nullptr) return nullptr;
  Value* x = reshape->operands[0];
  bool flattens = v->type.rank() >= 1 && x->type.rank() > v->type.rank() &&
                  x->type.shape.back() == v->type.shape.back();
  return flattens ? x : nullptr;
}

Value* LiftMatmul(Builder& b, Op* op) {
  if (!IsProduct(op) || op->in(0).rank() != 2 || op->in(1).rank() != 2) return nullptr;
  Value* x = Flattened(op->operands[0]);
  return x ? b.Reshape(b.Make(op->name(), {x, op->operands[1]}), op->out().shape) : nullptr;
}

// The order of dims with the last two in each other's place.
Ints SwappedLast(int rank) {
  Ints perm(static_cast<size_t>(rank));
  std::iota(perm.begin(), perm.end(), 0);
  std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  return perm;
}

// weight @ x^T, as of channels before positions, is (x @ weight^T)^T: a product of all rows with
// one weight.
Value* TurnMatmul(Builder& b, Op* op) {
  if (!IsProduct(op) || op->in(0).rank() != 2 || op->in(1).rank() < 3) return nullptr;
  Value* x = op->operands[1];
  if (!MultipliesByTransposed(op)) {
    const Op* transpose = ProducedBy(x, "transpose");
    if (transpose == nullptr || !IsPerm(transpose, SwappedLast(x->type.rank()))) return nullptr;
    x = transpose->operands[0];
  }
  if (!IsParam(ArrangedFrom(op->operands[0])) || IsParam(ArrangedFrom(x))) return nullptr;
  return b.Transpose(b.Make("matmul_nt", {x, op->operands[0]}), SwappedLast(x->type.rank()));
}

// What stands for v, an operand next to the flattened x, once the op works on x; null if nothing
// does. v may vary along the trailing dims that flattening leaves alone, or be flattened from x's
// shape itself.
Value* RowOperand(Builder& b, Value* v, const Shape& flat, const Shape& shape) {
  Value* x = Flattened(v);
  if (x && x->type.shape == shape) return x;
  size_t common = 0;
  while (common < flat.size() &&
         flat[flat.size() - 1 - common] == shape[shape.size() - 1 - common]) {
    ++common;
  }
  const Shape& own = v->type.shape;
  size_t tail = std::min(common, own.size());
  if (std::all_of(own.begin(), own.end() - tail, [](int64_t d) { return d == 1; })) {
    return b.Reshape(v, Shape(own.end() - tail, own.end()));
  }
  // It broadcasts, but varies along all that was flattened: taken apart alike.
  size_t lead = flat.size() - tail;
  if (own == flat || own.size() != flat.size() ||
      !std::equal(own.begin(), own.begin() + lead, flat.begin())) {
    return nullptr;
  }
  Shape apart(shape.begin(), shape.end() - tail);
  apart.insert(apart.end(), own.end() - tail, own.end());
  return b.Reshape(v, std::move(apart));
}

Value* LiftElementwise(Builder& b, Op* op) {
  if (!op->def->elementwise || op->results.size() != 1) return nullptr;
  Value* whole = nullptr;
  for (Value* v : op->operands) {
    if (whole == nullptr && v->type.shape == op->out().shape) whole = Flattened(v);
  }
  if (whole == nullptr) return nullptr;
  std::vector<Value*> operands;
  for (Value* v : op->operands) {
    operands.push_back(RowOperand(b, v, op->out().shape, whole->type.shape));
    if (operands.back() == nullptr) return nullptr;
  }
  return b.Reshape(b.Create(op->name(), std::move(operands), op->attrs)->result(), op->out().shape);
}

Value* LiftTranspose(Builder& b, Op* op) {
  if (op->name() != "transpose" || !IsPerm(op, {0, 2, 1})) return nullptr;
  Value* x = Flattened(op->operands[0]);
  if (x == nullptr || x->type.rank() != 4 || x->type.shape[2] != op->in(0).shape[1]) return nullptr;
  return b.Reshape(b.Transpose(x, {0, 1, 3, 2}), op->out().shape);
}

// Batched matmuls over [b * h, s, d], and the softmax between them.
Value* LiftBatchMatmul(Builder& b, Op* op) {
  if (op->name() != "matmul" || op->in(0).rank() != 3 || op->in(1).rank() != 3) return nullptr;
  Value *x = Flattened(op->operands[0]), *y = Flattened(op->operands[1]);
  if (x == nullptr || y == nullptr || x->type.rank() != y->type.rank()) return nullptr;
  auto rows_kept = [](const Value* from, const TensorType& to) {
    return from->type.shape[from->type.rank() - 2] == to.shape[1];
  };
  if (!rows_kept(x, op->in(0)) || !rows_kept(y, op->in(1)) ||
      !std::equal(x->type.shape.begin(), x->type.shape.end() - 2, y->type.shape.begin())) {
    return nullptr;
  }
  return b.Reshape(b.Matmul(x, y), op->out().shape);
}

Value* LiftSoftmax(Builder& b, Op* op) {
  if (op->name() != "softmax") return nullptr;
  Value* x = Flattened(op->operands[0]);
  if (x == nullptr || !IsLastAxis(op->attrs.Int("axis"), op->out().rank())) return nullptr;
  Value* y = b.Make("softmax", {x}, {{"axis", int64_t{x->type.rank() - 1}}});
  return b.Reshape(y, op->out().shape);
}

// Elements are drawn by their order, which a reshape keeps.
bool DropsWhole(const Op* op) { return op->name() == "dropout" && !op->attrs.Has("whole"); }

Value* LiftDropout(Builder& b, Op* op) {
  Value* x = DropsWhole(op) ? Flattened(op->operands[0]) : nullptr;
  if (x == nullptr) return nullptr;
  return b.Reshape(b.Make("dropout", {x, op->operands[1]}, op->attrs), op->out().shape);
}

Value* LiftNorm(Builder& b, Op* op) {
  Value* x = IsNorm(op) ? Flattened(op->operands[0]) : nullptr;
  if (x == nullptr || !OnlyFirstResultRead(*op)) return nullptr;
  std::vector<Value*> operands = op->operands;
  operands[0] = x;
  return b.Reshape(b.Create(op->name(), std::move(operands), op->attrs)->result(), op->out().shape);
}

// Where heads are merged straight into flat rows there is no [b, s, h] above the matmul: the shape
// comes from below.
Value* RaiseUnflatten(Builder& b, Op* op) {
  if (op->name() != "reshape" || op->in(0).rank() != 2 || op->out().rank() < 3) return nullptr;
  const Shape& shape = op->out().shape;
  Op* maker = op->operands[0]->producer;
  if (maker == nullptr || op->in(0).shape[1] != shape.back() || maker->results.size() != 1 ||
      CountUses(maker->result()) != 1) {
    return nullptr;
  }
  b.BelongWith(*maker);
  if (IsProduct(maker) && maker->in(1).rank() == 2) {
    Shape rows = shape;
    rows.back() = maker->in(0).shape[1];
    return b.Make(maker->name(),
                  {b.Reshape(maker->operands[0], std::move(rows)), maker->operands[1]});
  }
  if (!maker->def->elementwise && !DropsWhole(maker)) return nullptr;
  std::vector<Value*> operands;
  bool whole = false;  // one of them gives the result its shape
  for (Value* v : maker->operands) {
    const Shape& own = v->type.shape;
    if (own == maker->out().shape) {
      whole = true;
      operands.push_back(b.Reshape(v, shape));
    } else if (own.size() < 2 || own[0] == 1) {
      operands.push_back(own.size() < 2 ? v : b.Reshape(v, {own[1]}));
    } else {
      return nullptr;
    }
  }
  if (!whole) return nullptr;
  return b.Create(maker->name(), std::move(operands), maker->attrs)->result();
}

}  // namespace

bool LiftLinears(Graph& graph) {
  return ApplyRules(graph, {LiftMatmul, TurnMatmul, LiftTranspose, LiftBatchMatmul, LiftElementwise,
                            LiftSoftmax, LiftDropout, LiftNorm, RaiseUnflatten});
}

}  // namespace shardc::recover
