// Where elements of parts lie in the whole tensor, for messages: a rank may have a part of the
// tensor that an op is given, and the op a part of the whole, as its attribute "origin" says.
#pragma once

#include "ir/kernel_call.h"

namespace shardc {

// Where the elements of an operand begin in the tensor of which it is a part.
Shape OriginOf(const Attributes& attrs, int rank);

// The indices in the whole tensor of an element of a view, which is no padding.
Shape PlaceInWhole(const KernelCall& call, const TensorView& view, int64_t element);

}  // namespace shardc
