// Spot checks of the state, elementwise, activation, shape, reduce and index ops against values
// worked out by hand; every rule and gradient is checked by machine elsewhere.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "ir/builder.h"
#include "ir/op_def.h"
#include "passes/differentiate.h"
#include "tests/ir/interpreter.h"
#include "tests/ir/thrown.h"

namespace shardc {
namespace {

using testing::ExpectThrown;
using testing::IdThrownBy;
using testing::View;

HostTensor F(Shape shape, const std::vector<double>& v) { return HostTensor::Of<double>(shape, v); }
HostTensor I(Shape shape, const std::vector<int64_t>& v) {
  return HostTensor::Of<int64_t>(shape, v);
}

// Runs one op by its reference on whole tensors.
std::vector<HostTensor> Eval(std::string_view name, const std::vector<HostTensor>& in,
                             const Attributes& attrs = {}) {
  return testing::RunOp(name, in, attrs);
}

std::vector<double> Doubles(const HostTensor& t) {
  std::vector<double> v;
  for (int64_t i = 0; i < t.num_elements(); ++i) v.push_back(t.AsDouble(i));
  return v;
}
using V = std::vector<double>;

// "(0 1), 2! -> 0, 1 2!": operands and results by factor, one word a dim; / marks segments.
std::string RuleText(const Op& op) {
  ShardingRule rule = op.def->rule(op);
  auto side = [&](const auto& tensors) {
    std::string text;
    for (const auto& dims : tensors) {
      text += text.empty() ? "" : ", ";
      for (size_t d = 0; d < dims.size(); ++d) {
        text += d ? " " : "";
        const DimFactors& f = dims[d];
        std::string dim;
        for (int id : f.factors) {
          dim += (dim.empty() ? "" : " ") + std::to_string(rule.factors[id].size);
          if (rule.factors[id].kind == FactorKind::kReplicated) dim += "!";
        }
        if (f.factors.size() > 1) dim = "(" + dim + ")";
        for (int64_t n : f.segments) dim += "/" + std::to_string(n);
        text += dim.empty() ? "." : dim;
      }
    }
    return text;
  };
  return side(rule.operands) + " -> " + side(rule.results);
}

std::string ReshapeText(Shape from, Shape to) {
  Graph g;
  Builder b(g);
  Value* x = g.AddInput("x", TensorType(DType::kF32, std::move(from)));
  return RuleText(*b.Create("reshape", {x}, {{"shape", std::move(to)}}));
}

// The gradient of sum(op(in...) * weight) for operand `wrt`, in f64, by running the graph op by op.
std::vector<double> Gradient(std::string_view name, std::vector<HostTensor> in, int wrt,
                             HostTensor weight, Attributes attrs = {}) {
  Graph g;
  Builder b(g);
  std::vector<Value*> values;
  for (size_t i = 0; i < in.size(); ++i) {
    values.push_back(g.AddInput("x" + std::to_string(i), TensorType(in[i].dtype(), in[i].shape())));
  }
  Value* y = b.Mul(b.Make(name, values, attrs), b.Constant(weight));
  Ints all;
  for (int d = 0; d < y->type.rank(); ++d) all.push_back(d);
  Value* loss = b.ReduceSum(y, all);
  Value* grad = Differentiate(g, loss, std::vector<Value*>{values[wrt]})[0];
  std::map<const Value*, HostTensor> env;
  for (size_t i = 0; i < in.size(); ++i) env[values[i]] = in[i];
  for (const auto& op : g.ops()) {
    std::vector<HostTensor> operands;
    for (const Value* v : op->operands) operands.push_back(env.at(v));
    auto results = Eval(op->name(), std::move(operands), op->attrs);
    for (size_t i = 0; i < results.size(); ++i) env[op->results[i]] = results[i];
  }
  return Doubles(env.at(grad));
}

TEST(OpsA, BroadcastsAtTheRight) {
  EXPECT_EQ(Doubles(Eval("sub", {F({2, 1}, {10, 20}), F({3}, {1, 2, 3})})[0]),
            (V{9, 8, 7, 19, 18, 17}));
  ExpectThrown(
      [] {
        Eval("add", {F({2}, {1, 2}), F({3}, {1, 2, 3})});
      },
      "E1101", "do not broadcast together");
}

TEST(OpsA, IntegerArithmeticIsCheckedAndTruncates) {
  int64_t big = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(IdThrownBy([&] { Eval("add", {I({1}, {big}), I({1}, {1})}); }), "E1102");
  EXPECT_EQ(IdThrownBy([&] { Eval("mul", {I({1}, {big}), I({1}, {2})}); }), "E1102");
  EXPECT_EQ(IdThrownBy([&] { Eval("div", {I({1}, {-big - 1}), I({1}, {-1})}); }), "E1102");
  EXPECT_EQ(IdThrownBy([] { Eval("div", {I({1}, {4}), I({1}, {0})}); }), "E1103");
  EXPECT_EQ(
      IdThrownBy([] {
        Eval("add", {HostTensor::Scalar<int32_t>(2147483647), HostTensor::Scalar<int32_t>(1)});
      }),
      "E1102");
  EXPECT_EQ(Doubles(Eval("div", {I({2}, {-7, 7}), I({2}, {2, -2})})[0]), (V{-3, -3}));
  EXPECT_EQ(Doubles(Eval("mod", {I({2}, {-7, 7}), I({2}, {3, -3})})[0]), (V{2, -2}));
  EXPECT_EQ(Doubles(Eval("mod", {F({2}, {-7, 7}), F({2}, {3, -3})})[0]), (V{-1, 1}));
  EXPECT_EQ(Eval("mul", {I({}, {big}), I({}, {1})})[0].AsInt(0), big);  // exact, not through double
}

TEST(OpsA, RoundsHalvesToEvenAndKeepsNaN) {
  EXPECT_EQ(Doubles(Eval("round", {F({4}, {0.5, 1.5, 2.5, -0.5})})[0]), (V{0, 2, 2, 0}));
  double nan = std::nan("");
  EXPECT_TRUE(std::isnan(Eval("max", {F({1}, {1}), F({1}, {nan})})[0].AsDouble(0)));
  EXPECT_TRUE(std::isnan(Eval("min", {F({1}, {nan}), F({1}, {1})})[0].AsDouble(0)));
  EXPECT_TRUE(std::isnan(Eval("relu", {F({1}, {nan})})[0].AsDouble(0)));
  const HostTensor keys = F({1, 1, 2, 1}, {1, 2});
  const Attributes heads_first = {{"scale", 1.0}, {"causal", false}, {"layout", "bhsd"}};
  const auto attended = Eval("attention", {F({1, 1, 1, 1}, {nan}), keys, keys}, heads_first);
  EXPECT_TRUE(std::isnan(attended[0].AsDouble(0)) && std::isnan(attended[1].AsDouble(0)));
}

TEST(OpsA, CastTruncatesSaturatesAndWraps) {
  Attributes to_int = {{"to", std::string("i32")}};
  double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(Doubles(Eval("cast", {F({4}, {-1.9, 1.9, inf, std::nan("")})}, to_int)[0]),
            (V{-1, 1, 2147483647, 0}));
  EXPECT_EQ(Doubles(Eval("cast", {I({1}, {int64_t{1} << 32 | 5})}, to_int)[0]), (V{5}));
  EXPECT_EQ(Doubles(Eval("cast", {F({2}, {0.25, 0})}, {{"to", std::string("bool")}})[0]),
            (V{1, 0}));
  EXPECT_EQ(Doubles(Eval("cast", {F({1}, {1 + 1.0 / 256})}, {{"to", std::string("bf16")}})[0]),
            (V{1}));
}

TEST(OpsA, Gelu) {
  HostTensor x = F({2}, {1, -2});
  auto erf = Doubles(Eval("gelu", {x}, {{"approximate", std::string("none")}})[0]);
  EXPECT_NEAR(erf[0], 0.8413447460685429, 1e-15);
  EXPECT_NEAR(erf[1], -0.04550026389635842, 1e-15);
  auto tanh = Doubles(Eval("gelu", {x}, {{"approximate", std::string("tanh")}})[0]);
  EXPECT_NEAR(tanh[0], 0.8411919906082768, 1e-14);
  ExpectThrown([&] { Eval("gelu", {x}, {{"approximate", std::string("fast")}}); }, "E1101", "fast");
}

TEST(OpsA, MaxSplitsTiesAndSumsOverBroadcastDims) {
  HostTensor a = F({2, 2}, {1, 5, 3, 2}), b = F({2}, {3, 2}), w = F({2, 2}, {1, 10, 100, 1000});
  EXPECT_EQ(Gradient("max", {a, b}, 0, w), (V{0, 10, 50, 500}));
  EXPECT_EQ(Gradient("max", {a, b}, 1, w), (V{51, 500}));
}

TEST(OpsA, PowGradientsAreFiniteAtZeroAndBelow) {
  HostTensor a = F({3}, {0, 2, -2}), b = F({3}, {0, 3, 2}), w = F({3}, {1, 1, 1});
  EXPECT_EQ(Gradient("pow", {a, b}, 0, w), (V{0, 12, -4}));
  auto db = Gradient("pow", {a, b}, 1, w);
  EXPECT_EQ(db[0], 0);
  EXPECT_NEAR(db[1], 8 * std::log(2.0), 1e-14);
  EXPECT_EQ(db[2], 0);
}

TEST(OpsA, ReshapeRules) {
  EXPECT_EQ(ReshapeText({2, 32, 192}, {2, 32, 3, 4, 16}), "2 32 (3 4 16) -> 2 32 3 4 16");
  EXPECT_EQ(ReshapeText({2, 32, 4, 16}, {64, 64}), "2 32 4 16 -> (2 32) (4 16)");
  EXPECT_EQ(ReshapeText({1, 6, 1}, {6, 1, 1}), ". 6 . -> 6 . .");
  EXPECT_EQ(ReshapeText({6, 4, 5}, {4, 2, 3, 5}), "(2 3!) 4! 5 -> (2 2!) 2! 3! 5");
  EXPECT_EQ(ReshapeText({3, 5}, {5, 3}), "3! 5! -> 5! 3!");
  EXPECT_EQ(ReshapeText({}, {1}), " -> .");
}

TEST(OpsA, SplitAndConcatCutEveryPieceAlike) {
  Graph g;
  Builder b(g);
  Value* x = g.AddInput("x", TensorType(DType::kF32, {2, 16}));
  Op* split = b.Create("split", {x}, {{"axis", int64_t{-1}}, {"sizes", Ints{8, 4, 4}}});
  EXPECT_EQ(RuleText(*split), "2 4/8/4/4 -> 2 4, 2 4, 2 4");
  Op* concat = b.Create("concat", {split->result(1), split->result(0)}, {{"axis", int64_t{1}}});
  EXPECT_EQ(RuleText(*concat), "2 4, 2 4 -> 2 4/4/8");
  Op* ones = b.Create("split", {x}, {{"axis", int64_t{0}}, {"sizes", Ints{1, 1}}});
  EXPECT_EQ(RuleText(*ones), "2! 16 -> . 16, . 16");
  ExpectThrown(
      [&] {
        b.Create("split", {x}, {{"axis", int64_t{1}}, {"sizes", Ints{8, 7}}});
      },
      "E1101", "[8, 7] do not add up to dim 1 of size 16");
}

TEST(OpsA, ReduceAndIndexRules) {
  Graph g;
  Builder b(g);
  Value* x = g.AddInput("x", TensorType(DType::kF32, {3, 1, 5}));
  Value* ids = g.AddInput("ids", TensorType(DType::kI64, {2, 4}));
  EXPECT_EQ(RuleText(*b.ReduceSum(x, {0, 1}, true)->producer), "3 . 5 -> . . 5");
  EXPECT_EQ(RuleText(*b.Create("reduce_min", {x}, {{"axes", Ints{-1}}})), "3 . 5! -> 3 .");
  Op* max = b.Create("reduce_max", {x}, {{"axes", Ints{2}}});
  EXPECT_EQ(max->def->rule(*max).factors[1].reduce, ReduceKind::kMax);
  Value* table = g.AddInput("t", TensorType(DType::kF32, {50, 6}));
  Value* e = b.Make("embedding", {table, ids});
  EXPECT_EQ(RuleText(*e->producer), "50 6, 2 4 -> 2 4 6");
  EXPECT_EQ(RuleText(*b.Create("embedding_grad", {e, ids}, {{"rows", int64_t{50}}})),
            "2 4 6, 2 4 -> 50 6");
  EXPECT_EQ(RuleText(*b.Create("gather", {table, ids}, {{"axis", int64_t{1}}})),
            "50 6!, 2 4 -> 50 2 4");
  Value* scalar = b.Scalar(DType::kF32, 1);
  EXPECT_EQ(RuleText(*b.BroadcastTo(scalar, {3, 1})->producer), " -> 3 1");
}

TEST(OpsA, SliceBothWaysAndItsGradient) {
  Attributes back = {{"starts", Ints{5}}, {"limits", Ints{-1}}, {"steps", Ints{-2}}};
  HostTensor x = F({7}, {0, 1, 2, 3, 4, 5, 6});
  EXPECT_EQ(Doubles(Eval("slice", {x}, back)[0]), (V{5, 3, 1}));
  EXPECT_EQ(Gradient("slice", {x}, 0, F({3}, {1, 2, 3}), back), (V{0, 3, 0, 2, 0, 1, 0}));
  Attributes ahead = {{"starts", Ints{1}}, {"limits", Ints{7}}, {"steps", Ints{3}}};
  EXPECT_EQ(Gradient("slice", {x}, 0, F({2}, {1, 2}), ahead), (V{0, 1, 0, 0, 2, 0, 0}));
  Attributes beyond = {{"starts", Ints{0}}, {"limits", Ints{8}}, {"steps", Ints{1}}};
  ExpectThrown([&] { Eval("slice", {x}, beyond); }, "E1101", "does not fit dim 0 of size 7");
}

TEST(OpsA, TransposePadConcat) {
  HostTensor x = F({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(Doubles(Eval("transpose", {x}, {{"perm", Ints{1, 0}}})[0]), (V{1, 4, 2, 5, 3, 6}));
  ExpectThrown(
      [&] {
        Eval("transpose", {x}, {{"perm", Ints{0, 0}}});
      },
      "E1101", "not a permutation");
  Attributes pad = {{"low", Ints{0, 1}}, {"high", Ints{1, 0}}, {"value", -1.0}};
  EXPECT_EQ(Doubles(Eval("pad", {x}, pad)[0]), (V{-1, 1, 2, 3, -1, 4, 5, 6, -1, -1, -1, -1}));
  EXPECT_EQ(Doubles(Eval("concat", {x, F({2, 1}, {7, 8})}, {{"axis", int64_t{1}}})[0]),
            (V{1, 2, 3, 7, 4, 5, 6, 8}));
}

TEST(OpsA, InferenceRefusesProductsThatAreTooLarge) {
  TensorType column(DType::kF32, {int64_t{1} << 40, 1}), row(DType::kF32, {1, int64_t{1} << 40});
  const TensorType* operands[] = {&column, &row};
  Attributes none;
  ExpectThrown(
      [&] {
        GetOpDef("matmul").infer({operands, none});
      },
      "E1101", "[1099511627776, 1099511627776] is too large");
}

TEST(OpsA, InferenceRefusesShapesThatOverflow) {
  HostTensor x = F({1}, {1});
  Ints huge = {int64_t{1} << 31, int64_t{1} << 31};
  ExpectThrown([&] { Eval("broadcast_to", {x}, {{"shape", huge}}); }, "E1101", "too large");
  ExpectThrown([&] { Eval("reshape", {x}, {{"shape", Ints{-1}}}); }, "E1101", "negative");
}

TEST(OpsA, ReductionsOfIntegersHaveTheirType) {
  HostTensor x = HostTensor::Of<int64_t>({2}, {1, 2});
  for (const char* op : {"reduce_sum", "reduce_max"}) {
    ExpectThrown(
        [&] {
          Eval(op, {x}, {{"axes", Ints{0}}, {"out", std::string("bf16")}});
        },
        "E1101", "must be a float type");
  }
}

TEST(OpsA, ReduceMaxSharesTheGradientAndNothingGivesMinusInfinity) {
  HostTensor x = F({2, 3}, {1, 4, 4, 2, 0, 1});
  EXPECT_EQ(Gradient("reduce_max", {x}, 0, F({2}, {6, 7}), {{"axes", Ints{1}}}),
            (V{0, 3, 3, 7, 0, 0}));
  EXPECT_EQ(Eval("reduce_max", {F({0, 1}, {})}, {{"axes", Ints{0}}})[0].AsDouble(0),
            -std::numeric_limits<double>::infinity());
}

TEST(OpsA, CumsumDirections) {
  HostTensor x = I({4}, {1, 2, 3, 4});
  Attributes attrs = {{"axis", int64_t{0}}, {"exclusive", true}, {"reverse", true}};
  EXPECT_EQ(Doubles(Eval("cumsum", {x}, attrs)[0]), (V{9, 7, 4, 0}));
  EXPECT_EQ(Gradient("cumsum", {F({3}, {1, 1, 1})}, 0, F({3}, {1, 10, 100}),
                     {{"axis", int64_t{0}}, {"exclusive", true}}),
            (V{110, 100, 0}));
}

TEST(OpsA, EmbeddingNamesPositionAndValue) {
  HostTensor table = F({3, 2}, {0, 1, 2, 3, 4, 5});
  EXPECT_EQ(Doubles(Eval("embedding", {table, I({2}, {2, 0})})[0]), (V{4, 5, 0, 1}));
  ExpectThrown(
      [&] {
        Eval("embedding", {table, I({2, 2}, {0, 1, 3, 2})});
      },
      "E4003", "ids[1, 0] = 3 is outside [0, 3)");
  EXPECT_EQ(Gradient("embedding", {table, I({3}, {1, 1, 0})}, 0, F({3, 2}, {1, 2, 3, 4, 5, 6})),
            (V{5, 6, 4, 6, 0, 0}));
}

TEST(OpsA, GatherCountsFromTheEnd) {
  HostTensor x = F({2, 3}, {0, 1, 2, 3, 4, 5});
  HostTensor last = I({2}, {-1, 0});
  EXPECT_EQ(Doubles(Eval("gather", {x, last}, {{"axis", int64_t{1}}})[0]), (V{2, 0, 5, 3}));
  EXPECT_EQ(Gradient("gather", {x, last}, 0, F({2, 2}, {1, 2, 3, 4}), {{"axis", int64_t{1}}}),
            (V{2, 0, 1, 4, 0, 3}));
  EXPECT_EQ(Doubles(Eval("gather_nd", {x, I({2, 1}, {1, -1})}, {{"batch_dims", int64_t{1}}})[0]),
            (V{1, 5}));
}

// As torch.nn.functional.embedding with padding_idx, whose ids do not count from the end.
TEST(OpsA, LookupsDoNotTrainThePaddingRow) {
  const HostTensor table = F({3, 2}, {0, 1, 2, 3, 4, 5});
  const HostTensor dy = F({3, 2}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(Gradient("embedding", {table, I({3}, {1, 0, 1})}, 0, dy, {{"padding_idx", int64_t{0}}}),
            (V{0, 0, 6, 8, 0, 0}));
  EXPECT_EQ(Doubles(Eval("embedding", {table, I({1}, {1})}, {{"padding_idx", int64_t{1}}})[0]),
            (V{2, 3}));
  const HostTensor last = I({3}, {2, -1, 0});
  EXPECT_EQ(
      Gradient("gather", {table, last}, 0, dy, {{"axis", int64_t{0}}, {"padding_idx", int64_t{2}}}),
      (V{5, 6, 0, 0, 0, 0}));
  EXPECT_EQ(Gradient("gather", {table, I({2, 1}, {1, 0})}, 0, F({3, 2, 1}, {1, 2, 3, 4, 5, 6}),
                     {{"axis", int64_t{1}}, {"padding_idx", int64_t{1}}}),
            (V{2, 0, 4, 0, 6, 0}));
  for (const int64_t row : {-1, 3}) {
    ExpectThrown(
        [&] {
          Eval("embedding", {table, I({1}, {1})}, {{"padding_idx", row}});
        },
        "E1101", "is no position of a dim of size 3");
  }
}

TEST(OpsA, TopKTakesTheLowerOfEqualPositions) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  auto top = [](const HostTensor& x, int64_t k, bool largest) {
    return Doubles(Eval("top_k", {x}, {{"axis", int64_t{-1}}, {"k", k}, {"largest", largest}})[0]);
  };
  HostTensor x = F({2, 4}, {1, 3, 3, 1, -0.0, 0, -2, -2});
  EXPECT_EQ(top(x, 3, true), (V{1, 2, 0, 0, 1, 2}));
  EXPECT_EQ(top(x, 3, false), (V{0, 3, 1, 2, 3, 0}));
  HostTensor odd = F({4}, {1, nan, 2, nan});
  EXPECT_EQ(top(odd, 4, true), (V{1, 3, 2, 0}));
  EXPECT_EQ(top(odd, 4, false), (V{0, 2, 1, 3}));
  ExpectThrown([&] { top(x, 5, true); }, "E1101",
               "takes 5 of the 4 elements along dim 1 of a tensor of shape [2, 4]");
}

// Two ranks hold 3 + 2 rows of a table of 5; rank 1 has a row of padding that must not count.
TEST(OpsA, ShardedRowsAndReductionsSkipPadding) {
  Mesh mesh = Mesh::Parse("tp=2");
  TensorType cut(DType::kF64, {5, 1});
  cut.sharding.dims[0].axes = {0};
  HostTensor part = F({3, 1}, {40, 50, 999}), ids = I({4}, {2, 3, 4, 0}), y(DType::kF64, {4, 1});
  TensorType whole_ids(DType::kI64, {4}), out_type(DType::kF64, {4, 1});
  auto run = [&](std::string_view name, std::vector<TensorView> in, TensorView out,
                 const Attributes& attrs) {
    KernelCall call;
    call.attrs = &attrs;
    call.in = in;
    call.out = {&out, 1};
    call.mesh = &mesh;
    call.rank = 1;
    GetOpDef(name).reference(call);
  };
  TensorView table = View(part), id_view = View(ids), y_view = View(y);
  table.type = &cut, id_view.type = &whole_ids, y_view.type = &out_type;
  run("embedding", {table, id_view}, y_view, {});
  EXPECT_EQ(Doubles(y), (V{0, 40, 50, 0}));

  HostTensor mean(DType::kF64, {1});
  TensorType mean_type(DType::kF64, {1});
  TensorView mean_view = View(mean);
  mean_view.type = &mean_type;
  run("reduce_mean", {table}, mean_view, {{"axes", Ints{0}}});
  EXPECT_EQ(mean.AsDouble(0), 18);  // (40 + 50) / 5

  HostTensor rows(DType::kF64, {3, 1}), dy = F({4, 1}, {1, 2, 3, 4});
  TensorView dy_view = View(dy), rows_view = View(rows);
  dy_view.type = &out_type, rows_view.type = &cut;
  run("embedding_grad", {dy_view, id_view}, rows_view, {{"rows", int64_t{5}}});
  EXPECT_EQ(Doubles(rows), (V{2, 3, 0}));

  // Whatever lies in integer padding cannot make a checked op fail.
  TensorType int_cut(DType::kI64, {5});
  int_cut.sharding.dims[0].axes = {0};
  HostTensor a = I({3}, {1, 2, 7}), b = I({3}, {1, 2, 0}), q(DType::kI64, {3});
  TensorView av = View(a), bv = View(b), qv = View(q);
  av.type = bv.type = qv.type = &int_cut;
  run("div", {av, bv}, qv, {});
  EXPECT_EQ(Doubles(q), (V{1, 1, 0}));
}

TEST(OpsA, ConstantIsWholeAndStatesInfer) {
  Graph g;
  Builder b(g);
  Value* c = b.Constant(F({2, 3}, {1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(RuleText(*c->producer), " -> . .");
  Value* s = b.Make("state", {},
                    {{"name", std::string("m")},
                     {"dtype", std::string("f32")},
                     {"shape", Ints{2}},
                     {"init", 0.0}});
  EXPECT_TRUE(s->type.SameTensor(TensorType(DType::kF32, {2})));
  EXPECT_TRUE(GetOpDef("update").side_effect);
}

}  // namespace
}  // namespace shardc
