// Ranks as threads of one process.
#pragma once

#include <memory>
#include <vector>

#include "runtime/communicator.h"

namespace shardc {

// A world of n ranks; result[r] belongs to rank r and may be moved to any thread. Worlds are
// independent of each other. Throws std::invalid_argument if n < 1.
std::vector<std::unique_ptr<Communicator>> MakeInProcessWorld(int n);

}  // namespace shardc
