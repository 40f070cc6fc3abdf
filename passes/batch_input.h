// Which inputs hold the examples of a batch.
#pragma once

#include <string>

#include "ir/diagnostic.h"
#include "ir/graph.h"
#include "specs/spec.h"

namespace shardc {

// The input whose dim 0 is the batch: the first of those of the commonest size that ops read.
// Throws Diagnostic E2110 where there is none.
Value* BatchInput(const Graph& graph, const MicrobatchSpec& spec);

// Of a number of microbatches (E2110).
Diagnostic BadCount(const MicrobatchSpec& spec, std::string what, std::string fix);

}  // namespace shardc
