// From one lowered graph to the stages of a pipeline.
#pragma once

#include "ir/graph.h"

namespace shardc {

// The last pass but for the order of casts where Graph::pipeline_axis is set, on the lowered and
// fused graph. After it every op but states and constants runs on the one stage that Op::stage
// says, and reads only what that stage has: its own results, inputs, states and constants, and
// results of `send_recv` ops, one for each value and stage that needs it. Where an op without a
// stage of its own runs is up to HomeStages; one that several stages need is repeated on each, with
// what it is made of, where that moves fewer bytes than its results. States are on the stages that
// read them, and are updated on each of them, from equal bits: what all of them need and one makes
// is made once. Microbatches run by one forward, one backward; the order is one that all stages can
// follow together, also if a send blocks until it is received (OrderStages). Throws Diagnostic
// E2123 for a graph that has transfers already, E2125 where a stage is left without an op, or none
// needs anything of another.
void PlaceStages(Graph& graph);

}  // namespace shardc
