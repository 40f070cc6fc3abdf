// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11): four random
// words as a pure function of a counter and a key.
#pragma once

#include <array>
#include <cstdint>

namespace shardc {

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

}  // namespace shardc
