// The reduction of shared_device.
#pragma once

#include "runtime/cuda/device.h"

namespace shardc::cuda {

// Enqueues r on the launch's stream. Throws Diagnostic E4301.
void LaunchReduction(const Launch& launch, const Reduction& r);
namespace emulated {
void LaunchReduction(const Launch& launch, const Reduction& r);
}

}  // namespace shardc::cuda
