// Model-local functions, written out where they are called.
#pragma once

#include <map>
#include <string>

#include "frontend/onnx/load_model.h"

namespace shardc::onnx_import {

// Replaces every call of a function of the model by the function's nodes, in the graph and in
// subgraphs of it: values renamed so that they stay unique, references to the function's attributes
// replaced by what the call gives or the default. Throws Diagnostic E1305 (recursion, too many
// nodes, a call that does not fit).
void InlineFunctions(LoadedModel& model);

}  // namespace shardc::onnx_import
