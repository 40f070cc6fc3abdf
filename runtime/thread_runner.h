// Ranks as threads of this process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "runtime/backend.h"

namespace shardc {

// Makes one rank, on the thread that it will run on; `world` is its end of all ranks.
using RankMaker =
    std::function<std::unique_ptr<StepRunner>(int64_t rank, std::unique_ptr<Communicator> world)>;

// Ranks that each are made, run and destroyed by a thread of their own, all at the same time. One
// that fails has to make the others leave its world (AbortFor).
std::unique_ptr<StepRunner> MakeThreadRunner(int64_t ranks, const RankMaker& make);

}  // namespace shardc
