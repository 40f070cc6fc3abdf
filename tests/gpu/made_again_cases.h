// Values that gradients make again (OpDef::makes_again) have the bits that the forward gave them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/gpu/kernel_cases.h"

namespace shardc::testing {

// Norms of rows that kernels take in all their ways, and then their gradients, by `run`, which
// gives the results of a case, or none where it has no kernel. Returns where bits differ, or that
// there was nothing to compare; "" else.
std::string WhereMadeAgainDiffers(
    const std::function<std::vector<HostTensor>(const KernelCase&)>& run);

}  // namespace shardc::testing
