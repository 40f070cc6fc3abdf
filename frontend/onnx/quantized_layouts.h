// How quantizers lay out the parts of a tensor: codes, scales and zero points.
#pragma once

#include <onnx/onnx_pb.h>

#include <memory>

#include "frontend/onnx/graph_rewriter.h"
#include "frontend/onnx/initializers.h"
#include "frontend/onnx/quantized_tensor.h"

namespace shardc::onnx_import {

// The tensors; `zeros` may be absent (null).
struct QuantizedParts {
  const Stored* codes;
  const Stored* scales;
  const Stored* zeros;
};

using Layout = std::shared_ptr<const QuantizedTensor>;

// Each of these gives the tensor of floats, or null where the parts do not fit each other, or are
// laid out in a way that is not known.

// As DequantizeLinear's inputs: one scale for all, for each index of `axis`, or for each block of
// that many along it (`block` > 0). Of this ONNX type, or of the scales' (0).
Layout LinearLayout(TensorReader& reader, const QuantizedParts& parts, int64_t axis, int64_t block,
                    int onnx_type);
// A MatMulNBits node's matrix [K, N]; `groups` (null: none): for each index of K its scale's.
Layout NBitsLayout(TensorReader& reader, const QuantizedParts& parts, const Stored* groups,
                   const onnx::NodeProto& node);
// A MatMulBnb4 node's matrix, [K, N] or, without transB, [N, K].
Layout Bnb4Layout(TensorReader& reader, const QuantizedParts& parts, const onnx::NodeProto& node);
// A GatherBlockQuantized node's table.
Layout TableLayout(TensorReader& reader, const QuantizedParts& parts, const onnx::NodeProto& node);

}  // namespace shardc::onnx_import
