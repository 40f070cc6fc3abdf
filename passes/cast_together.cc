#include "passes/cast_together.h"

#include <map>
#include <tuple>
#include <vector>

#include "passes/narrow_params.h"
#include "passes/numbering.h"

namespace shardc {
namespace {

struct Casts {
  const Op* first = nullptr;
  Op* last = nullptr;
  int64_t bytes = 0;
};

}  // namespace

void CastTogether(Graph& graph, int64_t most) {
  std::map<std::tuple<int, Phase, int>, Casts> begun;
  for (Op* op : NumberedOps(graph)) {
    if (!CastsParam(*op)) continue;
    Casts& casts = begun[{op->stage, op->phase, op->microbatch}];
    const int64_t bytes = LocalBytes(op->out(), graph.mesh);
    if (casts.first && casts.bytes + bytes <= most &&
        op->operands[0]->producer->id < casts.first->id) {
      if (graph.Next(casts.last) != op) graph.MoveBefore(op, graph.Next(casts.last));
      casts.last = op;
      casts.bytes += bytes;
    } else {
      casts = {op, op, bytes};
    }
  }
}

}  // namespace shardc
