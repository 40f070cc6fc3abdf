// New values of states, made where the states are.
#pragma once

#include <cstddef>

#include "ir/program.h"

namespace shardc {

// The last `updates` instructions of the program copy values into the states that they become. A
// copy goes away, and its value is made in the state itself, where nothing else reads the value,
// nothing reads the state after the value is made, and the instruction that makes it may write over
// the state if it reads it. Outputs that are an updated state show its value before the update, and
// states that take the value of another have that. Before buffers are placed.
void WriteStates(Program& program, size_t updates);

}  // namespace shardc
