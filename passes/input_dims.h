// Where the dims of the graph's inputs are in other values.
#pragma once

#include <set>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"

namespace shardc {

// For each dim of a value the dim of the inputs that it runs along (0: examples, 1: positions,
// where inputs are [batch, sequence]), or -1: none, several, or one dim of an input with something
// else. Values that no input reaches so are left out.
using InputDims = std::unordered_map<const Value*, std::vector<int>>;
InputDims FindInputDims(const Graph& graph);

// Those inputs of one dim that runs along no first dim of another input but along a later one, or
// has one element: they are of no example, as positions that all examples share.
std::set<const Value*> InputsOfNoExample(const Graph& graph);

}  // namespace shardc
