// Op::id and Value::id, by which a pass keeps what it knows of each in tables.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace shardc {

// All ops in their order.
inline std::vector<Op*> OpsOf(const Graph& graph) {
  std::vector<Op*> ops;
  ops.reserve(graph.num_ops());
  for (const auto& op : graph.ops()) ops.push_back(op.get());
  return ops;
}

// The same; their place there is their Op::id from now on.
inline std::vector<Op*> NumberedOps(const Graph& graph) {
  std::vector<Op*> ops = OpsOf(graph);
  for (size_t i = 0; i < ops.size(); ++i) ops[i]->id = static_cast<int>(i);
  return ops;
}

// Sets Value::id: of inputs, and then of results in the order of their ops. Returns how many there
// are.
inline size_t NumberValues(const Graph& graph) {
  int n = 0;
  for (const auto& input : graph.inputs()) input->id = n++;
  for (const auto& op : graph.ops()) {
    for (Value* r : op->results) r->id = n++;
  }
  return static_cast<size_t>(n);
}

}  // namespace shardc
