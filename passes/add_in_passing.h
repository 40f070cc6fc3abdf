// Sums that an op makes on its way.
#pragma once

#include <unordered_map>

#include "ir/graph.h"

namespace shardc {

// x + f(...), where nothing else reads f's result, f adds to what it is given (OpDef::adds_to), and
// x is there before f: f adds to x, and the op `add` is no work of its own. Gradients of a weight
// that is used several times need no second buffer of its size.
struct AddInPassing {
  const Op* f = nullptr;  // null: the op is not such a sum
  Value* x = nullptr;
};

// Those of a graph as it is now.
class AddsInPassing {
 public:
  // Op::id must number the ops in order.
  explicit AddsInPassing(const Graph& graph);
  AddInPassing Of(const Op& op) const;

 private:
  AddInPassing Find(const Graph& graph, const Op& add) const;
  int MadeAt(const Graph& graph, const Value* v) const;

  std::unordered_map<const Op*, AddInPassing> found_;
};

}  // namespace shardc
