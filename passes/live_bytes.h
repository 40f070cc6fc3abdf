// What a rank holds, estimated on the lowered graph.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph.h"
#include "passes/add_in_passing.h"

namespace shardc {

// What a rank holds while each op runs, about: a value from its op to its last reader, results in
// the place of operands that end where they may be. Without states and inputs. Numbers the ops, and
// sets Value::id to the value's slot, -1 without one.
class LiveBytes {
 public:
  // Memory of one value, or of several after another.
  struct Slot {
    Value* value;  // the first
    int64_t bytes;
    int first, last;
  };

  explicit LiveBytes(const Graph& graph);

  const std::vector<Slot>& slots() const { return slots_; }

  // Bytes while each op runs, in the slots that `counts` accepts.
  template <typename Counts>
  std::vector<int64_t> Profile(const Counts& counts) const {
    std::vector<int64_t> live(static_cast<size_t>(count_) + 1);
    for (const Slot& s : slots_) {
      if (!counts(s)) continue;
      live[s.first] += s.bytes;
      live[static_cast<size_t>(s.last) + 1] -= s.bytes;
    }
    for (size_t i = 1; i < live.size(); ++i) live[i] += live[i - 1];
    live.pop_back();
    return live;
  }

 private:
  void Place(const Op& op, int index, const AddsInPassing& adds);
  static int SlotOf(const Value* x, const AddsInPassing& adds);
  void Share(Value* r, int slot, int last);

  const Graph& graph_;
  int count_ = 0;
  std::vector<Slot> slots_;
};

// By op, in order: the microbatch that is under way while it runs, or -1.
std::vector<int> MicrobatchesUnderWay(const Graph& graph);

}  // namespace shardc
