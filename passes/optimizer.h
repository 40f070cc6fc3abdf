// The update step, in the graph: gradient norm, clipping, AdamW or SGD, state in place.
#pragma once

#include <string>
#include <vector>

#include "ir/diagnostic.h"
#include "ir/graph.h"
#include "passes/learning_rate.h"

namespace shardc {

struct OptimizerOptions {
  std::string kind;  // "adamw", "sgd"; empty: none
  LearningRateOptions rate = {};
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;  // adamw
  double momentum = 0;                            // sgd
  // Of parameters with two or more dims; a param's attribute `decay` overrules that.
  double weight_decay = 0;
  double clip_norm = 0;  // 0: no clipping; else gradients times min(1, clip_norm / (norm + 1e-6))
  int64_t loss_scale_window = 1000;  // as FollowOverflows takes it
};

// Adds the update of every param that has an output "grad.<name>", and the output "grad_norm": the
// 2-norm of all gradients, each parameter counted once; and "learning_rate" where a schedule
// changes it. Runs after the spec is applied: state is cut as its parameter is, f32 where that is
// in halves, and the norm is summed first over the parameters that are cut alike, so that one
// scalar travels per set of axes. A step whose norm is no finite number updates nothing but the
// loss scale, where there is one (passes/loss_scale.h). Throws Diagnostic E6102 for an unknown kind
// or impossible values, or NoGradients.
void AddOptimizer(Graph& graph, const OptimizerOptions& options);

// E6102 for an optimizer in a graph that has no gradients.
Diagnostic NoGradients();

}  // namespace shardc
