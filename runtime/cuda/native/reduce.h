// The reduction of shared_device.
#pragma once

#include "runtime/cuda/device.h"

namespace shardc::cuda {

// Enqueues r on a device with that many multiprocessors. Throws Diagnostic E4301.
void LaunchReduction(const Reduction& r, int sm_count, Stream s);

}  // namespace shardc::cuda
