// ZeRO: parameters are kept cut over ranks that would hold the same, as those that share the batch
// do, and whole where they are used.
//
// Nothing else is said. An optimizer's states, gradients and updates are cut like their parameter
// (propagate, insert_reshards), so a gradient is reduce_scattered as soon as it is made, and each
// rank updates its part.
#pragma once

#include <set>
#include <string>

#include "ir/graph.h"
#include "specs/spec.h"

namespace shardc {

struct Zero {
  int stage = 0;  // 0: nothing is cut
  AxisList axes;  // in mesh order, each of more than one rank
  std::string why;
  std::set<std::string, std::less<>> params;  // those that CutParams has cut
};

// Over which axes: those that the spec names, or that cut the first dim of an input. None, and a
// note, where they all have one rank. `optimizer`: whether there will be one. Throws Diagnostic
// E2104 for an axis that neither mesh nor spec has, stage or not; where there is a stage E2108 if
// nothing cuts the batch, E2109 for stages 1 and 2 without an optimizer, E2122 for the axis of a
// pipeline.
Zero ResolveZero(Graph& graph, const Spec& spec, bool optimizer);

// Cuts one more dim of each parameter: one that divides, else the largest that has an element for
// each rank; before others one that reshapes of it keep cut. Stages 1 and 2 cut those that have a
// gradient, stage 3 all. Vectors of kBucketBytes or less stay whole: their gradients travel
// together, and what they and their states take is little. Runs on the serial graph before the
// optimizer is added.
void CutParams(Graph& graph, Zero& zero);

// Puts sharding_constraints between these parameters (and casts and transposes of them, which work
// on what is cut) and what uses them: whole over the axes. One for a value; in stage 3 one for the
// forward and one for the backward of each microbatch, and where the parameter itself is gathered
// its casts are made of that: a tied table, read in f32 and in bf16. The optimizer reads what is
// cut. Runs before propagation.
void GatherParams(Graph& graph, const Zero& zero);

// In stages 2 and 3, where there are microbatches: a sharding_constraint behind what each of them
// adds to the gradient of such a parameter, cut like it, so that no rank holds the whole of the
// sum. Runs before propagation.
void CutGradients(Graph& graph, const Zero& zero);

}  // namespace shardc
