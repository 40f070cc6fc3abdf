// What a GPU reaches at best, for profiles to compare with.
#pragma once

#include "runtime/cuda/device.h"
#include "runtime/cuda/rank_state.h"
#include "runtime/profile.h"

namespace shardc::cuda {

struct PeakSizes {
  int64_t matrix = 8192;              // rows and columns
  int64_t copied = int64_t{1} << 30;  // bytes
};

// By products of square matrices of the program's most costly instruction's type, and by copies.
// What there is no memory or kernel for is zero. Waits.
MachinePeaks MeasurePeaks(Device& device, const Program& program, const KernelMaker& make_kernel,
                          const PeakSizes& sizes = {});

}  // namespace shardc::cuda
