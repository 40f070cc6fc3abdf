// Why a value is cut as it is: links from a spec line through ops to a collective.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"

namespace shardc {

// Appends a step and returns its index.
int AddProvenance(Graph& graph, int parent, std::string text);

// The chain from its root (the spec line) to `step`; long chains are shortened in the middle, and
// say so.
std::vector<std::string> ProvenanceChain(const Graph& graph, int step);

// The step that decided the value's placement on the axis, or -1.
int ProvenanceOf(const Value* value, int axis);
void SetProvenance(Value* value, int axis, int step);

// Appends the sentences that are not among them yet.
void AddReasons(Strings& why, const Strings& more);

// "matmul at transformer.h.0.mlp.c_fc (backward)"
std::string Describe(const Op& op);

}  // namespace shardc
