// What a run's states (parameters, and what the optimizer keeps) hold before the first step.
#pragma once

#include <string>
#include <vector>

#include "runtime/session.h"
#include "tools/plan.h"

namespace shardc {

// From the plan's weights; the optimizer's states with their first values. A file's checksum is
// verified before the first byte of it is used: Diagnostic E3002; E3006 when a tensor is missing or
// of another type. Throws Diagnostic E4008 at once when the plan was compiled without weights.
// `plan` must outlive the reader.
StateReader WeightsReader(const Plan& plan);

// From safetensors (SafetensorsSet) of whole tensors, whatever mesh and plan they come from: under
// the model's names, those aliases that name equal tensors, or the module's of which they are the
// transposes. All parameters, and the optimizer's states, all or none; what the file does not have
// begins with its first value. Other float types are rounded to the plan's. `notes`: what the user
// may want to know. Throws at once: E4010 (exit 2) when a tensor is missing or does not fit, and
// what SafetensorsSet throws. `plan` must outlive the reader.
StateReader CheckpointReader(const Plan& plan, const std::string& path,
                             std::vector<std::string>* notes);

// Of a SafetensorsSet all but its large tensors: it tells checkpoints of several steps or models
// apart without reading them whole.
std::string GistOf(const std::string& path);

}  // namespace shardc
