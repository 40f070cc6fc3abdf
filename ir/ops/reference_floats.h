// Views as vectors of double, in which the references of the larger ops compute, and the valid part
// of a padded view.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "ir/kernel_call.h"

namespace shardc {

// All physical elements, row-major, padding included; any float or integer type.
std::vector<double> ToDoubles(const TensorView& view);
// The same for integer views.
std::vector<int64_t> ToInts(const TensorView& view);
// Rounds `values` to the type of `view`. There must be as many as the view has elements.
void FromDoubles(const std::vector<double>& values, const TensorView& view);
// The values, as a view of f64 that is `like` otherwise.
TensorView ViewOf(std::vector<double>& values, const TensorView& like);

// The reference of one of the ops that a fused op stands for, run on views of the fused call.
void RunPart(std::string_view op, const KernelCall& call, const Attributes& attrs,
             const std::vector<TensorView>& in, const std::vector<TensorView>& out);

// Copies what `in` and `out` both hold of the same global tensor; the rest of `out` becomes zero.
// Both have one rank and one type; `in` must hold every valid element of `out`.
void CopyValid(const KernelCall& call, const TensorView& in, const TensorView& out);

}  // namespace shardc
