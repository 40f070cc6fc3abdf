// Tensors of one value that an exporter made one tensor of the file.
#pragma once

#include "frontend/onnx/initializers.h"
#include "frontend/onnx/load_model.h"
#include "frontend/onnx/names.h"

namespace shardc::onnx_import {

// New scales, biases and matrices that begin as zeros are equal, and exporters keep one of them,
// which would train as one. Where the file says that the module has several they are tensors of
// their own again: by what was given to the calls that dynamo's nodes stand for (a norm may have
// been given none: then its scale is a constant), by the names of TorchScript's Identity nodes, and
// by the modules that multiply by a matrix that it transposed. Equal tensors of other data stay
// one: those are tied. Returns how many were added.
int SeparateFills(LoadedModel& model, ModuleNames& names, TensorReader& reader);

}  // namespace shardc::onnx_import
