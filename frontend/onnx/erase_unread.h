// What a rewritten graph no longer reads.
#pragma once

#include <set>
#include <string>

#include "frontend/onnx/load_model.h"

namespace shardc::onnx_import {

// Erases the main graph's nodes and tensors of these names, and of what they read, that nothing
// reads.
void EraseUnread(LoadedModel& model, std::set<std::string> names);

}  // namespace shardc::onnx_import
