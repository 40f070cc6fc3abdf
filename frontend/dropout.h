// Dropout in a graph that trains.
#pragma once

#include <cstdint>

#include "ir/builder.h"

namespace shardc {

// x with each element dropped with probability `ratio`, by draws of its own in every run of the
// plan: the graph gets the state "dropout.step" i64[], the runs so far, and its update.
Value* AddDropout(Builder& b, Value* x, double ratio, int64_t seed = 0);

}  // namespace shardc
