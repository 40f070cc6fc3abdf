// What an import did with the parameters and inputs of a model that its user should know.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "frontend/onnx/converter.h"
#include "frontend/onnx/folded_constants.h"
#include "frontend/onnx/params.h"
#include "ir/graph.h"

namespace shardc::onnx_import {

// Of constants that were made of the file's tensors again.
void NoteUnfolded(Graph& graph, const Unfolded& unfolded);

// Of parameters that the exporter computed, merged or left out, and of tensors that are none, where
// something reads them (`wanted`). `of_module`: the module's own have been asked for.
void NoteParameters(Graph& graph, const Parameters& params, const std::set<std::string>& wanted,
                    bool of_module);

// Of dropout that a module in training has and PyTorch's exporters did not write: that of
// scaled_dot_product_attention.
void NoteLostDropout(Graph& graph, const onnx::ModelProto& model);

// Of losses that the module smooths and dynamo wrote as a plain cross entropy.
void NoteLostSmoothing(Graph& graph, const onnx::ModelProto& model);

// Of parameters that are tables of sines: exporters do not say that a module does not train them.
void NoteSines(Graph& graph);

// Of inputs that nothing reads, beside others of their type: an exporter makes one input of what it
// was given as one tensor.
void NoteUnread(Graph& graph);

// Of what was rounded to small integers (codes), whose gradient is that of what is rounded.
void NoteRounded(Graph& graph, const std::map<const Value*, Steps>& codes);

// Of constants of these names, in which a number is none.
void NoteNans(Graph& graph, const std::vector<std::string>& names);

}  // namespace shardc::onnx_import
