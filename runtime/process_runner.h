// Ranks as processes: rank 0 has the session, and tells the others what to do.
#pragma once

#include <memory>

#include "runtime/backend.h"

namespace shardc {

// On rank 0. `request.options.processes` must have one process per program.
std::unique_ptr<StepRunner> MakeProcessRunner(const RunnerRequest& request);

// On every other rank: does what rank 0's runner asks for, until that is destroyed. Throws what its
// own rank throws, and Diagnostic E4311 (exit 75) when another rank failed or was lost. Returns
// what Session::Noted gave last, or 0.
int ServeProcessRunner(const RunnerRequest& request);

}  // namespace shardc
