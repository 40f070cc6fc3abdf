// Where a program waits for what travels.
#pragma once

#include "ir/program.h"

namespace shardc {

// What was gathered in pieces is put together (`unpack`) right before it is first read: before
// that, whatever runs need not wait for the collective, nor what is placed where the pieces were.
// Before buffers are placed.
void WaitLate(Program& program);

}  // namespace shardc
