// What a graph that trains draws: dropout, and noise.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "ir/builder.h"

namespace shardc {

// x with each element dropped with probability `ratio`, by draws of its own in every run of the
// plan: the graph gets the state "dropout.step" i64[], the runs so far, and its update. So it does
// of all that draws.
Value* AddDropout(Builder& b, Value* x, double ratio, int64_t seed = 0);

// The same of any op that drops elements (OpDef::undropped); `operands` and `attrs` are its others.
Op* CreateDropping(Builder& b, std::string_view op, std::vector<Value*> operands, double ratio,
                   int64_t seed = 0, Attributes attrs = {});

// Numbers in [0, 1), f32 of this shape.
Value* AddUniform(Builder& b, const Shape& shape, int64_t seed = 0);

struct DropoutOptions {
  bool keep = true;                  // false: nothing is dropped, as in evaluation
  std::optional<int64_t> seed = {};  // of all draws, instead of the model's
};

// For a model as it was read. Without what draws the state that counted its steps goes too.
void SetDropout(Graph& graph, const DropoutOptions& options);

}  // namespace shardc
