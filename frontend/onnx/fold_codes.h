// Weights that a file's nodes compute from small integers.
#pragma once

#include "frontend/onnx/converter.h"
#include "frontend/onnx/initializers.h"
#include "frontend/onnx/load_model.h"
#include "ir/attributes.h"

namespace shardc::onnx_import {

// Where nodes compute floats from tensors of integers of up to 16 bits, or of such that lie in 32
// bits and are taken out bit by bit, and from scales, element by element (Cast, Sub, Mul; a
// DequantizeLinear whose parts are computed), the result becomes a tensor of floats, which is a
// weight as others are: of the nodes only those stay that move its elements. Not where the result
// is a mask (0 and one other number), where the integers are two numbers and a float tensor of as
// many elements goes into it, which is the weight, nor where they say which rows of a matrix of
// floats, or which of a vector's for another vector, are looked up: that is what is trained. Nodes
// are evaluated by the converters of the table; what they do not evaluate stays. Returns what the
// user should know.
Strings FoldCodes(LoadedModel& model, TensorReader& reader, const ConverterTable& converters);

}  // namespace shardc::onnx_import
