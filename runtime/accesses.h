// What memory the instructions of a program read and write, and what follows for those that run
// beside each other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/program.h"

namespace shardc {

// Bytes [begin, end) of a piece of memory that an instruction reads or writes.
struct Access {
  Space space = Space::kArena;
  std::string name;  // of a state or input
  int64_t begin = 0, end = 0;
  bool write = false;
};
// Nothing for a buffer of no bytes or of constants.
std::optional<Access> AccessOf(const Program& program, int buffer, bool write);
// Of operands, results and scratch, through aliases.
std::vector<Access> AccessesOf(const Program& program, const Instruction& instruction);
// Whether they share a byte that one of them writes.
bool Conflict(const Access& a, const Access& b);
bool Conflict(const std::vector<Access>& a, const std::vector<Access>& b);

// For each instruction the earlier sends that must be done before it begins, because it writes
// what they send; each in one list, its first. One more list at the end: those that are left.
std::vector<std::vector<int>> SendsToFinish(const Program& program);

}  // namespace shardc
