// Which dims of a tensor a rule of a spec means.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace shardc {

// A dim that a rule counts.
struct CountedDim {
  Ints dims;  // of the tensor that stand for it, major to minor
  // Of a dim in which matrices lie one behind the other, as `stacked` of a param says: what they
  // count, or what each one has.
  enum class Of : uint8_t { kAll, kStack, kEach };
  Of of = Of::kAll;
};
using CountedDims = std::vector<CountedDim>;

// Every dim for itself, as rules by name count.
CountedDims EachDim(const TensorType& type);
// By role a weight is a matrix, a bias a vector, or several of them in a tensor: [experts, rows,
// columns].
CountedDims DimsByRole(const Op& param);

// How a dim is laid out that is cut so, as far as that is known: whole matrices of a stack, or a
// part of each.
DimSharding LayoutOf(const Op& param, const CountedDim& counted);

// Whether the dim is of kv heads that are fewer than the parts, for which SplitAxes splits an axis.
bool IsShared(const Value* value, int64_t dim, int64_t parts);
// Whether the dim that these stand for has fewer elements than parts, and is not shared.
bool IsShort(const Value* value, const Ints& dims, int64_t parts);
// Of several dims that stand for one of enough elements, whether none has enough itself.
bool IsTooFine(const Value* value, const Ints& dims, int64_t parts);
// Which of the dims that stand for one is cut: shared kv heads, else the one along which users want
// the one dim cut, else the first with enough elements for which that costs nothing, or at all.
int64_t DimToCutOf(const Value* value, const Ints& dims, int64_t parts);

}  // namespace shardc
