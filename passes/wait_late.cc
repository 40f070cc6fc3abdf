#include "passes/wait_late.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace shardc {

void WaitLate(Program& program) {
  std::vector<Instruction>& list = program.instructions.own();
  const size_t none = list.size();
  std::vector<size_t> reader(program.buffers.size(), none);
  for (size_t i = list.size(); i-- > 0;) {
    for (int b : list[i].operands) reader[RootOf(program, b)] = i;
  }
  // The instruction before which each comes, and whether it was elsewhere.
  std::vector<std::pair<size_t, bool>> before(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const bool unpacks = list[i].op == "unpack";
    const size_t at = unpacks ? reader[RootOf(program, list[i].results[0])] : none;
    before[i] = at == none ? std::pair(i, true) : std::pair(at, false);
  }
  std::vector<size_t> order(list.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return before[a] < before[b]; });
  std::vector<Instruction> sorted;
  sorted.reserve(list.size());
  for (size_t i : order) sorted.push_back(std::move(list[i]));
  list = std::move(sorted);
}

}  // namespace shardc
