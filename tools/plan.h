// A plan folder, read back and proved before anything of it runs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ir/diagnostic.h"
#include "ir/manifest.h"
#include "ir/program.h"

namespace shardc {

struct Plan {
  std::string folder;
  Manifest manifest;
  std::vector<Program> programs;  // in rank order
};

// The first program of each stage of a pipeline; without one, the first of all.
std::vector<const Program*> StagesOf(const Plan& plan);

// The whole plan. Throws Diagnostic E5001 (no plan there, a file is missing), E3001 to E3005
// (damaged), E3006 (manifest and programs disagree), E31xx and E32xx (the programs fail their
// proof). Weights are not read.
Plan LoadPlan(const std::string& folder);

// The manifest and the program of one rank, for reading. Throws as LoadPlan, and Diagnostic E6106
// when there is no such rank.
Plan LoadPlanOfRank(const std::string& folder, int64_t rank);

// The manifest and the first program of each stage. Throws as LoadPlan.
Plan LoadPlanOfStages(const std::string& folder);

// The manifest's states by their names, as long as it lives.
std::map<std::string, const ManifestState*> StatesByName(const Plan& plan);
// The manifest's entry of a file of the plan. Throws Diagnostic E3006 when there is none.
const ManifestFile& ListedFile(const Plan& plan, const std::string& path);
// Reads the whole file: Diagnostic E3002 when it is not the one that the manifest lists.
void CheckListedFile(const Plan& plan, const std::string& path);
// The same for plans of the same files, wherever they are.
std::string ChecksumOfFiles(const Plan& plan);
// Diagnostic E3006: files of a plan that do not fit together.
Diagnostic MixedPlans(const std::string& where, const std::string& what);

}  // namespace shardc
