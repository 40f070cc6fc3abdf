// Says in the graph how a value is cut.
#pragma once

#include <string>

#include "ir/graph.h"

namespace shardc {

// Puts a sharding_constraint behind a value that an op has made, for all its users: so cut over
// `axes`, and no word on others. `why` becomes part of what dump gives as a reason.
Op* Constrain(Graph& graph, Value* value, Sharding sharding, Strings axes, std::string why);

}  // namespace shardc
