// Fewer key/value heads than ranks: a mesh axis becomes two.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace shardc {

// A weight that is cut over an axis of n ranks, but feeds an op that shares a dim of its result
// between other operands' (attention shares each of m kv heads between query heads), or is repeated
// for them (kv heads expanded to as many as there are query heads), can be cut in m parts only
// without communication; so can one whose result is summed over in a product of values (m = 1).
// Where m divides n the axis is split: `tp` of 8 becomes `tp.0` of 2 and `tp.1` of 4; what was cut
// over tp is cut over both, in parts of the same size, and such weights over tp.0 alone, so that
// each kv head is repeated on 4 ranks and its gradients are summed over tp.1. With m = 1 such
// weights stay whole and no axis is split.
//
// So it is with values that the spec cuts over an axis of n ranks beside axes that cut the weight
// which they are made with (kv heads over cp beside tp), where these leave m heads to each rank.
// Notes in the graph say so. Runs on the forward graph after the spec is applied and before
// InferLayouts.
void SplitAxes(Graph& graph);

// Whether an axis is called as SplitAxes calls the parts of `axis`: "tp.0" for "tp".
bool IsPartOfAxis(std::string_view name, std::string_view axis);

// In how many parts a cut of the dim over an axis of `ranks` can be made, as SplitAxes has it:
// `ranks`, or m where at least so many query heads share the m.
int64_t NarrowParts(const Value* value, int dim, int64_t ranks, int64_t least_sharers);
// The same of several values, whose heads any number may share.
std::vector<int64_t> NarrowParts(std::span<Value* const> values, int dim, int64_t ranks);

// The same of a dim of a value that the spec cuts over the axis beside those before it of the
// weights that it is made with; not 1.
int64_t NarrowPartsBeside(const Value* value, int dim, int axis, const Mesh& mesh);

// How many heads such a dim has, of which each is for several of `ranks`; 0 where it is none of so
// few.
int64_t SharedHeads(const Value* value, int dim, int64_t ranks);

}  // namespace shardc
