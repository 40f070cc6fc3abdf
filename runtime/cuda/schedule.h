// Which stream each instruction of a program runs on, in which order they are enqueued, and which
// events order the streams among themselves. Plain host code: the same for every rank of a stage,
// because it looks at the body only.
#pragma once

#include <vector>

#include "ir/program.h"
#include "runtime/accesses.h"
#include "runtime/cuda/product_groups.h"

namespace shardc::cuda {

inline constexpr int kLookahead = 32;

struct Schedule {
  struct Item {
    int instruction = 0;
    // Itself; or all of the group of which it is the place, in order; or, `joined`, those of which
    // it is the first (joined.h).
    std::vector<int> runs;
    bool joined = false;
    int stream = 0;
    std::vector<int>
        waits;  // items (all earlier) of other streams that must be done before this one begins
    bool recorded = false;  // an event after it: a later item waits for it
  };
  // Mesh axes of the communicator that each stream belongs to; stream 0 is that of the computation.
  std::vector<std::vector<int>> streams = {{}};
  std::vector<Item> items;  // every instruction once, in the order to enqueue
  std::vector<ProductGroup> groups;
};

// A group is one item, and conflicts with what any of its instructions conflicts with. Two items
// that conflict keep the program's order, by their stream or by a chain of events. Collectives keep
// their order, so that all ranks enter them alike. An instruction that would have to wait for a
// collective lets up to `lookahead` later ones that can already run go first. With `join`, an
// instruction that needs no wait of its own is joined to the item before it where one kernel can do
// both, and no collective was issued between them.
Schedule MakeSchedule(const Program& program, std::vector<ProductGroup> groups = {},
                      int lookahead = kLookahead, bool join = false);

}  // namespace shardc::cuda
