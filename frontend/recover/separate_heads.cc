// Heads that modules of their own compute, side by side in one tensor: one attention of all heads.
#include <algorithm>

#include "frontend/recover/patterns.h"

namespace shardc::recover {
namespace {

using Values = std::vector<Value*>;

bool AllSame(const Values& values) {
  return std::ranges::all_of(values, [&](const Value* v) { return v == values[0]; });
}

Value* Concat(Builder& b, const Values& values, int64_t axis) {
  return b.Make("concat", values, {{"axis", axis}});
}

// What [b, s, h, d] becomes [b, h, s, d] by, or the other way round: a transpose, or, of one head,
// any op that keeps the order of elements. Null where v is made otherwise.
Value* Swapped(Value* v, int heads) {
  if (Value* x = BeforeSwap(v)) return x;
  return v->type.shape[heads] == 1 ? v : nullptr;
}

// The tensor [..., h * d] that holds the heads of v, which lie in its dim `heads`, row by row; else
// null.
Value* Rows(Value* v, int heads) {
  const int64_t width = v->type.shape[heads] * v->type.shape[3];
  Value* x = heads == 1 ? Swapped(v, heads) : v;
  while (x != nullptr && KeepsOrder(x->producer)) {
    x = x->producer->operands[0];
    if (x->type.rank() >= 2 && x->type.rank() <= 3 && x->type.shape.back() == width) return x;
  }
  return nullptr;
}

// Operand i of what makes each of them, where all are made by one kind of op with the same
// attributes, and read by nothing else; else nothing.
Values OperandsOf(const Values& values, std::string_view op, size_t i) {
  Values operands;
  for (const Value* v : values) {
    const Op* maker = ProducedBy(v, op);
    if (maker == nullptr || CountUses(v) != 1) return {};
    if (maker->attrs != values[0]->producer->attrs) return {};
    operands.push_back(maker->operands[i]);
  }
  return operands;
}

bool AreAlike(const Values& values) {
  return std::ranges::all_of(values, [&](const Value* v) { return v->type == values[0]->type; });
}

bool AreVectors(const Values& values, int64_t size) {
  return !values.empty() &&
         std::ranges::all_of(values, [&](const Value* v) { return v->type.shape == Shape{size}; });
}

// Tensors of one type side by side in the last dim; products of one tensor with several weights as
// one with all of them.
Value* Joined(Builder& b, const Values& rows) {
  for (const char* product : {"matmul", "matmul_nt"}) {
    const Values left = OperandsOf(rows, product, 0), weights = OperandsOf(rows, product, 1);
    if (left.empty() || !AllSame(left) || !AreAlike(weights) || weights[0]->type.rank() != 2) {
      continue;
    }
    const int64_t columns = std::string_view(product) == "matmul" ? 1 : 0;
    return b.Make(product, {left[0], Concat(b, weights, columns)}, rows[0]->producer->attrs);
  }
  return Concat(b, rows, rows[0]->type.rank() - 1);
}

// The same, with the biases of such products.
Value* SideBySide(Builder& b, const Values& rows) {
  if (rows.size() == 1) return rows[0];
  const Shape& shape = rows[0]->type.shape;
  for (size_t bias : {0, 1}) {
    const Values biases = OperandsOf(rows, "add", bias);
    const Values others = OperandsOf(rows, "add", 1 - bias);
    if (!AreVectors(biases, shape.back()) || others[0]->type.shape != shape) continue;
    return b.Add(Joined(b, others), Concat(b, biases, 0));
  }
  return Joined(b, rows);
}

// The table of a rotary, whose x is [b, s, d] or has heads in a dim, for one of [b, s, h, d]; null
// where it tells heads apart.
Value* TableOfAllHeads(Builder& b, Value* table, int64_t rank, int heads) {
  Shape shape(rank - table->type.rank(), 1);
  shape.insert(shape.end(), table->type.shape.begin(), table->type.shape.end());
  if (rank == 4 && shape[heads] != 1) return nullptr;
  if (rank == 4) shape.erase(shape.begin() + heads);
  shape.insert(shape.end() - 1, 1);
  if (shape[0] == 1) shape.erase(shape.begin());
  return b.Reshape(table, std::move(shape));
}

// Of tensors that are turned alike by their positions the ones before, and the tables for all of
// their heads; else nothing.
struct Turned {
  Values values, tables;
  Attributes attrs;

