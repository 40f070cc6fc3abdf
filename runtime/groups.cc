#include "runtime/groups.h"

#include <set>

namespace shardc {

std::vector<std::vector<int>> GroupAxes(std::span<const Program> programs) {
  std::set<std::vector<int>> axes;
  for (const Program& p : programs) {
    for (const Collective& c : p.collectives) axes.insert(c.axes);
  }
  return {axes.begin(), axes.end()};
}

std::vector<int> StageAxes(std::span<const Program> programs) {
  std::set<int> axes;
  for (const Program& p : programs) {
    for (const Collective& c : p.collectives) {
      if (c.kind == CollectiveKind::kSendRecv) axes.insert(c.axes.begin(), c.axes.end());
    }
  }
  return {axes.begin(), axes.end()};
}

bool Sends(const Program& program, const Collective& c) {
  return program.mesh.GroupIndex(program.rank, c.axes) == c.from;
}

int PeerOf(const Program& program, const Collective& c) {
  return Sends(program, c) ? c.to : c.from;
}

}  // namespace shardc
