// Microbatches that run beside each other.
#pragma once

#include "ir/graph.h"
#include "specs/spec.h"

namespace shardc {

// On the lowered graph, whose microbatches stand one after the other: of each `spec.together` of
// them the first runs until it needs what a collective gives, then the next does, and so on, so
// that one computes while the collectives of another travel. Tensor parallelism, whose collectives
// a layer waits for, then hides them. They are held at the same time; each makes what it made, and
// what is summed over them is summed in the same order. Nothing moves for one.
//
// Throws Diagnostic E2124 where there are fewer microbatches, or a pipeline, whose schedule this is
// not.
void RunTogether(Graph& graph, const MicrobatchSpec& spec);

}  // namespace shardc
