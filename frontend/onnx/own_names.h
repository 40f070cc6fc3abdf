// Parameters that lost nothing but their name.
#pragma once

#include <onnx/onnx_pb.h>

#include "frontend/onnx/names.h"

namespace shardc::onnx_import {

// dynamo writes p[indices] with a transpose before the lookup, which leaves the dims as they are
// where the first ones are indexed, and folds it: the tensor, as of the matrices of experts, has a
// name that PyTorch does not know ("val_278"), and the parameter's data. It is called as the
// parameter again, where the metadata say so and it is the only one that was made of it.
void RestoreOwnNames(onnx::GraphProto& graph, ModuleNames& names);

}  // namespace shardc::onnx_import
