// Reverse-mode differentiation of the serial graph.
#pragma once

#include <span>
#include <vector>

#include "ir/graph.h"

namespace shardc {

// Appends the gradient of `scalar` with respect to `values` (results of ops or inputs) to the
// graph, phase backward, and returns one gradient per value: of its type; zeros where the scalar
// does not depend on it. Linear in the graph; only what the given values need is computed. All are
// times `scale`, a scalar of the graph of its type, if there is one. Throws Diagnostic E1104 where
// a gradient must pass an op that has none.
std::vector<Value*> Differentiate(Graph& graph, Value* scalar, std::span<Value* const> values,
                                  Value* scale = nullptr);

// Differentiates the output `loss` with respect to every param of float type that is trained
// (attribute "trained", true where it is absent) and adds the outputs
// "grad.<param>". Of those that the loss does not depend on they are zeros, and weight decay leaves
// them as they are; a note says so. `scale`, if there is one, multiplies the loss, and these
// outputs are divided by it: so that what is between fits the range of its type. Outputs of halves
// are f32, in which they fit without the scale. Throws Diagnostic E1603 where the model has such an
// output.
void AddGradients(Graph& graph, Value* loss, Value* scale = nullptr);

}  // namespace shardc
