// Parameters drawn from a counter-based generator (ir/philox.h): element i of parameter P under
// seed S is a pure function of (S, P, i), so any box equals the slice of the whole.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "ir/graph.h"

namespace shardc {

// N(0, std^2) by Box-Muller. Key: the seed; counter: (i / 4, FNV-1a hash of the name). Computed in
// f32 whatever the dtype, so that a model has the same weights in all of them.
std::shared_ptr<const TensorSource> NormalSource(std::string_view name, DType dtype, Shape shape,
                                                 uint64_t seed, double std);
// All elements equal.
std::shared_ptr<const TensorSource> FilledSource(DType dtype, double value);

}  // namespace shardc
