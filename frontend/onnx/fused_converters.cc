// What ONNX Runtime's optimizer fuses (domain com.microsoft), taken apart again; the activations
// are with the elementwise ops.
#include <algorithm>
#include <string>

#include "frontend/onnx/convert_util.h"

namespace shardc::onnx_import {
namespace {

constexpr char kUnoptimized[] = "compile the model as it was before ONNX Runtime optimized it";

Value* TransposedIf(NodeContext& c, std::string_view attribute, Value* v) {
  int rank = v->type.rank();
  if (c.Int(attribute, 0) == 0 || rank < 2) return v;
  Ints perm = Count(rank);
  std::swap(perm[rank - 1], perm[rank - 2]);
  return c.Transpose(v, std::move(perm));
}

void FusedMatMul(NodeContext& c) {
  if (c.Int("transBatchA", 0) != 0 || c.Int("transBatchB", 0) != 0) {
    c.Fail("E1301", "FusedMatMul with transBatchA or transBatchB is not supported", kUnoptimized);
  }
  Value *a = TransposedIf(c, "transA", c.input(0)), *b = TransposedIf(c, "transB", c.input(1));
  if (a->type.rank() < 2 || b->type.rank() < 2) c.Fail("E1303", "FusedMatMul needs matrices");
  c.SetOutput(0, Times(c, c.Make("matmul", {a, b}), c.Float("alpha", 1)));
}

void FusedGemm(NodeContext& c) {
  constexpr std::pair<std::string_view, std::string_view> kActivations[] = {
      {"", ""}, {"Relu", "relu"}, {"Tanh", "tanh"}, {"Sigmoid", "sigmoid"}};
  std::string activation = c.String("activation", "");
  const auto* known = std::find_if(std::begin(kActivations), std::end(kActivations),
                                   [&](const auto& entry) { return entry.first == activation; });
  if (known == std::end(kActivations)) {
    c.Fail("E1301", StrCat("FusedGemm with the activation ", activation, " is not supported"),
           kUnoptimized);
  }
  Value* y = GemmOf(c);
  c.SetOutput(0, known->second.empty() ? y : c.Make(known->second, {y}));
}

// A sum and its norm: inputs x, what is added, weight[, bias of the norm][, bias of the sum].
void SkipNorm(NodeContext& c) {
  const bool simplified = c.op_type() == "SkipSimplifiedLayerNormalization";
  const int sum_bias = simplified ? 3 : 4;
  Value* sum = Add(c, c.input(0), c.input(1));
  if (c.has_input(sum_bias)) sum = Add(c, sum, c.input(sum_bias));
  std::vector<Value*> operands = {sum, c.input(2)};
  if (!simplified && c.has_input(3)) operands.push_back(c.input(3));
  std::vector<Value*> results =
      c.MakeAll(simplified ? "rms_norm" : "layer_norm", std::move(operands),
                {{"eps", c.Float("epsilon", 1e-12f)}});
  c.SetOutput(0, results[0]);
  for (int i = 1; i < 3 && i < c.num_outputs(); ++i) {
    if (c.OutputWanted(i))
      c.Fail("E1301", StrCat("the statistics of ", c.op_type(), " are not supported"));
  }
  if (c.num_outputs() > 3 && c.OutputWanted(3)) c.SetOutput(3, sum);
}

}  // namespace

void AddFusedConverters(ConverterTable& table) {
  table.insert({{"com.microsoft::FusedMatMul", FusedMatMul},
                {"com.microsoft::FusedGemm", FusedGemm},
                {"com.microsoft::SkipLayerNormalization", SkipNorm},
                {"com.microsoft::SkipSimplifiedLayerNormalization", SkipNorm}});
}

}  // namespace shardc::onnx_import
