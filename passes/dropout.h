// What a run does about the dropouts of a model.
#pragma once

#include <cstdint>
#include <optional>

#include "ir/graph.h"

namespace shardc {

struct DropoutOptions {
  bool keep = true;             // false: nothing is dropped, as in evaluation
  std::optional<int64_t> seed;  // of all draws, instead of the model's
};

// Runs before anything else. Without dropout the state that counted its steps goes too.
void SetDropout(Graph& graph, const DropoutOptions& options);

}  // namespace shardc
