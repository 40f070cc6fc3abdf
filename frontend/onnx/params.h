// Which tensors of a file are parameters, and which names they have lost.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "frontend/onnx/element_functions.h"
#include "frontend/onnx/initializers.h"
#include "frontend/onnx/load_model.h"
#include "frontend/onnx/names.h"

namespace shardc::onnx_import {

struct Parameters {
  // By initializer: the other names of the parameter (Identity nodes, folding, module paths), in
  // the order in which the graph uses them.
  std::map<std::string, std::vector<std::string>> aliases;
  // AliasesFound's
  std::set<std::string> sources;
  std::map<std::string, std::string> transpose_of;
  // Vectors that all calls which use them were given by this name, so that the exporter merged none
  // into them. They have no aliases but what they were made of.
  std::set<std::string> single;
  // Tensors folded from a parameter that an earlier tensor was folded from in the same way, where
  // the data is equal too: the layer runs several times. By name, the earlier one.
  std::map<std::string, std::string> copies;
  // Tensors that the exporter computed from a parameter and more (positions, buckets, another
  // parameter): rows of it, copies of rows, or a table made of it. By name, the parameters.
  std::map<std::string, std::vector<std::string>> computed_from;
  // Tensors that are elements of a parameter, as they are: by name, the parameter.
  std::map<std::string, std::string> taken_from;
  // Tensors that functions made of one parameter alone, and of constants.
  std::map<std::string, ComputedFrom> made_by;
  // Tensors that a function other than a product, a quotient, a sum or a difference made, or of
  // which only a part went into another (w / norm(w), w - w[0]).
  std::set<std::string> of_functions;
  // By parameter, what the exporter computed into it and the file has nothing of: a batch norm's
  // own tensors, of the convolution before it. Its name is the module's, its numbers are not.
  std::map<std::string, std::set<std::string>> merged;
  // Float tensors of several elements that are none, matrices of small integers and those that
  // Constant nodes hold, and numbers of which nobody can say.
  std::vector<std::string> constants;
  // Parameters that are single numbers, used as trained ones are, which the file does not tell.
  std::vector<std::string> guessed;
  // The module's other parameters of which the file has nothing, where it lists them, in order.
  std::vector<std::string> missing;

  bool Has(const std::string& name) const { return aliases.contains(name); }
};

// Decides by how a float initializer is used: as a matrix, a table of rows, a norm's scale or a
// bias. It is a constant when it is a single number that no layer of one output has and that
// TorchScript's module does not put through a function before it scales (exp(logit_scale)) nor
// scales the branch of a residual with or what it squashes, a mask
// (two values, one of them 0 or both 0 and 1), ALiBi's slopes or distances, or only scales
// elementwise with several dims, as rotary tables do and norms' weights do not. What the exporter
// wrote about the module (dynamo) goes before that. Outputs of Constant nodes are never parameters
// (but see constant_weights.h).
Parameters FindParameters(const LoadedModel& model, const ModuleNames& names, TensorReader& reader);

}  // namespace shardc::onnx_import
