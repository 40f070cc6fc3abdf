// A smaller case that still fails, for reading.
#pragma once

#include <functional>
#include <string>

#include "tests/exec/random_graph.h"

namespace shardc::testing {

struct FuzzCase {
  RandomModelGraph model;
  RunSetup setup;
};

FuzzCase CopyOf(const FuzzCase& c);

// Takes away, as long as `fails` says that what is left fails in the same way: lines of the spec,
// options, outputs, ops (what they give becomes a param or an input with that value, or is replaced
// by an operand).
void Minimize(FuzzCase& c, const std::function<bool(const FuzzCase&)>& fails);

// The model, the data apart, and how it was run.
std::string Describe(const FuzzCase& c);

}  // namespace shardc::testing
