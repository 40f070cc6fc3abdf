// The mask of the op `dropout`, a function of where an element lies in the whole tensor: the same
// on every mesh, in every piece of a batch, on every backend, forward and backward.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/kernel_call.h"

namespace shardc {

// Element i of the whole tensor, in row-major order, draws word i % 4 of
//   Philox4x32(counter = {i / 4, i / 2^34, stream, step}, key = seed)
// and is kept, times `scale`, where the word is at least `threshold`.
struct DropoutMask {
  uint64_t seed = 0;
  uint32_t stream = 0;     // which dropout of the model
  uint64_t threshold = 0;  // ratio * 2^32
  double scale = 1;        // 1 / (1 - ratio); 0 where nothing is kept
};
DropoutMask MaskOf(const Attributes& attrs);

// The shape of the tensor of which the operand, of shape `part`, is a part: the attribute "whole";
// without it the operand is whole.
Shape WholeOf(const Attributes& attrs, const Shape& part);

// Where the local elements of a dropout's operand lie in the whole tensor.
struct DropoutPlaces {
  // Per local row (all dims but the last): the element of the whole tensor at which its row there
  // begins, or -1 for a row of padding.
  std::vector<int64_t> rows;
  std::vector<Run> columns;  // of every row; `global` counts from the beginning of the whole's row
};
DropoutPlaces PlacesOf(const KernelCall& call);

}  // namespace shardc
