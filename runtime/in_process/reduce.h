// Element-wise reduction of several buffers into several copies of the result.
#pragma once

#include <cstdint>
#include <span>

#include "ir/dtype.h"
#include "runtime/communicator.h"

namespace shardc::in_process {

// For begin <= i < end, every destination[i] = source0[i] op source1[i] op ..., from left to right;
// f16 and bf16 accumulate in f32 and round once. A destination may be one of the sources, but may
// not overlap one otherwise. A bool has no kSum.
void Reduce(std::span<const void* const> sources, std::span<void* const> destinations,
            int64_t begin, int64_t end, DType dtype, ReduceOp op);

}  // namespace shardc::in_process
