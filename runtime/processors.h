// Which processors this process may use, of however many the machine has.
#pragma once

#include <span>
#include <vector>

namespace shardc {

// Those that taskset and containers leave to the calling thread, ascending; empty where the system
// does not say.
std::vector<int> UsableProcessors();

// How many they are, and of the machine where the system does not say; at least 1.
int CountUsableProcessors();

// Keeps the calling thread, and those that it starts from now on, to these. Without the right to
// that nothing happens: all is only slower.
void RunOn(std::span<const int> processors);

}  // namespace shardc
