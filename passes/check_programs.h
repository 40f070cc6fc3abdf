// The proof that a set of programs can run: shares no code with the passes that made it, and trusts
// none of it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/program.h"

namespace shardc {

// What one program must satisfy by itself: every operand was written before it is read and not
// recycled since, results and operands of an instruction overlap only where that op may run in
// place, buffers lie inside their space, local shapes and bytes follow from types and are shares of
// one loop in each instruction, collectives fit their operands, outputs are alive at the end,
// states keep what updates write, ops are known with the right number of operands and no attributes
// but their own. Throws Diagnostic E3101 to E3199 (exit 5), `where` naming rank and instruction.
// Returns how often it has looked at a buffer, an operand or result, or a piece of the arena: what
// its time grows with, up to a logarithm.
int64_t CheckProgramBody(const Program& program);

// CheckProgramBody on each (equal bodies once), and on the set: one program per rank of the mesh,
// in rank order, every group of ranks sees the same collectives in the same order with the same
// kind, type, axes and size, the two ends of every transfer fit, and no schedule can deadlock, also
// where a send blocks until it is received. Ranks that differ along the axes of transfers (stages
// of a pipeline) may name other tensors than each other. Throws Diagnostic E3201 to E3299 (exit
// 5). Returns the same, with the comparisons of bodies and the calls of all ranks.
int64_t CheckProgramSet(std::span<const Program* const> programs);

// The same for a set that is known by its bodies: rank r runs bodies[body_of[r]].
int64_t CheckProgramBodies(const std::vector<const Program*>& bodies,
                           const std::vector<int>& body_of);

}  // namespace shardc
