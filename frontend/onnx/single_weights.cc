#include "frontend/onnx/single_weights.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <vector>

#include "frontend/onnx/constant_weights.h"

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
    name = InputOf(*maker, 0);
    of_one = 1 - of_one;
  }
  return std::ranges::any_of(uses.initializers(), [&](const onnx::TensorProto* t) {
    return t->name() == name && t->dims_size() == 2 && t->dims(of_one) == 1;
  });
}

bool IsProductOfOneColumn(const std::string& value, const Uses& uses) {
  const onnx::NodeProto* node = uses.MakerOf(value);
  return node != nullptr && node->op_type() == "MatMul" && node->input_size() == 2 &&
         IsMatrixOfOneColumn(InputOf(*node, 1), uses);
}

// In few steps.
bool IsComputedFrom(const std::string& value, const std::string& source, const Uses& uses) {
  constexpr size_t kMaxValues = 2048;
  std::vector<std::string> found = {value};
  std::set<std::string> seen = {value};
  for (size_t i = 0; i < found.size() && found.size() < kMaxValues; ++i) {
    if (found[i] == source) return true;
    const onnx::NodeProto* maker = uses.MakerOf(found[i]);
    if (maker == nullptr) continue;
    for (const std::string& input : maker->input()) {
      if (seen.insert(input).second) found.push_back(input);
    }
  }
  return false;
}

// What a product with a value scales; empty where the use is none, or scales nothing computed.
std::string ScaledBy(const Use& use, const Uses& uses) {
  if (use.node->op_type() != "Mul") return "";
  const std::string& other = InputOf(*use.node, 1 - use.input);
  return uses.IsActivation(other) ? other : "";
}

bool ScalesBranch(const Use& use, const Uses& uses) {
  const std::string branch = ScaledBy(use, uses);
  if (branch.empty()) return false;
  const std::vector<Use>& sums = uses.Of(OutputOf(*use.node));
  return !sums.empty() && std::ranges::all_of(sums, [&](const Use& sum) {
    return sum.node != nullptr && sum.node->op_type() == "Add" &&
           IsComputedFrom(branch, InputOf(*sum.node, 1 - sum.input), uses);
  });
}

// As the slope of what is squashed (DyT's tanh(alpha x), Swish's x sigmoid(beta x)).
bool ScalesIntoSquash(const Use& use, const Uses& uses) {
  if (ScaledBy(use, uses).empty()) return false;
  const std::vector<Use>& squashed = uses.Of(OutputOf(*use.node));
  return !squashed.empty() && std::ranges::all_of(squashed, [](const Use& by) {
    return by.node != nullptr && (by.node->op_type() == "Tanh" || by.node->op_type() == "Sigmoid");
  });
}

bool IsOne(const std::string& value, const Uses& uses) {
  const onnx::NodeProto* maker = uses.MakerOf(value);
  const onnx::TensorProto* t = maker == nullptr ? nullptr : ConstantValue(*maker);
  if (t == nullptr || t->data_type() != onnx::TensorProto::FLOAT) return false;
  constexpr std::string_view kOne("\0\0\x80\x3f", 4);
  return t->has_raw_data() ? t->raw_data() == kOne
                           : t->float_data_size() == 1 && t->float_data(0) == 1;
}

bool ScalesWithOneAdded(const Use& use, const Uses& uses) {
  const onnx::NodeProto& sum = *use.node;
  if (sum.op_type() != "Add" || !IsOne(InputOf(sum, 1 - use.input), uses)) return false;
  const std::vector<Use>& scales = uses.Of(OutputOf(sum));
  return !scales.empty() && std::ranges::all_of(scales, [&](const Use& scale) {
    return scale.node != nullptr && !ScaledBy(scale, uses).empty();
  });
}

}  // namespace

bool IsWeightOfOneOutput(const std::string& tensor, const Uses& uses) {
  const std::vector<Use>& of = uses.Of(tensor);
  return !of.empty() && std::ranges::all_of(of, [&](const Use& use) {
    if (use.node == nullptr) return false;
    if (IsWeight(use)) return true;
    if (kArrange.contains(use.node->op_type()))
      return use.input == 0 && IsWeightOfOneOutput(OutputOf(*use.node), uses);
    return use.node->op_type() == "Add" && use.node->input_size() == 2 &&
           IsProductOfOneColumn(InputOf(*use.node, 1 - use.input), uses);
  });
}

bool IsGateOfModule(const std::string& tensor, const Uses& uses) {
  const std::vector<Use>& of = uses.Of(tensor);
  return !of.empty() && std::ranges::all_of(of, [&](const Use& use) {
    return use.node != nullptr && (ScalesBranch(use, uses) || ScalesIntoSquash(use, uses) ||
                                   ScalesWithOneAdded(use, uses));
  });
}

}  // namespace shardc::onnx_import
