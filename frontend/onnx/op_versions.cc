#include "frontend/onnx/op_versions.h"

#include <algorithm>
#include <map>
#include <vector>

#include "frontend/onnx/load_model.h"

namespace shardc::onnx_import {
namespace {

// An attribute or an input (counted from 0) that the op has in some opsets only; neither: the op.
struct Change {
  std::string_view op, attribute;
  int input, first, last;  // opsets; 0: it was always there, it is still there
};

// By tests/conformance/op_versions.py.
constexpr Change kChanges[] = {
    {"ArgMax", "select_last_index", 0, 12, 0},
    {"ArgMin", "select_last_index", 0, 12, 0},
    {"Attention", "", 0, 23, 0},
    {"Attention", "left_window_size", 0, 25, 0},
    {"Attention", "right_window_size", 0, 25, 0},
    {"Attention", "", 6, 24, 0},
    {"AveragePool", "ceil_mode", 0, 10, 0},
    {"AveragePool", "dilations", 0, 19, 0},
    {"BatchNormalization", "training_mode", 0, 14, 0},
    {"Bernoulli", "", 0, 15, 0},
    {"BitShift", "", 0, 11, 0},
    {"BitwiseAnd", "", 0, 18, 0},
    {"BitwiseNot", "", 0, 18, 0},
    {"BitwiseOr", "", 0, 18, 0},
    {"BitwiseXor", "", 0, 18, 0},
    {"Cast", "round_mode", 0, 24, 0},
    {"Cast", "saturate", 0, 19, 0},
    {"CastLike", "", 0, 15, 0},
    {"CastLike", "round_mode", 0, 24, 0},
    {"CastLike", "saturate", 0, 19, 0},
    {"CausalConvWithState", "", 0, 27, 0},
    {"Celu", "", 0, 12, 0},
    {"Clip", "max", 0, 0, 10},
    {"Clip", "min", 0, 0, 10},
    {"Clip", "", 1, 11, 0},
    {"Clip", "", 2, 11, 0},
    {"ConcatFromSequence", "", 0, 11, 0},
    {"Constant", "sparse_value", 0, 11, 0},
    {"Constant", "value_float", 0, 12, 0},
    {"Constant", "value_floats", 0, 12, 0},
    {"Constant", "value_int", 0, 12, 0},
    {"Constant", "value_ints", 0, 12, 0},
    {"Constant", "value_string", 0, 12, 0},
    {"Constant", "value_strings", 0, 12, 0},
    {"CumSum", "", 0, 11, 0},
    {"DFT", "", 0, 17, 0},
    {"DFT", "axis", 0, 0, 19},
    {"DFT", "", 2, 20, 0},
    {"DepthToSpace", "mode", 0, 11, 0},
    {"DequantizeLinear", "", 0, 10, 0},
    {"DequantizeLinear", "axis", 0, 13, 0},
    {"DequantizeLinear", "block_size", 0, 21, 0},
    {"DequantizeLinear", "output_dtype", 0, 23, 0},
    {"Dropout", "ratio", 0, 0, 11},
    {"Dropout", "seed", 0, 12, 0},
    {"Dropout", "", 1, 12, 0},
    {"Dropout", "", 2, 12, 0},
    {"DynamicQuantizeLinear", "", 0, 11, 0},
    {"Einsum", "", 0, 12, 0},
    {"GRU", "layout", 0, 14, 0},
    {"GatherElements", "", 0, 11, 0},
    {"GatherND", "", 0, 11, 0},
    {"GatherND", "batch_dims", 0, 12, 0},
    {"Gelu", "", 0, 20, 0},
    {"GreaterOrEqual", "", 0, 12, 0},
    {"GroupNormalization", "", 0, 18, 0},
    {"GroupNormalization", "stash_type", 0, 21, 0},
    {"HardSwish", "", 0, 14, 0},
    {"IsInf", "", 0, 10, 0},
    {"LSTM", "layout", 0, 14, 0},
    {"LessOrEqual", "", 0, 12, 0},
    {"LinearAttention", "", 0, 27, 0},
    {"MatMulInteger", "", 0, 10, 0},
    {"MaxPool", "ceil_mode", 0, 10, 0},
    {"MaxPool", "dilations", 0, 10, 0},
    {"Mish", "", 0, 18, 0},
    {"Mod", "", 0, 10, 0},
    {"NegativeLogLikelihoodLoss", "", 0, 12, 0},
    {"Pad", "pads", 0, 0, 10},
    {"Pad", "value", 0, 0, 10},
    {"Pad", "", 1, 11, 0},
    {"Pad", "", 2, 11, 0},
    {"Pad", "", 3, 18, 0},
    {"QuantizeLinear", "", 0, 10, 0},
    {"QuantizeLinear", "axis", 0, 13, 0},
    {"QuantizeLinear", "block_size", 0, 21, 0},
    {"QuantizeLinear", "output_dtype", 0, 21, 0},
    {"QuantizeLinear", "precision", 0, 23, 0},
    {"QuantizeLinear", "saturate", 0, 19, 0},
    {"RMSNormalization", "", 0, 23, 0},
    {"RNN", "layout", 0, 14, 0},
    {"Range", "", 0, 11, 0},
    {"Range", "stash_type", 0, 27, 0},
    {"ReduceL1", "axes", 0, 0, 17},
    {"ReduceL1", "noop_with_empty_axes", 0, 18, 0},
    {"ReduceL1", "", 1, 18, 0},
    {"ReduceL2", "axes", 0, 0, 17},
    {"ReduceL2", "noop_with_empty_axes", 0, 18, 0},
    {"ReduceL2", "", 1, 18, 0},
    {"ReduceLogSum", "axes", 0, 0, 17},
    {"ReduceLogSum", "noop_with_empty_axes", 0, 18, 0},
    {"ReduceLogSum", "", 1, 18, 0},
    {"ReduceLogSumExp", "axes", 0, 0, 17},
    {"ReduceLogSumExp", "noop_with_empty_axes", 0, 18, 0},
    {"ReduceLogSumExp", "", 1, 18, 0},
    {"ReduceMax", "axes", 0, 0, 17},
    {"ReduceMax", "noop_with_empty_axes", 0, 18, 0},
    {"ReduceMax", "", 1, 18, 0},
    {"ReduceMean", "axes", 0, 0, 17},
    {"ReduceMean", "noop_with_empty_axes", 0, 18, 0},
    {"ReduceMean", "", 1, 18, 0},
    {"ReduceMin", "axes", 0, 0, 17},
    {"ReduceMin", "noop_with_empty_axes", 0, 18, 0},
    {"ReduceMin", "", 1, 18, 0},
    {"ReduceProd", "axes", 0, 0, 17},
    {"ReduceProd", "noop_with_empty_axes", 0, 18, 0},
    {"ReduceProd", "", 1, 18, 0},
    {"ReduceSum", "axes", 0, 0, 12},
    {"ReduceSum", "noop_with_empty_axes", 0, 13, 0},
    {"ReduceSum", "", 1, 13, 0},
    {"ReduceSumSquare", "axes", 0, 0, 17},
    {"ReduceSumSquare", "noop_with_empty_axes", 0, 18, 0},
    {"ReduceSumSquare", "", 1, 18, 0},
    {"Reshape", "allowzero", 0, 14, 0},
    {"Resize", "", 0, 10, 0},
    {"Resize", "antialias", 0, 18, 0},
    {"Resize", "axes", 0, 18, 0},
    {"Resize", "coordinate_transformation_mode", 0, 11, 0},
    {"Resize", "cubic_coeff_a", 0, 11, 0},
    {"Resize", "exclude_outside", 0, 11, 0},
    {"Resize", "extrapolation_value", 0, 11, 0},
    {"Resize", "keep_aspect_ratio_policy", 0, 18, 0},
    {"Resize", "nearest_mode", 0, 11, 0},
    {"Resize", "", 2, 11, 0},
    {"Resize", "", 3, 11, 0},
    {"RotaryEmbedding", "", 0, 23, 0},
    {"Round", "", 0, 11, 0},
    {"Scatter", "", 0, 0, 10},
    {"ScatterElements", "", 0, 11, 0},
    {"ScatterElements", "reduction", 0, 16, 0},
    {"ScatterND", "", 0, 11, 0},
    {"ScatterND", "reduction", 0, 16, 0},
    {"SequenceAt", "", 0, 11, 0},
    {"SequenceConstruct", "", 0, 11, 0},
    {"SequenceEmpty", "", 0, 11, 0},
    {"SequenceErase", "", 0, 11, 0},
    {"SequenceInsert", "", 0, 11, 0},
    {"SequenceLength", "", 0, 11, 0},
    {"Shape", "end", 0, 15, 0},
    {"Shape", "start", 0, 15, 0},
    {"Slice", "axes", 0, 0, 9},
    {"Slice", "ends", 0, 0, 9},
    {"Slice", "starts", 0, 0, 9},
    {"Slice", "", 1, 10, 0},
    {"Slice", "", 2, 10, 0},
    {"Slice", "", 3, 10, 0},
    {"Slice", "", 4, 10, 0},
    {"SoftmaxCrossEntropyLoss", "", 0, 12, 0},
    {"SpaceToDepth", "mode", 0, 28, 0},
    {"Split", "num_outputs", 0, 18, 0},
    {"Split", "split", 0, 0, 12},
    {"Split", "", 1, 13, 0},
    {"SplitToSequence", "", 0, 11, 0},
    {"Squeeze", "axes", 0, 0, 12},
    {"Squeeze", "", 1, 13, 0},
    {"SwiGLU", "", 0, 28, 0},
    {"Swish", "", 0, 24, 0},
    {"TensorScatter", "", 0, 24, 0},
    {"TopK", "k", 0, 0, 9},
    {"TopK", "largest", 0, 11, 0},
    {"TopK", "sorted", 0, 11, 0},
    {"TopK", "", 1, 10, 0},
    {"Trilu", "", 0, 14, 0},
    {"Unsqueeze", "axes", 0, 0, 12},
    {"Unsqueeze", "", 1, 13, 0},
    {"Upsample", "", 0, 0, 9},
};

const std::vector<const Change*>& ChangesOf(std::string_view op) {
  static const auto by_op = [] {
    std::map<std::string_view, std::vector<const Change*>> all;
    for (const Change& change : kChanges) all[change.op].push_back(&change);
    return all;
  }();
  static const std::vector<const Change*> none;
  auto it = by_op.find(op);
  return it == by_op.end() ? none : it->second;
}

bool Has(const onnx::NodeProto& proto, const Change& change) {
  if (change.input > 0) {
    return change.input < proto.input_size() && !proto.input(change.input).empty();
  }
  if (change.attribute.empty()) return true;
  return std::any_of(proto.attribute().begin(), proto.attribute().end(),
                     [&](const auto& attr) { return attr.name() == change.attribute; });
}

}  // namespace

void CheckVersion(const Node& node, const onnx::NodeProto& proto) {
  if (!NormalDomain(proto.domain()).empty()) return;
  const int opset = node.opset();
  for (const Change* change : ChangesOf(proto.op_type())) {
    const bool early = opset < change->first;
    const bool late = change->last != 0 && opset > change->last;
    if ((!early && !late) || !Has(proto, *change)) continue;
    const std::string what = change->input > 0 ? StrCat("input ", change->input, " of ")
                             : change->attribute.empty()
                                 ? ""
                                 : StrCat("attribute '", change->attribute, "' of ");
    node.Fail("E1301",
              StrCat(what, proto.op_type(),
                     early ? StrCat(" came with opset ", change->first)
                           : StrCat(" went with opset ", change->last + 1),
                     ", and the model declares opset ", opset),
              "onnx.checker tells more; export the model with the opset that it is written for");
  }
}

}  // namespace shardc::onnx_import
