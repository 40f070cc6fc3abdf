// A run that mpirun started: one process per rank.
#pragma once

#include <functional>
#include <string>

#include "runtime/session.h"
#include "tools/plan.h"

namespace shardc {

struct LaunchedStates {
  StateReader reader;
  std::string from, gist;  // the option that names a file of them, and GistOf that file; or empty
};

// Every process loads and proves the plan, and takes its own rank's states from what `states`
// gives; all must have read the same. Then rank 0 calls `lead`, whose sessions reach the ranks of
// the other processes, and the others serve it; only rank 0 should print. With `options.noted` all
// processes heed signals (Interrupt) once they serve, rank 0 when `lead` makes an Interrupt and
// calls EndWhenAsked; what `lead` gives back, 0 or what Session::Noted gave it last, is the signal
// that all end by. Otherwise ends the process with the exit code of the error if there was one: a
// process that ends because another failed or was lost ends with 75. Of each error one process says
// one message. Errors of its own: E4303 (no MPI), E4310 (as many processes as ranks are needed),
// E4311 (a process was lost), E4312 (no connection), E4313 (processes have different files
// or options).
[[noreturn]] void RunLaunched(const std::string& folder, const SessionOptions& options,
                              const std::function<LaunchedStates(const Plan&)>& states,
                              const std::function<int(const Plan&, const SessionOptions&)>& lead);

}  // namespace shardc
