// Which stage of a pipeline each op of the serial forward graph belongs to.
#pragma once

#include "ir/graph.h"
#include "specs/spec.h"

namespace shardc {

// Where the spec names a pipeline axis that the mesh has, sets Graph::pipeline_axis, and Op::stage
// of the forward graph: the layers (FindLayers) in order, those of several passes through a model
// as one (JoinPasses), dealt out so that the stage with the most flops (with those of the
// gradients, if the graph `trains`) has the fewest, or as the spec says, in as many runs as there
// are virtual stages: of P stages the k-th run is virtual stage k / P of stage k % P. Layers that
// are fewer are divided, with a note. What comes before the first layer is with it, what comes
// after the last is there; between them, what reads a weight is with the first layer that uses it.
// Ops that depend on no parameter and on no layer get none: each stage that needs them has its own.
// These numbers say where work is best done: any give right results. Throws Diagnostic E2120 (fewer
// parts than runs), E2121 (stage_layers do not fit, or there is no pipeline for them).
void AssignStages(Graph& graph, const Spec& spec, bool trains = false);

// After the spec was applied: throws Diagnostic E2122 where it cuts a tensor over the pipeline's
// axis.
void RefuseCutsOverPipeline(const Graph& graph, const Spec& spec);

}  // namespace shardc
