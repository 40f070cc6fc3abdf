// Tensors of one element that are parameters none the less.
#pragma once

#include <string>

#include "frontend/onnx/uses.h"

namespace shardc::onnx_import {

// Whether the tensor, of one element, is what a layer of one output has: each of its uses is the
// weight or the bias of an op that has one by definition (of a convolution, a product, a norm,
// PRelu's slope), or is added to a product with a matrix of the file that has one column. Other
// numbers may be anything.
bool IsWeightOfOneOutput(const std::string& tensor, const Uses& uses);

// Whether each of its uses is one that modules have for what they train, though a constant may be
// used so, too: it scales a branch that is added to what the branch was computed from (x + g f(x),
// ReZero) or what only a tanh or sigmoid reads (tanh(alpha x), DyT), or 1 is added to it before it
// scales what is computed ((1 + eps) x, GIN).
bool IsGateOfModule(const std::string& tensor, const Uses& uses);

}  // namespace shardc::onnx_import
