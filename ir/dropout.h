// What ops draw (IsRandom(const Op&)), a function of where an element lies in the whole tensor: the
// same on every mesh, in every piece of a batch, on every backend, forward and backward. Their
// attributes are "seed" and "stream"; "origin" and "whole", of a part; of those that drop elements
// (OpDef::undropped) "ratio"; their last operand is the step.
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
  uint32_t stream = 0;     // which of the model's ops that draw
  uint64_t threshold = 0;  // ratio * 2^32
  double scale = 1;        // 1 / (1 - ratio); 0 where nothing is kept
};
DropoutMask MaskOf(const Attributes& attrs);  // without a ratio all is kept

// The number in [0, 1) that a word stands for: its upper 24 bits, which are a float32.
inline double UniformOf(uint32_t word) { return (word >> 8) * 0x1p-24; }

// The shape of the tensor of which one of shape `part` is a part: the attribute "whole"; without it
// the part is whole.
Shape WholeOf(const Attributes& attrs, const Shape& part);

// For each dim of a part, of the shapes `local` and `global`, and each local index in it: what the
// index adds to an element's place in the whole tensor, or -1 for padding. `runs`: of each dim.
std::vector<std::vector<int64_t>> PlacesOfDims(const Attributes& attrs, const Shape& local,
                                               const Shape& global,
                                               const std::vector<std::vector<Run>>& runs);

// Where the local elements of operand 0 lie in the whole tensor.
struct DropoutPlaces {
  // Per local row (all dims but the last): the element of the whole tensor at which its row there
  // begins, or -1 for a row of padding.
  std::vector<int64_t> rows;
  std::vector<Run> columns;  // of every row; `global` counts from the beginning of the whole's row
};
DropoutPlaces PlacesOf(const KernelCall& call);

}  // namespace shardc
