// The plan on disk: manifest, programs, weight shards.
#pragma once

#include <functional>
#include <string>

#include "ir/fixed_tensor.h"
#include "ir/graph.h"
#include "passes/emit.h"

namespace shardc {

struct PlanOptions {
  std::string model, spec, loss;  // for the manifest: what was compiled
  FixedTensors fixed;             // for the manifest
  bool write_weights = true;
  // Called before each file and each tensor; may throw to give up.
  std::function<void()> on_way;
};

// Writes manifest.textproto, rankNNNN.program, weights/rankNNNN.safetensors and graph.shardc to
// `folder`, all or nothing: into a hidden folder beside it that takes its name at the end. A plan
// that is there already is replaced; any other non-empty folder is refused. Weights are streamed
// tensor by tensor and read from the graph's sources once per shard. Throws Diagnostic E5002
// (folder in the way), E6121 (the process runs in it), E5003 (cannot be written), E5004 (disk
// full), E5005 (a parameter without data, where weights are written), or what on_way throws;
// nothing is left behind.
void WritePlan(const Graph& graph, const StagePrograms& programs, const PlanOptions& options,
               const std::string& folder);

}  // namespace shardc
