// Layers that a model runs several times in one pass over its graph.
#pragma once

#include <vector>

#include "passes/find_layers.h"

namespace shardc {

// The same layers, in order, where those that are one layer of the model, run for several of its
// inputs (both towers of a siamese network, the chosen and the rejected answer of DPO), are one:
// at least half of the bytes of a later one's weights are an earlier one's, and what enters it does
// not depend on that. Layers that share weights and follow each other stay apart. `in` and `out`
// are those of the first.
std::vector<Layer> JoinPasses(const Graph& graph, std::vector<Layer> layers);

}  // namespace shardc
