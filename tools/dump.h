// What `shardc dump` shows of a plan, in its three forms.
#pragma once

#include <string>
#include <vector>

#include "tools/plan.h"

namespace shardc {

// A collective and the instruction that performs it.
struct CollectiveUse {
  const Program* program;  // of the stage that performs it; of a transfer, of the sender
  const Collective* collective;
  const Instruction* instruction;
  int64_t bytes;                  // of the elements that it moves or reduces, on one rank
  std::vector<TensorType> types;  // global
  std::vector<Shape>
      shapes;  // on one rank: of what is reduced, scattered or exchanged, or of the result gathered
};

// Of all stages, in the order of execution. `plan` must outlive them.
std::vector<CollectiveUse> CollectivesOf(const Plan& plan);
// The ranks of every group in which it is performed; of a transfer sender and receiver.
std::vector<std::vector<int>> GroupsOf(const Plan& plan, const CollectiveUse& use);
// The stage of a pipeline that the program is of.
int64_t StageOf(const Plan& plan, const Program& program);

// Aligned columns, then totals and memory.
void PrintDumpTable(const Plan& plan);
// Exactly one JSON object on stdout.
void PrintDumpJson(const Plan& plan);
// The chain from the spec line to the parameter's cut, and every collective that follows from it.
// `name` may be an alias, or a glob: then of each parameter that it matches, of the first 100.
// Throws Diagnostic E6107 when there is no such parameter.
void PrintWhy(const Plan& plan, const std::string& name);

}  // namespace shardc
