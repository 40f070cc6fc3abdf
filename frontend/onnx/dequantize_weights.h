// Weights that a file holds as small integers with scales, as tensors of floats.
#pragma once

#include <string>

#include "frontend/onnx/initializers.h"
#include "frontend/onnx/load_model.h"
#include "ir/attributes.h"

namespace shardc::onnx_import {

// Undoes what quantizers did to a model, but for the rounding. Where a tensor of the file is
// dequantized (DequantizeLinear, also behind what only moves elements of it; ONNX Runtime's
// MatMulNBits, MatMulBnb4 and GatherBlockQuantized) it becomes a tensor of floats, called as it was
// before, where a quantizer's suffix says so ("w" of "w_quantized"), and ONNX Runtime's ops become
// MatMul and Gather. What computes with integers (QLinearMatMul, DynamicQuantizeMatMul,
// MatMulIntegerToFloat, MatMulInteger whose result is cast and scaled, QGemm, QAttention,
// QLinearAdd and its like) becomes the same of the floats that they stand for, of which activations
// are rounded as before. What is packed otherwise, or whose parts do not fit, stays, and is
// refused when it is converted. Returns what the user should know. Throws what TensorReader throws.
Strings DequantizeWeights(LoadedModel& model, TensorReader& reader);

// What to say of two tensors.
std::string MadeOfTheSame(const std::string& one, const std::string& other);

}  // namespace shardc::onnx_import
