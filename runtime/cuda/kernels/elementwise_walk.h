// What the elementwise kernels of all types decide on the host.
#pragma once

#include <optional>
#include <span>

#include "runtime/cuda/kernels/geometry.h"
#include "runtime/kernel.h"

namespace shardc::cuda {

// The walk over the result (strides[0]) and the operands (strides[i + 1]) as they broadcast to it.
// Nothing when there are not `inputs` of them, or too many dims for a kernel.
std::optional<Walk> ElementwiseWalk(const KernelCall& call, size_t inputs);

// Whether the result and every operand can be read `n` elements at a time. sizes: of an element of
// the result, then of each operand's.
bool CanPack(const KernelCall& call, const Walk& walk, int n, std::span<const size_t> sizes);

}  // namespace shardc::cuda
