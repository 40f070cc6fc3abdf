// Constants that an exporter folded from tensors which the file still has.
#pragma once

#include "frontend/onnx/initializers.h"
#include "frontend/onnx/load_model.h"
#include "ir/attributes.h"

namespace shardc::onnx_import {

struct Unfolded {
  int of_tensors = 0;  // constants that became nodes
  int tensors = 0;     // that became tensors
  Strings unread;      // weights and biases, by their names, that nothing reads all the same
};

// Where the file has float tensors that nothing reads, Constant nodes whose data are those of a
// tensor of the file - transposed (the last two dims), with other dims of size 1, one added to each
// element, or rows of a matrix - become nodes that make them of it: dynamo_export of PyTorch 2.4
// and 2.5 folds the transposes of Linear layers inside the functions that are given the weights.
// Where there is one, the other matrices that something is multiplied by become tensors, called as
// the nodes' results. Constants of one or two values stay.
Unfolded UnfoldConstants(LoadedModel& model, TensorReader& reader);

}  // namespace shardc::onnx_import