  Value* Again(Builder& b, Value* all) const {
    return b.Make("rotary", {all, tables[0], tables[1]}, attrs);
  }
};

Turned BeforeRotary(Builder& b, const Values& values, int heads) {
  Turned turned{OperandsOf(values, "rotary", 0), {}, {}};
  if (turned.values.empty() || !AreAlike(turned.values)) return {};
  turned.attrs = values[0]->producer->attrs;
  for (size_t i : {1, 2}) {
    const Values tables = OperandsOf(values, "rotary", i);
    Value* table =
        AllSame(tables) ? TableOfAllHeads(b, tables[0], values[0]->type.rank(), heads) : nullptr;
    if (table == nullptr) return {};
    turned.tables.push_back(table);
  }
  return turned;
}

// All heads of such tensors [b, s, h, d], or [b, h, s, d] where heads are in dim 1, as one of the
// layout [b, s, h, d].
Value* HeadsOfRows(Builder& b, const Values& values, int heads) {
  Values rows;
  for (Value* v : values) rows.push_back(Rows(v, heads));
  const bool known = std::ranges::all_of(rows, [](const Value* v) { return v != nullptr; });
  Shape shape = values[0]->type.shape;
  if (heads == 1) std::swap(shape[1], shape[2]);
  // Tables are of the positions that rows have where they are turned: windows may have others.
  const bool by_position =
      known && shape[2] == 1 && rows[0]->type.shape == Shape{shape[0], shape[1], shape[3]};
  shape[2] *= static_cast<int64_t>(values.size());
  if (known && AreAlike(rows)) {
    const Turned turned = by_position ? BeforeRotary(b, rows, heads) : Turned();
    if (turned.values.empty()) return b.Reshape(SideBySide(b, rows), std::move(shape));
    return turned.Again(b, b.Reshape(SideBySide(b, turned.values), std::move(shape)));
  }
  Value* all = Concat(b, values, heads);
  return heads == 1 ? b.Transpose(all, kSwapHeads) : all;
}

// The same, also of tensors that are turned by heads.
Value* AllHeads(Builder& b, const Values& values, int heads) {
  const Turned turned = BeforeRotary(b, values, heads);
  if (turned.values.empty()) return HeadsOfRows(b, values, heads);
  return turned.Again(b, HeadsOfRows(b, turned.values, heads));
}

// The mask of all heads, from those of each attention: the same where it does not tell heads apart.
// Null where there is none for all.
Value* MaskOfAll(Builder& b, const Values& masks, int64_t heads) {
  const Shape& shape = masks[0]->type.shape;
  const auto rank = static_cast<int64_t>(shape.size());
  if (AllSame(masks) && (rank < 3 || shape[rank - 3] == 1)) return masks[0];
  if (rank < 2 || !AreAlike(masks) || heads != (rank < 3 ? 1 : shape[rank - 3])) return nullptr;
  if (rank > 2) return Concat(b, masks, rank - 3);
  Values of_heads;
  for (Value* mask : masks) of_heads.push_back(b.Reshape(mask, {1, shape[0], shape[1]}));
  return Concat(b, of_heads, 0);
}

// The attention whose heads v holds side by side, [..., h * d], and nothing else reads; else null.
Op* AttentionIn(Value* v) {
  const int64_t width = v->type.shape.back();
  for (bool swapped = false; CountUses(v) == 1;) {
    Op* op = v->producer;
    if (op == nullptr) return nullptr;
    if (op->name() == "attention") {
      const Shape& shape = v->type.shape;
      const int heads = HeadsDim(*op);
      const bool in_rows = shape[heads] == 1 || swapped == (heads == 1);
      return OnlyFirstResultRead(*op) && in_rows && shape[heads] * shape[3] == width ? op : nullptr;
    }
    if (BeforeSwap(v) != nullptr && !swapped) {
      swapped = true;
    } else if (!KeepsOrder(op) || swapped) {
      return nullptr;
    }
    v = op->operands[0];
  }
  return nullptr;
}

Value* JoinHeads(Builder& b, Op* op) {
  if (op->name() != "concat" || op->operands.size() < 2) return nullptr;
  if (!IsLastAxis(op->attrs.Int("axis"), op->out().rank())) return nullptr;
  std::vector<Values> operands;  // [operand][attention]
  const Op* first = nullptr;
  for (Value* v : op->operands) {
    const Op* attention = AttentionIn(v);
    if (attention == nullptr || attention->attrs.Has("ratio")) return nullptr;
    if (first == nullptr) {
      first = attention;
      operands.resize(attention->operands.size());
    }
    if (attention->operands.size() != operands.size() || attention->attrs != first->attrs) {
      return nullptr;
    }
    for (size_t i = 0; i < operands.size(); ++i) operands[i].push_back(attention->operands[i]);
  }
  for (size_t i = 0; i < 3; ++i) {
    if (!AreAlike(operands[i])) return nullptr;
  }
  const int heads = HeadsDim(*first);
  Values all;
  if (operands.size() > 3) {
    Value* mask = MaskOfAll(b, operands[3], operands[0][0]->type.shape[heads]);
    if (mask == nullptr) return nullptr;
    all.push_back(mask);
  }
  // One head of keys and values serves all.
  const bool shared =
      AllSame(operands[1]) && AllSame(operands[2]) && operands[1][0]->type.shape[heads] == 1;
  for (int i = 2; i >= 0; --i) {
    const Values& of = operands[static_cast<size_t>(i)];
    all.insert(all.begin(), AllHeads(b, shared && i > 0 ? Values{of[0]} : of, heads));
  }
  Attributes attrs = first->attrs;
  attrs.Set("layout", "bshd");
  return b.Reshape(b.Create("attention", std::move(all), std::move(attrs))->result(),
                   op->out().shape);
}

}  // namespace

bool RecoverSeparateHeads(Graph& graph) { return ApplyRules(graph, {JoinHeads}); }

}  // namespace shardc::recover
