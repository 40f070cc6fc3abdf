#include "frontend/onnx/op_types.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "frontend/onnx/initializers.h"
#include "frontend/onnx/load_model.h"

namespace shardc::onnx_import {
namespace {

// The integers, bool among them, that an input may be in the opsets from `first` to that of the
// next entry.
struct Types {
  std::string_view op;
  int input, first;
  std::string_view types;  // names, in order of their sizes, with a blank between them
};

// By tests/conformance/op_types.py.
constexpr Types kTypes[] = {
    {"Abs", 0, 9, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"Add", 0, 9, "int32 uint32 int64 uint64"},
    {"Add", 0, 14, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"Add", 1, 9, "int32 uint32 int64 uint64"},
    {"Add", 1, 14, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"And", 0, 9, "bool"},
    {"And", 1, 9, "bool"},
    {"ArgMax", 0, 9, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"ArgMin", 0, 9, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"Attention", 0, 23, ""},
    {"Attention", 1, 23, ""},
    {"Attention", 2, 23, ""},
    {"Attention", 4, 23, ""},
    {"Attention", 5, 23, ""},
    {"Attention", 6, 24, "int64"},
    {"AveragePool", 0, 9, ""},
    {"BatchNormalization", 0, 9, ""},
    {"BatchNormalization", 1, 9, ""},
    {"BatchNormalization", 2, 9, ""},
    {"BatchNormalization", 3, 9, ""},
    {"BatchNormalization", 4, 9, ""},
    {"Bernoulli", 0, 15, ""},
    {"BitwiseAnd", 0, 18, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"BitwiseAnd", 1, 18, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"BitwiseNot", 0, 18, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"BitwiseOr", 0, 18, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"BitwiseOr", 1, 18, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"BitwiseXor", 0, 18, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"BitwiseXor", 1, 18, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"CausalConvWithState", 0, 27, ""},
    {"CausalConvWithState", 1, 27, ""},
    {"CausalConvWithState", 2, 27, ""},
    {"CausalConvWithState", 3, 27, ""},
    {"Ceil", 0, 9, ""},
    {"Celu", 0, 12, ""},
    {"Clip", 0, 9, ""},
    {"Clip", 0, 12, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"Clip", 1, 11, ""},
    {"Clip", 1, 12, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"Clip", 2, 11, ""},
    {"Clip", 2, 12, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"ConstantOfShape", 0, 9, "int64"},
    {"Conv", 0, 9, ""},
    {"Conv", 1, 9, ""},
    {"Conv", 2, 9, ""},
    {"ConvTranspose", 0, 9, ""},
    {"ConvTranspose", 1, 9, ""},
    {"ConvTranspose", 2, 9, ""},
    {"Cos", 0, 9, ""},
    {"CumSum", 0, 11, "int32 uint32 int64 uint64"},
    {"CumSum", 1, 11, "int32 int64"},
    {"DFT", 0, 17, ""},
    {"DFT", 1, 17, "int32 int64"},
    {"DFT", 2, 20, "int64"},
    {"Div", 0, 9, "int32 uint32 int64 uint64"},
    {"Div", 0, 14, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"Div", 1, 9, "int32 uint32 int64 uint64"},
    {"Div", 1, 14, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"Dropout", 0, 9, ""},
    {"Dropout", 1, 12, ""},
    {"Dropout", 2, 12, "bool"},
    {"Einsum", 0, 12, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"Elu", 0, 9, ""},
    {"Equal", 0, 9, "bool int32 int64"},
    {"Equal", 0, 11, "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"Equal", 1, 9, "bool int32 int64"},
    {"Equal", 1, 11, "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"Erf", 0, 9, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"Erf", 0, 13, ""},
    {"Exp", 0, 9, ""},
    {"Expand", 1, 9, "int64"},
    {"Floor", 0, 9, ""},
    {"GRU", 0, 9, ""},
    {"GRU", 1, 9, ""},
    {"GRU", 2, 9, ""},
    {"GRU", 3, 9, ""},
    {"GRU", 4, 9, "int32"},
    {"GRU", 5, 9, ""},
    {"Gather", 1, 9, "int32 int64"},
    {"GatherElements", 1, 11, "int32 int64"},
    {"GatherND", 1, 11, "int64"},
    {"Gelu", 0, 20, ""},
    {"Gemm", 0, 9, "int32 uint32 int64 uint64"},
    {"Gemm", 1, 9, "int32 uint32 int64 uint64"},
    {"Gemm", 2, 9, "int32 uint32 int64 uint64"},
    {"GlobalAveragePool", 0, 9, ""},
    {"GlobalMaxPool", 0, 9, ""},
    {"Greater", 0, 9, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"Greater", 1, 9, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"GreaterOrEqual", 0, 12, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"GreaterOrEqual", 1, 12, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"GroupNormalization", 0, 18, ""},
    {"GroupNormalization", 1, 18, ""},
    {"GroupNormalization", 2, 18, ""},
    {"HardSigmoid", 0, 9, ""},
    {"HardSwish", 0, 14, ""},
    {"InstanceNormalization", 0, 9, ""},
    {"InstanceNormalization", 1, 9, ""},
    {"InstanceNormalization", 2, 9, ""},
    {"IsInf", 0, 10, ""},
    {"IsNaN", 0, 9, ""},
    {"LSTM", 0, 9, ""},
    {"LSTM", 1, 9, ""},
    {"LSTM", 2, 9, ""},
    {"LSTM", 3, 9, ""},
    {"LSTM", 4, 9, "int32"},
    {"LSTM", 5, 9, ""},
    {"LSTM", 6, 9, ""},
    {"LSTM", 7, 9, ""},
    {"LayerNormalization", 0, 17, ""},
    {"LayerNormalization", 1, 17, ""},
    {"LayerNormalization", 2, 17, ""},
    {"LeakyRelu", 0, 9, ""},
    {"Less", 0, 9, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"Less", 1, 9, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"LessOrEqual", 0, 12, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"LessOrEqual", 1, 12, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"LinearAttention", 0, 27, ""},
    {"LinearAttention", 1, 27, ""},
    {"LinearAttention", 2, 27, ""},
    {"LinearAttention", 3, 27, ""},
    {"LinearAttention", 4, 27, ""},
    {"LinearAttention", 5, 27, ""},
    {"Log", 0, 9, ""},
    {"LogSoftmax", 0, 9, ""},
    {"LpNormalization", 0, 9, ""},
    {"MatMul", 0, 9, "int32 uint32 int64 uint64"},
    {"MatMul", 1, 9, "int32 uint32 int64 uint64"},
    {"Max", 0, 9, ""},
    {"Max", 0, 12, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"MaxPool", 0, 9, ""},
    {"MaxPool", 0, 12, "int8 uint8"},
    {"Mean", 0, 9, ""},
    {"Min", 0, 9, ""},
    {"Min", 0, 12, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"Mish", 0, 18, ""},
    {"Mod", 0, 10, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"Mod", 1, 10, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"Mul", 0, 9, "int32 uint32 int64 uint64"},
    {"Mul", 0, 14, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"Mul", 1, 9, "int32 uint32 int64 uint64"},
    {"Mul", 1, 14, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"Multinomial", 0, 9, ""},
    {"Neg", 0, 9, "int8 int16 int32 int64"},
    {"NegativeLogLikelihoodLoss", 0, 12, ""},
    {"NegativeLogLikelihoodLoss", 1, 12, "int32 int64"},
    {"NegativeLogLikelihoodLoss", 2, 12, ""},
    {"Not", 0, 9, "bool"},
    {"OneHot", 0, 9, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"OneHot", 1, 9, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"Or", 0, 9, "bool"},
    {"Or", 1, 9, "bool"},
    {"PRelu", 0, 9, "int32 uint32 int64 uint64"},
    {"PRelu", 1, 9, "int32 uint32 int64 uint64"},
    {"Pad", 0, 9, ""},
    {"Pad", 0, 11, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"Pad", 0, 13, "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"Pad", 1, 11, "int64"},
    {"Pad", 2, 11, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"Pad", 2, 13, "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"Pad", 3, 18, "int32 int64"},
    {"Pow", 0, 9, ""},
    {"Pow", 0, 12, "int32 int64"},
    {"Pow", 1, 9, ""},
    {"Pow", 1, 12, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"RMSNormalization", 0, 23, ""},
    {"RMSNormalization", 1, 23, ""},
    {"RNN", 0, 9, ""},
    {"RNN", 1, 9, ""},
    {"RNN", 2, 9, ""},
    {"RNN", 3, 9, ""},
    {"RNN", 4, 9, "int32"},
    {"RNN", 5, 9, ""},
    {"Range", 0, 11, "int16 int32 int64"},
    {"Range", 1, 11, "int16 int32 int64"},
    {"Range", 2, 11, "int16 int32 int64"},
    {"Reciprocal", 0, 9, ""},
    {"ReduceL1", 0, 9, "int32 uint32 int64 uint64"},
    {"ReduceL1", 1, 18, "int64"},
    {"ReduceL2", 0, 9, "int32 uint32 int64 uint64"},
    {"ReduceL2", 1, 18, "int64"},
    {"ReduceLogSum", 0, 9, "int32 uint32 int64 uint64"},
    {"ReduceLogSum", 0, 28, ""},
    {"ReduceLogSum", 1, 18, "int64"},
    {"ReduceLogSumExp", 0, 9, "int32 uint32 int64 uint64"},
    {"ReduceLogSumExp", 0, 28, ""},
    {"ReduceLogSumExp", 1, 18, "int64"},
    {"ReduceMax", 0, 9, "int32 uint32 int64 uint64"},
    {"ReduceMax", 0, 12, "int8 uint8 int32 uint32 int64 uint64"},
    {"ReduceMax", 0, 20, "bool int8 uint8 int32 uint32 int64 uint64"},
    {"ReduceMax", 1, 18, "int64"},
    {"ReduceMean", 0, 9, "int32 uint32 int64 uint64"},
    {"ReduceMean", 1, 18, "int64"},
    {"ReduceMin", 0, 9, "int32 uint32 int64 uint64"},
    {"ReduceMin", 0, 12, "int8 uint8 int32 uint32 int64 uint64"},
    {"ReduceMin", 0, 20, "bool int8 uint8 int32 uint32 int64 uint64"},
    {"ReduceMin", 1, 18, "int64"},
    {"ReduceProd", 0, 9, "int32 uint32 int64 uint64"},
    {"ReduceProd", 1, 18, "int64"},
    {"ReduceSum", 0, 9, "int32 uint32 int64 uint64"},
    {"ReduceSum", 1, 13, "int64"},
    {"ReduceSumSquare", 0, 9, "int32 uint32 int64 uint64"},
    {"ReduceSumSquare", 1, 18, "int64"},
    {"Relu", 0, 9, ""},
    {"Relu", 0, 14, "int8 int16 int32 int64"},
    {"Reshape", 1, 9, "int64"},
    {"Resize", 1, 10, ""},
    {"Resize", 2, 11, ""},
    {"Resize", 3, 11, "int64"},
    {"RotaryEmbedding", 0, 23, ""},
    {"RotaryEmbedding", 1, 23, ""},
    {"RotaryEmbedding", 2, 23, ""},
    {"RotaryEmbedding", 3, 23, "int64"},
    {"Round", 0, 11, ""},
    {"Scatter", 1, 9, "int32 int64"},
    {"ScatterElements", 1, 11, "int32 int64"},
    {"ScatterND", 1, 11, "int64"},
    {"Selu", 0, 9, ""},
    {"SequenceAt", 1, 11, "int32 int64"},
    {"SequenceErase", 1, 11, "int32 int64"},
    {"SequenceInsert", 2, 11, "int32 int64"},
    {"Sigmoid", 0, 9, ""},
    {"Sign", 0, 9, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"Sin", 0, 9, ""},
    {"Slice", 1, 10, "int32 int64"},
    {"Slice", 2, 10, "int32 int64"},
    {"Slice", 3, 10, "int32 int64"},
    {"Slice", 4, 10, "int32 int64"},
    {"Softmax", 0, 9, ""},
    {"SoftmaxCrossEntropyLoss", 0, 12, ""},
    {"SoftmaxCrossEntropyLoss", 1, 12, "int32 int64"},
    {"SoftmaxCrossEntropyLoss", 2, 12, ""},
    {"Softplus", 0, 9, ""},
    {"Softsign", 0, 9, ""},
    {"Split", 1, 13, "int64"},
    {"SplitToSequence", 1, 11, "int32 int64"},
    {"Sqrt", 0, 9, ""},
    {"Squeeze", 1, 13, "int64"},
    {"Sub", 0, 9, "int32 uint32 int64 uint64"},
    {"Sub", 0, 14, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"Sub", 1, 9, "int32 uint32 int64 uint64"},
    {"Sub", 1, 14, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"Sum", 0, 9, ""},
    {"SwiGLU", 0, 28, ""},
    {"SwiGLU", 1, 28, ""},
    {"Swish", 0, 24, ""},
    {"Tan", 0, 9, ""},
    {"Tanh", 0, 9, ""},
    {"TensorScatter", 2, 24, "int64"},
    {"ThresholdedRelu", 0, 10, ""},
    {"Tile", 1, 9, "int64"},
    {"TopK", 0, 9, ""},
    {"TopK", 0, 11, "int8 uint8 int16 uint16 int32 uint32 int64 uint64"},
    {"TopK", 1, 10, "int64"},
    {"Trilu", 1, 14, "int64"},
    {"Unsqueeze", 1, 13, "int64"},
    {"Upsample", 1, 9, ""},
    {"Where", 0, 9, "bool"},
    {"Xor", 0, 9, "bool"},
    {"Xor", 1, 9, "bool"},
};

bool Names(std::string_view types, std::string_view one) {
  for (size_t at = types.find(one); at != types.npos; at = types.find(one, at + 1)) {
    const size_t end = at + one.size();
    if ((at == 0 || types[at - 1] == ' ') && (end == types.size() || types[end] == ' '))
      return true;
  }
  return false;
}

// Empty for floats.
std::string IntegerOf(const Node& node, const onnx::NodeProto& proto, int i) {
  if (i >= proto.input_size() || proto.input(i).empty() || node.IsSequence(i)) return "";
  if (const int64_t narrow = node.NarrowType(i)) return OnnxTypeName(static_cast<int>(narrow));
  switch (node.TypeOfInput(i)) {
    case DType::kBool:
      return "bool";
    case DType::kI32:
      return "int32";
    case DType::kI64:
      return "int64";
    default:
      return "";
  }
}

}  // namespace

void CheckTypes(const Node& node, const onnx::NodeProto& proto) {
  if (!NormalDomain(proto.domain()).empty()) return;
  const std::string_view op = proto.op_type();
  const auto [begin, end] = std::ranges::equal_range(kTypes, op, {}, &Types::op);
  for (auto row = begin; row != end; ++row) {
    const bool replaced =
        row + 1 != end && row[1].input == row->input && row[1].first <= node.opset();
    if (row->first > node.opset() || replaced) continue;
    const std::string type = IntegerOf(node, proto, row->input);
    if (type.empty() || Names(row->types, type)) continue;
    node.Fail("E1301",
              StrCat("input ", row->input, " of ", op, " is ", type, ", which opset ", node.opset(),
                     " does not allow"),
              "onnx.checker tells more; cast it");
  }
}

}  // namespace shardc::onnx_import
