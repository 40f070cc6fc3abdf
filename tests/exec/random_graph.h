// Random graphs of all ops that a model may hold, for tests that compare runs of them.
#pragma once

#include "ir/graph.h"
#include "tests/exec/fuzz.h"
#include "tests/exec/harness.h"

namespace shardc::testing {

struct RandomGraphOptions {
  DType dtype = DType::kF64;
  // Every value that depends on an input has the batch as dim 0 and treats each example by itself,
  // so that microbatches are legal.
  bool batched = false;
  bool layers = false;    // some that are equal but for their params
  int64_t most_ops = 30;  // about
};

// A model: its inputs, and the data of its params in Graph::sources.
struct RandomModelGraph {
  Graph graph;
  Tensors inputs;
};

// A graph of params, inputs, constants and 5 or more ops: chains of reshapes, transposes, slices
// and concats around products and norms above all. Outputs: "loss", a scalar that depends on
// several values, and some of the others, "y0", .... Each op has been run on the data: values are
// finite and small, and no op is near a kink or a jump (of relu, max, floor, an order, ...), so
// that results and gradients are well conditioned.
RandomModelGraph MakeRandomGraph(Dice& dice, const RandomGraphOptions& options);

// The same graph once more, by way of its text.
Graph CopyOf(const Graph& graph);

// Gives params without data some.
void AddRandomData(Graph& graph, uint64_t seed);

// The graph's inputs and params with their data.
Tensors DataOf(const RandomModelGraph& model);

}  // namespace shardc::testing
