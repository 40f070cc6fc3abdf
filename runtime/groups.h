// The groups of ranks that a set of programs communicates in.
#pragma once

#include <span>
#include <vector>

#include "ir/program.h"

namespace shardc {

// The axes of all collectives of the set, each list once, sorted: what every rank splits its world
// by, in this order, so that the splits meet also where programs differ.
std::vector<std::vector<int>> GroupAxes(std::span<const Program> programs);

// The axes of all transfers of the set, sorted: those along which its programs differ.
std::vector<int> StageAxes(std::span<const Program> programs);

// Of a transfer, the other end as a member of the group; and whether `program`'s rank is the one
// that sends.
int PeerOf(const Program& program, const Collective& c);
bool Sends(const Program& program, const Collective& c);

}  // namespace shardc
