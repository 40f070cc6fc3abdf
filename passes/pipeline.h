// The order of the passes, and running them by name.
#pragma once

#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "passes/chunk.h"
#include "passes/optimizer.h"
#include "passes/precision.h"
#include "specs/spec.h"

namespace shardc {

struct PipelineOptions {
  std::string loss = "lm";
  std::string loss_output;                      // which output the loss is of; empty: found
  std::vector<std::string> drop;                // outputs that are not given
  std::vector<std::string> freeze, train_only;  // as FreezeParams takes them
  bool gradients = true;                        // off: forward only, with the loss
  OptimizerOptions optimizer;
  PrecisionOptions precision;
  ChunkOptions chunk;
  std::string recompute = "none";                // as Recompute takes it
  std::function<void(const Graph&)> on_sharded;  // sees the graph when its reshards are settled
  bool verify_each = false;                      // VerifyGraph after every pass
  std::vector<std::string> print_after;          // names of passes; "all"
  bool timing = false;                           // a line per pass
  std::ostream* log = nullptr;                   // where prints and timings go
};

// From a serial forward graph to a lowered one: loss, spec, gradients, optimizer, shardings,
// collectives. graph.mesh is set to `mesh`. In the end VerifyGraph accepts the graph, its shardings
// closed; an InternalError otherwise.
void CompileGraph(Graph& graph, const Spec& spec, const Mesh& mesh, const PipelineOptions& options);

// The passes of `shardc opt`, by name: those that need no more than the graph. Throws Diagnostic
// E6103 for an unknown one.
void RunPass(Graph& graph, std::string_view name);
std::vector<std::string> PassNames();

}  // namespace shardc
