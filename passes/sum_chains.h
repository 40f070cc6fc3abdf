// The sums that values are added up to, one after the other.
#pragma once

#include <unordered_map>

#include "ir/graph.h"

namespace shardc {

// What a graph that does not change meanwhile adds a value to: each add of a long sum is looked at
// once, however many terms ask.
class SumChains {
 public:
  // `axes`: over which joint reductions are looked for.
  SumChains(const Graph& graph, const AxisList& axes) : graph_(graph), axes_(axes) {}

  struct Chain {
    const Value* own = nullptr;  // the sum of the value's own type; itself where it is in none
    const Value* all = nullptr;  // the sum of any type that it is added up to in the end, or itself
    const Value* joint =
        nullptr;  // the last of its type that is added and is reduced over the axes
  };
  Chain Of(const Value* term);

  const AxisList& axes() const { return axes_; }
  int64_t visits() const { return visits_; }  // of adds so far

 private:
  const Graph& graph_;
  AxisList axes_;
  std::unordered_map<const Value*, Chain> known_;
  int64_t visits_ = 0;
};

// What the value is added to, and nothing else done with it; or null.
const Value* AddedTo(const Graph& graph, const Value* v);

}  // namespace shardc
