#include "frontend/onnx/zero_biases.h"

#include <algorithm>
#include <map>
#include <optional>

#include "frontend/onnx/initializers.h"
#include "frontend/onnx/uses.h"

namespace shardc::onnx_import {
namespace {

using onnx::NodeProto;
using onnx::TensorProto;

// How many elements a bias beside the weight has.
std::optional<int64_t> BiasSize(const NodeProto& node, const TensorProto& weight) {
  if (node.op_type() == "Gemm" && weight.dims_size() == 2) {
    return weight.dims(IntOr(node, "transB", 0) != 0 ? 0 : 1);
  }
  if (node.op_type() == "Conv" && weight.dims_size() > 2) return weight.dims(0);
  if (node.op_type() == "ConvTranspose" && weight.dims_size() > 2) {
    return weight.dims(1) * IntOr(node, "group", 1);
  }
  return std::nullopt;
}

bool LostItsBias(const NodeProto& node) {
  if (node.input_size() != 2) return false;
  const auto metadata = Metadata(node, kNodeMetadata);
  const auto rule = metadata.find("pkg.onnxscript.rewriter.rule_name");
  return rule != metadata.end() && rule->second.starts_with("RemoveOptionalBias");
}

bool SameType(const TensorProto& a, const TensorProto& b) {
  return a.data_type() == b.data_type() && std::ranges::equal(a.dims(), b.dims());
}

}  // namespace

int AddZeroBiases(onnx::GraphProto& graph, const ModuleNames& names) {
  std::map<std::string, TensorProto> tensors;  // without their data
  for (const TensorProto& t : graph.initializer()) {
    TensorProto& type = tensors[t.name()];
    type.set_data_type(t.data_type());
    *type.mutable_dims() = t.dims();
  }
  int added = 0;
  for (NodeProto& node : *graph.mutable_node()) {
    if (!LostItsBias(node)) continue;
    const std::string name = BiasOf(node, names);
    const auto weight = tensors.find(node.input(1));
    if (name.empty() || weight == tensors.end()) continue;
    const std::optional<int64_t> size = BiasSize(node, weight->second);
    const std::optional<DType> held = HeldAs(weight->second.data_type());
    if (!size || !held || !IsFloat(*held)) continue;
    TensorProto bias;
    bias.set_data_type(weight->second.data_type());
    bias.add_dims(*size);
    const auto [known, is_new] = tensors.try_emplace(name, bias);
    if (is_new) {
      bias.set_name(name);
      bias.set_raw_data(std::string(*size * DTypeSize(*held), '\0'));
      *graph.add_initializer() = std::move(bias);
      ++added;
    } else if (!SameType(known->second, bias)) {
      continue;
    }
    node.add_input(name);  // one that calls share is that of each
  }
  return added;
}

}  // namespace shardc::onnx_import
