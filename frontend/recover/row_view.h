// Elements of the rows of a value, followed back through the ops that moved them there.
#pragma once

#include <optional>
#include <vector>

#include "ir/builder.h"
#include "ir/graph.h"

namespace shardc::recover {

// The last `trailing` dims of v are its rows, the others (the lead) count them; of each row the
// elements at these places of the flattened row.
struct RowView {
  Value* v = nullptr;
  int trailing = 1;
  Ints at;

  Shape Lead() const { return {v->type.shape.begin(), v->type.shape.end() - trailing}; }
  Shape Row() const { return {v->type.shape.end() - trailing, v->type.shape.end()}; }
  int64_t size() const { return NumElements(Row()); }
};

// The same elements before the op that made v, of as many rows: it only moves elements within them,
// or widens floats. Nothing where it does anything else, or takes the places from several operands.
std::optional<RowView> Moved(const RowView& view);
// The same elements before a reshape that counted the rows by other dims, in their order: what is
// broadcast beside them may no longer be so beside the result.
std::optional<RowView> BeforeReshape(const RowView& view);
// The elements of an operand of an elementwise op that go with those of its result.
RowView OperandOf(const RowView& result, Value* operand);
// Whether both hold the same elements for all inputs: by where they come from, by constants' bits,
// or because equal ops make them of such. False where that is not found within a bound.
bool SameElements(const RowView& a, const RowView& b);
// A value of shape [lead..., places], by ops in front of the builder's place; null where a
// place is named twice, or that takes more than slices and what may be computed on fewer elements.
Value* Take(Builder& b, const RowView& view);

}  // namespace shardc::recover
