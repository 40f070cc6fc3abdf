// Several batches of the model in one step.
#pragma once

#include "ir/graph.h"
#include "specs/spec.h"

namespace shardc {

// Runs the forward graph for `spec.count` batches, each as the model runs it: what depends on the
// batch is there once for each (Op::microbatch), whatever it does with the examples of one. The
// inputs whose dim 0 is the batch (BatchInput, and what has its size) hold these batches one behind
// the other, and so do outputs; the loss, and other float scalars, are the means of what the
// batches give. The order of ops, and how inputs are cut, are CutMicrobatches'. What is drawn
// is drawn for each batch anew.
//
// Returns what `loss` (or null) has become. Throws Diagnostic E2110 where no input has a batch,
// E2111 for an output of which there is no mean.
Value* AccumulateBatches(Graph& graph, const MicrobatchSpec& spec, Value* loss);

}  // namespace shardc
