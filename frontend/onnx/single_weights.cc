#include "frontend/onnx/single_weights.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

namespace shardc::onnx_import {
namespace {

// As TorchScript gives PRelu the slope.
const std::set<std::string_view> kArrange = {"Reshape", "Transpose", "Unsqueeze"};

bool IsWeight(const Use& use) {
  struct Inputs {
    int first, last;
  };
  static const std::map<std::string_view, Inputs> kInputs = {{"BatchNormalization", {1, 2}},
                                                             {"Conv", {1, 2}},
                                                             {"ConvTranspose", {1, 2}},
                                                             {"Gemm", {1, 2}},
                                                             {"GroupNormalization", {1, 2}},
                                                             {"InstanceNormalization", {1, 2}},
                                                             {"LayerNormalization", {1, 2}},
                                                             {"MatMul", {1, 1}},
                                                             {"PRelu", {1, 1}}};
  const auto inputs = kInputs.find(use.node->op_type());
  return inputs != kInputs.end() && inputs->second.first <= use.input &&
         use.input <= inputs->second.last;
}

// One of the file, or the transpose of one, as TorchScript writes it where it folds nothing.
bool IsMatrixOfOneColumn(std::string name, const Uses& uses) {
  int of_one = 1;
  const onnx::NodeProto* maker = uses.MakerOf(name);
  for (; maker != nullptr && maker->op_type() == "Transpose"; maker = uses.MakerOf(name)) {
    name = maker->input(0);
    of_one = 1 - of_one;
  }
  return std::ranges::any_of(uses.initializers(), [&](const onnx::TensorProto* t) {
    return t->name() == name && t->dims_size() == 2 && t->dims(of_one) == 1;
  });
}

bool IsProductOfOneColumn(const std::string& value, const Uses& uses) {
  const onnx::NodeProto* node = uses.MakerOf(value);
  return node != nullptr && node->op_type() == "MatMul" && node->input_size() == 2 &&
         IsMatrixOfOneColumn(node->input(1), uses);
}

}  // namespace

bool IsWeightOfOneOutput(const std::string& tensor, const Uses& uses) {
  const std::vector<Use>& of = uses.Of(tensor);
  return !of.empty() && std::ranges::all_of(of, [&](const Use& use) {
    if (use.node == nullptr) return false;
    if (IsWeight(use)) return true;
    if (kArrange.contains(use.node->op_type()))
      return use.input == 0 && IsWeightOfOneOutput(use.node->output(0), uses);
    return use.node->op_type() == "Add" && use.node->input_size() == 2 &&
           IsProductOfOneColumn(use.node->input(1 - use.input), uses);
  });
}

}  // namespace shardc::onnx_import
