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

}  // namespace shardc::onnx_import
