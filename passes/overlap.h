// What travels while ranks compute.
#pragma once

#include "ir/graph.h"

namespace shardc {

// On the lowered and ordered graph: changes the order alone, so that collectives can travel while
// ranks compute, where they run beside that (on GPUs, on streams of their own).
//
// - What gives a rank no more bytes than it takes (sums) begins as soon as its operands are there,
//   and so do cheap ops that only it reads: gradients travel during the backward, in the order in
//   which they are made, and those that are scattered are never all there whole.
// - What gathers more than a rank had begins so long before it is read that what is computed in
//   between takes as long (passes/travel.h), but not before the microbatch, stage and phase of its
//   reader, nor where it would delay what ranks wait for more, nor when two others over the same
//   axes wait to be read.
// - Cheap ops that read what travels run when it is there, when they are needed, or before another
//   microbatch.
void Overlap(Graph& graph);

}  // namespace shardc
