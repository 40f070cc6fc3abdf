// What ONNX Runtime's optimizer fuses (domain com.microsoft), taken apart again; attention is in a
// file of its own, the activations are with the elementwise ops.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

#include "frontend/onnx/activations.h"

namespace shardc::onnx_import {
namespace {

// transBatch moves the first dim behind the others but the last, as the rows of a matrix; then
// trans swaps the last two.
Value* Transposed(NodeContext& c, std::string_view trans, std::string_view trans_batch, Value* v) {
  const int rank = v->type.rank();
  Ints perm = Count(rank);
  if (c.Int(trans_batch, 0) != 0 && rank > 2)
    std::rotate(perm.begin(), perm.begin() + 1, perm.end() - 1);
  if (c.Int(trans, 0) != 0 && rank > 1) std::swap(perm[rank - 1], perm[rank - 2]);
  return perm == Count(rank) ? v : c.Transpose(v, std::move(perm));
}

void FusedMatMul(NodeContext& c) {
  Value* a = Transposed(c, "transA", "transBatchA", c.input(0));
  Value* b = Transposed(c, "transB", "transBatchB", c.input(1));
  if (a->type.rank() < 2 || b->type.rank() < 2) c.Fail("E1303", "FusedMatMul needs matrices");
  c.SetOutput(0, Times(c, c.Make("matmul", {a, b}), c.Float("alpha", 1)));
}

// By the attribute `activation`; its parameters are these where the node gives them.
Value* Activated(NodeContext& c, Value* y, std::optional<double> alpha,
                 std::optional<double> beta) {
  static constexpr Activation kClip = {"clip", kGiven, kGiven, Clamped};
  const std::string name = c.String("activation", "");
  if (name.empty()) return y;
  const Activation* f = name == "Clip" ? &kClip : FindActivation(name);
  const double a = alpha.value_or(f ? f->alpha.value_or(0) : 0);
  const double b = beta.value_or(f ? f->beta.value_or(0) : 0);
  if (!f || std::isnan(a) || std::isnan(b)) {
    c.Fail("E1301", StrCat(c.op_type(), " with the activation ", name, " is not supported"),
           kUnoptimized);
  }
  return f->apply(c, y, a, b);
}

void FusedGemm(NodeContext& c) {
  auto parameter = [&](std::string_view name) {
    return c.HasAttr(name) ? std::optional(c.Float(name, 0)) : std::nullopt;
  };
  c.SetOutput(0,
              Activated(c, GemmOf(c), parameter("activation_alpha"), parameter("activation_beta")));
}

// With a sum before the activation, where there is an input 3.
void FusedConv(NodeContext& c) {
  Value* y = ConvOf(c);
  if (c.has_input(3)) y = Add(c, y, InputOnto(c, 3, y->type.shape));
  const std::vector<double> given =
      c.FloatList("activation_params").value_or(std::vector<double>());
  auto parameter = [&](size_t i) {
    return i < given.size() ? std::optional(given[i]) : std::nullopt;
  };
  c.SetOutput(0, Activated(c, y, parameter(0), parameter(1)));
}

// A sum and its norm: inputs x, what is added, weight[, bias of the norm][, bias of the sum].
void SkipNorm(NodeContext& c) {
  const bool simplified = c.op_type() == "SkipSimplifiedLayerNormalization";
  const int sum_bias = simplified ? 3 : 4;
  const Shape& shape = c.input(0)->type.shape;
  Value* sum = Add(c, c.input(0), InputOnto(c, 1, shape));
  if (c.has_input(sum_bias)) sum = Add(c, sum, InputOnto(c, sum_bias, shape));
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

// Inputs: ids and segments; tables of words, positions and segments; weight and bias of the norm; a
// mask of 0 and 1; positions.
void EmbedLayerNorm(NodeContext& c) {
  Value* ids = c.input(0);
  if (ids->type.rank() != 2) c.Fail("E1303", "the ids have to be [batch, sequence]");
  const int64_t s = ids->type.shape[1];
  Value* sum = LookUp(c, c.input(2), ids);
  if (c.input(3)->type.rank() != 2) c.Fail("E1303", "the positions have to be a table");
  if (c.has_input(8)) {
    sum = Add(c, sum, LookUp(c, c.input(3), c.input(8)));
  } else if (c.input(3)->type.shape[0] < s) {
    c.Fail("E1303", StrCat("there are ", c.input(3)->type.shape[0], " positions for ", s, " ids"));
  } else {
    sum = Add(c, sum, SliceDim(c, c.input(3), 0, 0, s));
  }
  const bool ids_of_segments = c.has_input(1), table_of_segments = c.has_input(4);
  if (ids_of_segments && table_of_segments) sum = Add(c, sum, LookUp(c, c.input(4), c.input(1)));
  c.SetOutput(0, c.MakeAll("layer_norm", {sum, c.input(5), c.input(6)},
                           {{"eps", c.Float("epsilon", 1e-12f)}})[0]);
  if (c.OutputWanted(2)) c.SetOutput(2, sum);
  Value* mask = c.InputOrNull(7);
  if (!c.OutputWanted(1)) return;
  // The lengths of the sequences, or zeros.
  Value* lengths = c.BroadcastTo(c.Scalar(DType::kI32, 0), {ids->type.shape[0]});
  if (mask) {
    Value* ones = c.Make("equal", {mask, Like(c, mask, 1)});
    lengths = Reduce(c, "reduce_sum", c.Cast(ones, DType::kI32), {1}, false);
  }
  c.SetOutput(1, lengths);
}

// T5's: a row of the table for each distance that is small, and for ranges of those that are
// larger, the wider the further, up to max_distance. In both directions the second half of the
// table is for keys behind the query. In f32, as PyTorch rounds. The table is column-major: its
// data are those of one head after the other.
void RelativePositionBias(NodeContext& c) {
  Value* table = c.input(0);
  const int64_t queries = c.ConstantInt(1), keys = c.ConstantInt(2);
  const bool both = c.Flag("is_bidirectional", false);
  const int64_t furthest = c.Int("max_distance", 0);
  if (table->type.rank() != 2) c.Fail("E1303", "its table is no matrix");
  const int64_t buckets = table->type.shape[0], heads = table->type.shape[1];
  const int64_t rows = both ? buckets / 2 : buckets, exact = rows / 2;
  if (exact < 1 || furthest <= exact || queries < 1 || keys < 1) {
    c.Fail("E1303", StrCat("a table of ", buckets, " rows for distances up to ", furthest, ", ",
                           queries, " queries and ", keys, " keys"));
  }
  const float range = std::log(static_cast<float>(furthest) / static_cast<float>(exact));
  std::vector<int64_t> at;
  for (int64_t query = 0; query < queries; ++query) {
    for (int64_t key = 0; key < keys; ++key) {
      const int64_t after = both && key > query ? rows : 0;
      int64_t row = both ? std::abs(key - query) : std::max<int64_t>(query - key, 0);
      if (row >= exact) {
        const float far = std::log(static_cast<float>(row) / static_cast<float>(exact));
        row = exact + static_cast<int64_t>(far / range * static_cast<float>(rows - exact));
      }
      at.push_back(after + std::min(row, rows - 1));
    }
  }
  Value* positions = c.Constant(HostTensor::Of(Shape{queries, keys}, at));
  Value* bias = LookUp(c, c.Reshape(table, {heads, buckets}), positions, 1);
  c.SetOutput(0, c.Reshape(bias, {1, heads, queries, keys}));
}

void BiasAdd(NodeContext& c) {
  const Shape& shape = c.input(0)->type.shape;
  Value* sum = Add(c, c.input(0), InputOnto(c, 1, shape));
  c.SetOutput(0, Add(c, sum, InputOnto(c, 2, shape)));
}

void GemmFastGelu(NodeContext& c) {
  Value* y = c.Make("matmul", {c.input(0), c.input(1)});
  if (c.has_input(2)) y = Add(c, y, InputOnto(c, 2, y->type.shape));
  c.SetOutput(0, GeluOf(c, y, "tanh"));
}

void BiasSplitGelu(NodeContext& c) {
  Value* x = Add(c, c.input(0), InputOnto(c, 1, c.input(0)->type.shape));
  const int axis = x->type.rank() - 1;
  const int64_t width = axis < 0 ? 1 : x->type.shape.back(), half = width / 2;
  if (2 * half != width) c.Fail("E1303", "BiasSplitGelu needs an even last dim");
  std::vector<Value*> halves = Pieces(c, x, axis, {half, half});
  c.SetOutput(0, Mul(c, halves[0], GeluOf(c, halves[1], "none")));
}

}  // namespace

void AddFusedConverters(ConverterTable& table) {
  table.insert({{"com.microsoft::FusedMatMul", FusedMatMul},
                {"com.microsoft::TransposeMatMul", FusedMatMul},
                {"com.microsoft::FusedGemm", FusedGemm},
                {"com.microsoft::FusedConv", FusedConv},
                {"com.microsoft::GemmFastGelu", GemmFastGelu},
                {"com.microsoft::RelativePositionBias", RelativePositionBias},
                {"com.microsoft::BiasAdd", BiasAdd},
                {"com.microsoft::BiasSplitGelu", BiasSplitGelu},
                {"com.microsoft::EmbedLayerNormalization", EmbedLayerNorm},
                {"com.microsoft::SkipLayerNormalization", SkipNorm},
                {"com.microsoft::SkipSimplifiedLayerNormalization", SkipNorm}});
}

}  // namespace shardc::onnx_import
