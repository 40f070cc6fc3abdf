// Losses that `compile` attaches to a model, in the graph like everything else.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"

namespace shardc {

// kind:
//   none         nothing; returns null
//   lm           next-token cross entropy of the logits: position i is compared with label i + 1
//                (i64, shifted inside); mean over the labels that are not -100
//   ce           the same without the shift
//   masked_lm    sum(loss * loss_mask) / sum(loss_mask); labels already shifted, loss_mask f32
//   dot          sum(y * cotangent), the input `cotangent` of y's type: a vector-Jacobian product
//   output:NAME  a scalar output that the model computes itself
// Of a model in halves they are made in f32. `output` names the logits (or y); empty: the model's
// only float output, or the one named "logits". Adds the inputs that the loss needs and the output
// "loss" (first in order; where the model's own output of that name is taken, it becomes a scalar
// in its place), and returns its value. Throws Diagnostic E6101 (unknown kind), E1601 (no fitting
// output, or the model's own output "loss" is another).
Value* AttachLoss(Graph& graph, const std::string& kind, const std::string& output = {});

// Before AttachLoss: where another loss than the model's own output "loss" is asked for (or none),
// and one of the names matches that, takes it away. Gives the names that are to be looked for
// still.
std::vector<std::string> DropOwnLoss(Graph& graph, const std::string& kind,
                                     std::vector<std::string> names);

// Behind it: takes the outputs of these names ("present.*") away, but not the loss, so that their
// memory is free after their last use. Throws Diagnostic E6110 for a name that none has.
void DropOutputs(Graph& graph, const std::vector<std::string>& names);

}  // namespace shardc
