// In what order a rank runs the ops of a step.
#pragma once

#include <span>
#include <vector>

#include "ir/graph.h"

namespace shardc {

// What runs in one go: the ops of a stage, or of one of its virtual stages, that do one phase of a
// microbatch.
struct Unit {
  int stage = -1, microbatch = -1;
  Phase phase = Phase::kForward;
  int virtual_stage = 0;
  bool operator==(const Unit&) const = default;
};

// Each microbatch forward and backward before the next begins, so that the values of one are held
// at a time; or all forwards before the first backward. Nothing for a graph without microbatches.
std::vector<Unit> OneByOne(const Graph& graph);
std::vector<Unit> ForwardFirst(const Graph& graph);

// For the ops of a pipeline, as in Megatron-LM: of P stages stage k runs P - 1 - k forwards, then a
// forward and a backward in turns, then the backwards that are left; so it holds the values of P -
// k microbatches at most. With V > 1 virtual stages P microbatches go through one after the other
// of them before the next P begin, and stage k runs 2 (P - 1 - k) + (V - 1) P forwards first (D.
// Narayanan et al., "Efficient large-scale language model training on GPU clusters using
// Megatron-LM", 2021, section 2.2). The units of all stages, in the order in which they begin where
// a backward takes twice as long as a forward.
std::vector<Unit> OneForwardOneBackward(const Graph& graph);

// Moves each op to its unit, and keeps the order within one. An op that stands behind an op of a
// later phase of its stage and microbatch stays with that phase (pieces that Chunk made). Ops of no
// unit, and transfers, run when what they need is there, those that need nothing of any unit where
// they are first needed, those of the optimizer at the end. What an earlier unit needs comes with
// it: any schedule gives a valid order. Nothing moves where there are no units.
void OrderBySchedule(Graph& graph, std::span<const Unit> units);

}  // namespace shardc
