// The order of a graph's ops, by a place that a pass gives to each.
#pragma once

#include <algorithm>
#include <vector>

#include "passes/numbering.h"

namespace shardc {

// `at` by Op::id: no op comes after one that reads its results.
template <typename Place>
void BringToReaders(const std::vector<Op*>& ops, std::vector<Place>& at) {
  for (size_t i = ops.size(); i-- > 0;) {
    for (const Value* r : ops[i]->results) {
      for (const Op* user : r->users) at[i] = std::min(at[i], at[user->id]);
    }
  }
}

// Moves all ops into the order of place(id); of equal places into that of their ids.
template <typename PlaceOf>
void Reorder(Graph& graph, std::vector<Op*> ops, PlaceOf place) {
  std::stable_sort(ops.begin(), ops.end(),
                   [&](const Op* a, const Op* b) { return place(a->id) < place(b->id); });
  for (Op* op : ops) graph.MoveBefore(op, nullptr);
}

}  // namespace shardc
