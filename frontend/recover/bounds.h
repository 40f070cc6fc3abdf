// Which integers a value can hold.
#pragma once

#include "ir/graph.h"

namespace shardc::recover {

// Both included; the ends of int64 where nothing is known.
struct Bounds {
  int64_t low, high;
};

// Of all elements of an integer or boolean value, whatever the inputs are.
Bounds BoundsOf(const Value* v);

}  // namespace shardc::recover
