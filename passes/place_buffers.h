// Where the values of a program lie in its arena.
#pragma once

#include <unordered_map>

#include "ir/program.h"

namespace shardc {

// Sets the offsets of arena buffers and of aliases, and `arena_bytes`. A result is made in the
// place of an operand that ends there where the op allows it; no buffer is written over before its
// last reader has run, nor one that a product reads by the elementwise op behind it, nor one that a
// collective reads, which is not in place, while what is computed beside it takes no longer than it
// does (passes/travel.h). Of a pipeline, `told_by` gives for each send, by id of its collective,
// the transfer by which the sender knows that it was received: what it sends is kept until then, so
// that nobody waits to write over it, and what is sent last of all to the end where that takes no
// more memory. What is left free meanwhile is lent as scratch (passes/lend_scratch.h).
void PlaceBuffers(Program& program, const std::unordered_map<int, int>& told_by);

}  // namespace shardc
