// Reverse-mode differentiation of the serial graph.
#pragma once

#include <span>
#include <vector>

#include "ir/graph.h"

namespace shardc {

// Appends the gradient of `scalar` with respect to `values` (results of ops or inputs) to the
// graph, phase backward, and returns one gradient per value: of its type; zeros where the scalar
// does not depend on it. Linear in the graph; only what the given values need is computed. All are
// `scale` times as large. Throws Diagnostic E1104 where a gradient must pass an op that has none.
std::vector<Value*> Differentiate(Graph& graph, Value* scalar, std::span<Value* const> values,
                                  double scale = 1);

// Differentiates the output `loss` with respect to every param of float type and adds the outputs
// "grad.<param>". `scale`, a power of two, multiplies the loss, and its inverse these outputs: so
// that what is between is not too small for its type.
void AddGradients(Graph& graph, Value* loss, double scale = 1);

}  // namespace shardc
