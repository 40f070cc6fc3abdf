// The verbs of the shardc command: each adds its options and runs when chosen.
#pragma once

#include <CLI/CLI.hpp>

namespace shardc {

void AddCompileVerb(CLI::App& app);
void AddRunVerb(CLI::App& app);
void AddDumpVerb(CLI::App& app);
void AddOptVerb(CLI::App& app);
void AddMeshVerb(CLI::App& app);

}  // namespace shardc
