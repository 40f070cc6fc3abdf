#include "passes/heard_back.h"

#include <algorithm>
#include <vector>

#include "ir/op_def.h"

namespace shardc {

std::unordered_map<const Op*, const Op*> HeardBack(const Graph& graph) {
  struct Sent {
    const Op* op;
    size_t to, at;
  };
  const auto stages =
      static_cast<size_t>(graph.mesh.axis_size(*graph.mesh.FindAxis(graph.pipeline_axis)));
  // known[s][t]: how many transfers, in the order of the graph, are behind stage t as far as stage
  // s knows.
  std::vector<std::vector<size_t>> known(stages, std::vector<size_t>(stages, 0));
  std::vector<std::vector<Sent>> open(stages);  // by sender
  std::unordered_map<const Op*, const Op*> heard;
  size_t at = 0;
  for (const auto& op : graph.ops()) {
    if (op->name() != "send_recv") continue;
    const auto from = static_cast<size_t>(op->attrs.Int("from"));
    const auto to = static_cast<size_t>(op->stage);
    known[from][from] = at;
    for (size_t s = 0; s < stages; ++s) known[to][s] = std::max(known[to][s], known[from][s]);
    known[to][to] = at + 1;
    std::erase_if(open[to], [&](const Sent& sent) {
      if (known[to][sent.to] <= sent.at) return false;
      heard[sent.op] = op.get();
      return true;
    });
    open[from].push_back({op.get(), to, at});
    ++at;
  }
  return heard;
}

}  // namespace shardc
