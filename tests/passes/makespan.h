// How long a set of programs takes when each instruction takes a given time.
#pragma once

#include <functional>
#include <vector>

#include "ir/program.h"

namespace shardc::testing {

struct MakespanOptions {
  // Of an instruction that is no collective.
  std::function<double(const Instruction&)> seconds;
  // Whether a send goes on only when it is received.
  bool sends_wait = false;
};

// One program for each stage of a pipeline over the only axis of its mesh. Transfers take no time;
// a receive waits for its send, and an instruction that writes what is sent until it is received.
double Makespan(const std::vector<Program>& stages, const MakespanOptions& options);

// The same on GPUs: the transfers of a stage are on a stream of their own, in order, each there
// when both ends have come to it; what touches the same memory waits.
double MakespanOfStreams(const std::vector<Program>& stages,
                         const std::function<double(const Instruction&)>& seconds);

}  // namespace shardc::testing
