// Which dims of a tensor a rule of a spec means.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace shardc {

// For each dim that a rule counts, the dims of the tensor that stand for it, major to minor.
using CountedDims = std::vector<Ints>;

// Every dim for itself, as rules by name count.
CountedDims EachDim(const TensorType& type);
// By role a weight is a matrix, a bias a vector, or several of them in a tensor: [experts, rows,
// columns].
CountedDims DimsByRole(const Op& param);

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
