// The repeated layers of a model, found by structure alone.
#pragma once

#include <span>
#include <vector>

#include "ir/graph.h"

namespace shardc {

// A stretch of the forward graph through which everything goes that reaches the loss from `in`, or
// without a loss the output that is behind most ops: it leaves by `out`, the next layer's `in`. A
// term of the loss does not count that reads no weight but those of the others (it balances
// experts, say): what is only for it is in no layer. What other values enter (weights, masks,
// tables of positions) may be shared by all layers.
struct Layer {
  Value* in = nullptr;
  Value* out = nullptr;
  std::vector<Op*> ops;  // that depend on `in`, up to the producer of `out`
};

// Layers in order. Where one ends another begins, or a run of layers ends; a run has two or more
// that are equal but for their weights, masks, names and float types, and for where they are placed
// on the mesh, and that are more than cheap ops. The runs that cover most ops are taken first, with
// the shortest layers that do; of the ways to divide a run, the one with the smallest values
// between its layers. Beside these each member of a numbered list of modules ("h.3"), by the sites
// of ops, that gives a tensor of the shape that it takes is a layer; and instead of them, where a
// list has more of these, as of layers of several kinds that take turns. If all are fewer than
// `least`, layers are the shortest stretches of which that is true, as attention and the MLP behind
// it each, where these are more.
std::vector<Layer> FindLayers(const Graph& graph, size_t least = 0);

// As if there were but these ops, in order, as those of one microbatch and of none. The layers are
// before `end`, which is one of them.
std::vector<Layer> FindLayers(const Graph& graph, std::span<Op* const> ops, const Op* end);

}  // namespace shardc
