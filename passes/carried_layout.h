// Cuts that what reads a value takes without communication.
#pragma once

#include <optional>

#include "ir/graph.h"

namespace shardc {

// Whether a cut of the dim of a value over `parts` ranks survives the forward ops that use it
// without communication of their operands.
bool CutIsCarried(const Value* value, int dim, int64_t parts);

// The layout in which the forward ops that use a value take a cut of the dim over these axes so;
// nothing where they do not, or it does not leave a granule to each rank.
std::optional<DimSharding> CarriedLayout(const Value* value, int dim, const AxisList& axes,
                                         const Mesh& mesh);

// The layout in which the forward ops that use a value would best take a cut of the dim over these
// axes: as InferLayouts cuts a param that meets no others. Without granule and segments where they
// do not say.
DimSharding WantedLayout(const Value* value, int dim, const AxisList& axes, const Mesh& mesh);

// Of dims of a value, major to minor, that forward ops bring together to one dim: the one along
// which a cut of that dim over `parts` ranks is carried; what is major to it are segments then ([3,
// heads, head_dim] is cut along heads). Nothing where its users ask for no cut, or one along
// several.
std::optional<int64_t> DimToCut(const Value* value, const Ints& dims, int64_t parts);

}  // namespace shardc
