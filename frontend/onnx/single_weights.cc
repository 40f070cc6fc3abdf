#include "frontend/onnx/single_weights.h"

#include <algorithm>
#include <map>
#include <string_view>

namespace shardc::onnx_import {
namespace {

bool IsWeight(const Use& use) {
  struct Inputs {
    int first, last;
  };
  static const std::map<std::string_view, Inputs> kInputs = {
      {"BatchNormalization", {1, 2}}, {"Conv", {1, 2}},
      {"ConvTranspose", {1, 2}},      {"Gemm", {2, 2}},
      {"GroupNormalization", {1, 2}}, {"InstanceNormalization", {1, 2}},
      {"LayerNormalization", {1, 2}}, {"PRelu", {1, 1}}};
  const auto inputs = kInputs.find(use.node->op_type());
  return inputs != kInputs.end() && inputs->second.first <= use.input &&
         use.input <= inputs->second.last;
}

bool IsMatrixOfOneColumn(const std::string& name, const Uses& uses) {
  return std::ranges::any_of(uses.initializers(), [&](const onnx::TensorProto* t) {
    return t->name() == name && t->dims_size() == 2 && t->dims(1) == 1;
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
    return use.node->op_type() == "Add" && use.node->input_size() == 2 &&
           IsProductOfOneColumn(use.node->input(1 - use.input), uses);
  });
}

}  // namespace shardc::onnx_import
