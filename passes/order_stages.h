// One order of a pipeline's ops that all its stages can follow together.
#pragma once

#include "ir/graph.h"

namespace shardc {

// For a graph whose ops are placed (PlaceStages). Each stage keeps the order of its own ops; a
// value leaves its stage as soon as it is made, and is received when it is needed, or earlier where
// the sender could otherwise not go on. The order of the graph becomes one in which a transfer is
// one event of both ends, so that no stage can wait for ever for another, whether or not a send
// waits until it is received.
void OrderStages(Graph& graph);

}  // namespace shardc
