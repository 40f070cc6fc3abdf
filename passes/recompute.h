// Computes parts of the forward again for the backward, so that fewer values live from one to the
// other.
#pragma once

#include <string>

#include "ir/graph.h"

namespace shardc {

// Gives the backward copies of forward ops, each just before the first backward op that needs it,
// instead of the values that the forward made. `kinds`, separated by commas:
//
//   none       leaves the graph as it is.
//   selective  what cheap ops (OpDef::cheap) make of values that live anyway, also several in a
//              row. No contraction and no collective is repeated. What depends on no input of the
//              graph, such as a weight's cast, is left alone: it is the same at every step.
//   gathers    what collectives gather of values that depend on an input: the backward gathers
//              again, and a rank keeps its part. So Megatron-LM does under sequence parallelism (V.
//              Korthikanti et al., "Reducing activation recomputation in large transformer models",
//              2022, section 4.2.2); of the copies' attribute "why" the last says so.
//   full       what selective does, and everything inside the layers that FindLayers finds,
//              collectives too; only their inputs and outputs stay. Copies of collectives say so in
//              their attribute "why".
//
// After sharding is lowered, so that a copy runs as its original does, bit for bit, and collectives
// can be told. Copies have phase backward. Throws Diagnostic E6109 for an unknown kind.
void Recompute(Graph& graph, const std::string& kinds);

}  // namespace shardc
