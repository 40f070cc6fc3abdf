// When a stage of a pipeline can know that what it sent has been received.
#pragma once

#include <unordered_map>

#include "ir/graph.h"

namespace shardc {

// For a graph in an order that all stages can follow together (OrderStages): for each send_recv the
// first transfer to its sender that tells of it, because it was sent, maybe by way of other stages,
// after the receive. Those of which nothing tells are missing.
std::unordered_map<const Op*, const Op*> HeardBack(const Graph& graph);

}  // namespace shardc
