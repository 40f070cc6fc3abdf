#include "runtime/accesses.h"

#include <algorithm>

namespace shardc {

std::optional<Access> AccessOf(const Program& program, int buffer, bool write) {
  const Buffer& b = program.buffers[buffer];
  const Buffer& root = program.buffers[RootOf(program, buffer)];
  if (b.bytes == 0 || root.space == Space::kConstant) return std::nullopt;
  if (root.space == Space::kArena) {
    return Access{root.space, "", b.offset, b.offset + b.bytes, write};
  }
  return Access{root.space, root.name, 0, root.bytes, write};
}

std::vector<Access> AccessesOf(const Program& program, const Instruction& instruction) {
  std::vector<Access> out;
  auto add = [&](int buffer, bool write) {
    if (auto a = AccessOf(program, buffer, write)) out.push_back(std::move(*a));
  };
  for (int b : instruction.operands) add(b, false);
  for (int b : instruction.results) add(b, true);
  if (instruction.scratch >= 0) add(instruction.scratch, true);
  return out;
}

bool Conflict(const Access& a, const Access& b) {
  return (a.write || b.write) && a.space == b.space && a.begin < b.end && b.begin < a.end &&
         a.name == b.name;
}

bool Conflict(const std::vector<Access>& a, const std::vector<Access>& b) {
  return std::any_of(a.begin(), a.end(), [&](const Access& x) {
    return std::any_of(b.begin(), b.end(), [&](const Access& y) { return Conflict(x, y); });
  });
}

std::vector<std::vector<int>> SendsToFinish(const Program& program) {
  const std::vector<Instruction>& list = program.instructions;
  std::vector<std::vector<int>> finish(list.size() + 1);
  struct Send {
    int instruction;
    std::vector<Access> accesses;
  };
  std::vector<Send> open;
  for (size_t i = 0; i < list.size(); ++i) {
    std::vector<Access> accesses = AccessesOf(program, list[i]);
    std::erase_if(open, [&](const Send& send) {
      if (!Conflict(send.accesses, accesses)) return false;
      finish[i].push_back(send.instruction);
      return true;
    });
    const int c = list[i].collective;
    if (c >= 0 && program.collectives[c].kind == CollectiveKind::kSendRecv &&
        list[i].results.empty()) {
      open.push_back({static_cast<int>(i), std::move(accesses)});
    }
  }
  for (const Send& send : open) finish.back().push_back(send.instruction);
  return finish;
}

}  // namespace shardc
