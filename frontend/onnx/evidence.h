// Whether a network computes with a tensor as with a parameter.
#pragma once

#include <functional>

#include "frontend/onnx/table_kind.h"
#include "frontend/onnx/uses.h"

namespace shardc::onnx_import {

// Follows the tensor through what rearranges it to the places where it meets what is computed: a
// factor of a product, a table of which data picks rows, a scale of one dim, or what is added; not
// a mask, a distance, a slope, a fill or what decides which experts are chosen. `kind` tells what
// its numbers are, and is asked only where that decides.
bool IsTrained(const onnx::TensorProto& tensor, const Uses& uses,
               const std::function<TableKind()>& kind);

// The same of a tensor of one element, where it is first put through a function as what a model
// keeps of a scale that must not be just anything (the logarithm of a temperature, the gate of a
// residual): as it is, it may be a constant.
bool IsTrainedScale(const onnx::TensorProto& tensor, const Uses& uses);

}  // namespace shardc::onnx_import
