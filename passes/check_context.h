// What the parts of the program checker share. Private to passes/check_*.cc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ir/op_def.h"
#include "ir/program.h"

namespace shardc {

// A program under check. Each part fills what later parts ask.
struct CheckContext {
  explicit CheckContext(const Program& p) : program(p) {}

  const Program& program;
  std::vector<int> roots;         // by buffer: the end of its alias chain (CheckBuffers)
  std::vector<int64_t> elements;  // by buffer: local elements (CheckBuffers)
  std::vector<int> state_of;      // by buffer: index into Program::states, or -1 (CheckNamedLists)
  // By instruction; null for pack, unpack and copy, which are no ops of the graph
  // (CheckInstructions).
  std::vector<const OpDef*> defs;
  mutable int64_t visits = 0;  // what CheckProgramBody returns

  const Buffer& buffer(int id) const { return program.buffers[id]; }
  const Buffer& root(int id) const { return program.buffers[roots[id]]; }
  const Instruction& instruction(int i) const { return program.instructions[i]; }

  // "buffer 3 (f32[4, 8], arena [0, 128))"; safe on buffers that are not checked yet.
  std::string DescribeBuffer(int id) const;
  [[noreturn]] void FailAt(int instruction, std::string id, std::string what) const;
  [[noreturn]] void Fail(const std::string& where, std::string id, std::string what) const;
};

// A diagnostic of the checker: exit code and advice are always the same.
[[noreturn]] void FailCheck(const std::string& where, std::string id, std::string what);
// What keeps the functions of ir/sharding.h from being called on the type ("has granule 0"), or
// empty.
std::string MalformedType(const TensorType& type, const Mesh& mesh);

// In this order; each relies on what those before it have established.
void CheckBuffers(CheckContext& context);            // E3104, E3105: check_buffers.cc
void CheckNamedLists(CheckContext& context);         // E3111, E3113: check_buffers.cc
void CheckInstructions(CheckContext& context);       // E3104, E3105, E3108: check_instructions.cc
void CheckCollectives(const CheckContext& context);  // E3109, E3110, E3112: check_collectives.cc
void CheckShares(const CheckContext& context);       // E3105: check_shares.cc
// E3101 to E3103, E3106, E3107, E3111, E3114: check_memory.cc
void CheckMemory(const CheckContext& context);

// The programs of all ranks, in rank order, each passed by CheckProgramBody; body_of[r] is the
// index into `bodies` of the program that is equal to rank r's up to the rank. Throws E3204 to
// E3206 and E3208: check_schedule.cc. Returns how many calls it has looked at.
int64_t CheckSchedule(const std::vector<const Program*>& bodies, const std::vector<int>& body_of);

}  // namespace shardc
