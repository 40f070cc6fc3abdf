// Recovery of linears, activations, embeddings, cross entropy, and what must be left alone.
#include <limits>
#include <numbers>

#include "tests/frontend/recover_testing.h"

namespace shardc::recover_testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kB = 2, kS = 5, kH = 6;

TEST(Linear, FlattenedGemmBecomesAMatmulOfTheWholeTensor) {
  Graph g = Recover([](TestGraph& b) {
    Value* x = b.Reshape(b.In("x", {kB, kS, kH}), {kB * kS, kH});
    Value* y = b.Add(b.P("bias", {8}), b.Matmul(x, b.P("w", {kH, 8})));
    b.Out(b.Reshape(y, {kB, kS, 8}));
  });
  EXPECT_THAT(Ops(g), ElementsAre("matmul", "add"));
  EXPECT_EQ(Find(g, "matmul")->out().shape, (Shape{kB, kS, 8}));
}

TEST(Linear, TwoGemmsWithAnActivationBetweenThemOverFlatRows) {
  Graph g = Recover([](TestGraph& b) {
    Value* x = b.Reshape(b.In("x", {kB, kS, kH}), {kB * kS, kH});
    Value* y = b.Op1("relu", b.Add(b.Matmul(x, b.P("w", {kH, 8})), b.P("bias", {8})));
    Value* z = b.Add(b.Matmul(y, b.P("w2", {8, kH})), x);
    b.Out(b.Reshape(z, {kB, kS, kH}));
  });
  EXPECT_THAT(Ops(g), ElementsAre("matmul", "add", "relu", "matmul", "add"));
}

TEST(Linear, HeadsMergedIntoFlatRows) {
  Graph g = Recover([](TestGraph& b) {
    Value* x = b.Reshape(b.In("x", {kB, kS, 2, 3}), {kB * kS, kH});
    Value* y = b.Add(b.P("bias", {kH}), b.Matmul(x, b.P("w", {kH, kH})));
    b.Out(b.Add(b.Reshape(y, {kB, kS, kH}), b.In("residual", {kB, kS, kH})));
  });
  EXPECT_THAT(Ops(g), ElementsAre("reshape", "matmul", "add", "add"));
  EXPECT_EQ(Find(g, "matmul")->out().shape, (Shape{kB, kS, kH}));
}

TEST(Linear, ASingleRowThatNoOperandHolds) {
  Graph g = Recover([](TestGraph& b) {
    Value* row = b.Mul(b.P("w", {kH}), b.In("scale", {1, 1}));
    b.Out(b.Mul(b.Reshape(row, {1, 1, kH}), b.In("x", {1, 1, 1})));
  });
  EXPECT_EQ(g.outputs[0].value->type.shape, (Shape{1, 1, kH}));
}

TEST(Linear, TransposedWeightIsReadAsItIsStored) {
  Graph g = Recover([](TestGraph& b) {
    b.Out(b.Matmul(b.In("x", {kB, kS, kH}), b.Transpose(b.P("w", {8, kH}), {1, 0})));
  });
  EXPECT_THAT(Ops(g), ElementsAre("matmul_nt"));
}

TEST(Linear, RowsThatMixWithAnotherShapeStayFlat) {
  Graph g = Recover([](TestGraph& b) {
    Value* x = b.Reshape(b.In("x", {kB, kS, kH}), {kB * kS, kH});
    b.Out(b.Add(x, b.In("z", {kB * kS, kH})));
  });
  EXPECT_THAT(Ops(g), ElementsAre("reshape", "add"));
}

TEST(Simplify, ThingsThatDoNothingGo) {
  Graph g = Recover([](TestGraph& b) {
    Value* x = b.In("x", {kB, kS, kH});
    Value* y = b.Make("reshape", {x}, {{"shape", Shape{kB, kS, kH}}});
    y = b.Transpose(b.Transpose(y, {1, 0, 2}), {1, 0, 2});
    y = b.Reshape(b.Reshape(y, {kB * kS, kH}), {kB, kS, kH});
    y = b.Add(b.Mul(b.Div(b.Sub(y, b.C(0)), b.C(1, {1})), b.C(1, {kH})), b.C(0));
    y = b.Slice(y, {0, 0, 0}, {kB, kS, kH});
    HostTensor all(DType::kBool, {kS, kH});
    for (int64_t i = 0; i < all.num_elements(); ++i) all.SetDouble(i, 1);
    y = b.Where(b.Constant(all), y, b.C(-7));
    b.Out(b.Add(y, b.BroadcastTo(b.Reshape(b.In("r", {kH}), {1, 1, kH}), {kB, kS, kH})));
  });
  EXPECT_THAT(Ops(g), ElementsAre("add"));
  EXPECT_EQ(Find(g, "add")->in(1).shape, (Shape{kH}));
}

// Heads that are grouped, moved and merged again; dims of 1.
TEST(Simplify, DimsThatAreTakenApartForNothing) {
  for (int form = 0; form < 3; ++form) {
    const bool apart = form == 0;
    Graph g = Recover([form](TestGraph& b) {
      const Shape shapes[] = {{1, 5, 1, 2, 3, 7}, {1, 5, 1, 2, 3, 7}, {1, 5, 1, 6, 7}};
      const Ints perms[] = {{0, 3, 2, 1, 4, 5}, {3, 4, 0, 1, 2, 5}, {0, 3, 2, 1, 4}};
      Value* x = b.Reshape(b.In("x", {1, 5, 6, 7}), shapes[form]);
      b.Out(b.Reshape(b.Transpose(x, perms[form]), {30, 7}));
    });
    EXPECT_EQ(Find(g, "transpose")->in(0).rank(), apart ? 6 : 4);
    EXPECT_THAT(Ops(g), ElementsAreArray(apart ? std::vector{"reshape", "transpose", "reshape"}
                                               : std::vector{"transpose", "reshape"}));
  }
}

TEST(Simplify, WhatLooksNeutralButIsNotStays) {
  Graph g = Recover([](TestGraph& b) {
    Value* x = b.In("x", {kS, kS});
    Value* reversed =
        b.Make("slice", {x},
               {{"starts", Ints{kS - 1, 0}}, {"limits", Ints{-1, kS}}, {"steps", Ints{-1, 1}}});
    b.Out(b.Sub(b.C(0), b.Div(b.C(1), b.Transpose(reversed, {1, 0}))));
    b.Out(b.Mul(b.In("row", {kS}), b.C(1, {3, kS})), "stretched");
  });
  EXPECT_THAT(Ops(g), ElementsAre("slice", "transpose", "div", "sub", "mul"));
}

TEST(Simplify, EqualOpsAreComputedOnce) {
  Graph g = Recover([](TestGraph& b) {
    Value* x = b.In("x", {kS});
    for (int i = 0; i < 3; ++i) b.Out(b.Op1("exp", b.Mul(x, b.C(3))), "y" + std::to_string(i));
  });
  EXPECT_THAT(Ops(g), ElementsAre("mul", "exp"));
}

using Spelling = std::function<Value*(TestGraph&, Value*)>;

// As exporters write it for a batch of 1: the same value with and without its first dim.
// More ops between two transposes than recursion goes through.
TEST(Simplify, VeryManyOpsBetweenTransposes) {
  TestGraph b;
  Value *x = b.Transpose(b.In("x", {kS, kH}), {1, 0}), *c = b.C(0.5);
  for (int i = 0; i < 200'000; ++i) x = b.Mul(x, c);
  b.Out(b.Transpose(x, {1, 0}));
  RecoverPatterns(b.g);
  EXPECT_EQ(Counts(b.g)["mul"], 200'000);
}

TEST(Activation, GeluOfABatchOfOne) {
  Graph g = Recover([](TestGraph& b) {
    Value* x = b.In("x", {1, kS, kH});
    Value* flat = b.Reshape(x, {kS, kH});
    Value* cubed = b.Mul(b.Pow(x, 3), b.C(0.044715));
    Value* inner = b.Mul(b.Add(flat, cubed), b.C(std::sqrt(2 / std::numbers::pi)));
    b.Out(b.Mul(b.Mul(x, b.C(0.5)), b.Add(b.Op1("tanh", inner), b.C(1))));
  });
  EXPECT_THAT(Ops(g), ElementsAre("gelu"));
}

TEST(Activation, GeluInEverySpelling) {
  const double k = std::sqrt(2 / std::numbers::pi);
  auto cube = [](TestGraph& b, Value* x, int form) {
    return form == 0 ? b.Pow(x, 3) : form == 1 ? b.Mul(x, b.Mul(x, x)) : b.Mul(b.Pow(x, 2), x);
  };
  auto tanh = [&](TestGraph& b, Value* x, int form) {
    Value* inner = b.Mul(b.Add(x, b.Mul(cube(b, x, form), b.C(0.044715))), b.C(k));
    if (form == 1) {  // k x (1 + 0.044715 x x)
      inner = b.Mul(b.Mul(x, b.C(k)), b.Add(b.C(1), b.Mul(b.Mul(b.C(0.044715), x), x)));
    }
    return b.Op1("tanh", inner);
  };
  auto erf = [](TestGraph& b, Value* x, int form) {
    const double root = std::numbers::sqrt2;
    return b.Op1("erf", form == 0   ? b.Div(x, b.C(root))
                        : form == 1 ? b.Mul(b.C(1 / root, {1}), x)
                                    : b.Div(x, b.Op1("sqrt", b.C(2))));
  };
  for (int form = 0; form < 3; ++form) {
    for (int outer = 0; outer < 5; ++outer) {
      for (bool use_tanh : {true, false}) {
        if (!use_tanh && form == 2) continue;  // sqrt of a constant is folded before recovery
        SCOPED_TRACE(StrCat(form, " ", outer, " ", use_tanh));
        Graph g = Recover([&](TestGraph& b) {
          Value* x = b.In("x", {kB, kS, kH});
          if (outer == 4) x = b.Mul(x, b.C(3));  // x is itself a scaled value
          Value* one = b.Add(use_tanh ? tanh(b, x, form) : erf(b, x, form), b.C(1));
          Value* y = outer == 0   ? b.Mul(b.Mul(x, b.C(0.5)), one)
                     : outer == 1 ? b.Mul(b.C(0.5), b.Mul(one, x))
                     : outer == 2 ? b.Mul(x, b.Mul(b.C(0.5), one))
                     : outer == 3 ? b.Div(b.Mul(x, one), b.C(2))
                                  : b.Mul(b.Mul(x, one), b.C(0.5));
          b.Out(y);
        });
        ASSERT_TRUE(Find(g, "gelu"));
        EXPECT_EQ(Find(g, "gelu")->attrs.String("approximate"), use_tanh ? "tanh" : "none");
        EXPECT_EQ(Ops(g).size(), outer == 4 ? 2u : 1u);
      }
    }
  }
}

// A chain of scalars may be as long as the graph: not each of its ops looks at all before it.
TEST(Activation, GeluTimesSomeScalarsAndNoMore) {
  // All but the last double it, which undoes what they do.
  auto scale = [](TestGraph& b, Value* x, int scalars) {
    for (int i = 1; i < scalars; ++i) x = b.Mul(x, b.C(2));
    return scalars > 0 ? b.Mul(x, b.C(std::exp2(1 - scalars))) : x;
  };
  auto found = [&scale](int outside, int inside) {
    Graph g = Recover([&](TestGraph& b) {
      Value* x = b.In("x", {kB, kS, kH});
      Value* one = b.Add(b.Op1("erf", b.Div(x, b.C(std::numbers::sqrt2))), b.C(1));
      Value* y = scale(b, b.Mul(scale(b, x, inside), one), outside);
      b.Out(b.Mul(y, b.C(0.5)));
    });
    return Find(g, "gelu") != nullptr;
  };
  EXPECT_TRUE(found(0, 0));
  EXPECT_TRUE(found(7, 8));
  EXPECT_FALSE(found(8, 0));
  EXPECT_FALSE(found(0, 9));
}

TEST(Activation, Silu) {
  std::vector<Spelling> spellings = {
      [](TestGraph& b, Value* x) { return b.Mul(x, b.Op1("sigmoid", x)); },
      [](TestGraph& b, Value* x) { return b.Mul(b.Op1("sigmoid", x), x); },
      [](TestGraph& b, Value* x) {
        return b.Mul(x, b.Div(b.C(1), b.Add(b.C(1), b.Op1("exp", b.Neg(x)))));
      }};
  for (const Spelling& spelling : spellings) {
    Graph g = Recover([&](TestGraph& b) { b.Out(spelling(b, b.In("x", {kS, kH}))); });
    EXPECT_THAT(Ops(g), ElementsAre("silu"));
  }
}

TEST(Activation, NearMissesStay) {
  Graph g = Recover([](TestGraph& b) {
    Value *x = b.In("x", {kS, kH}), *z = b.In("z", {kS, kH});
    auto erf = [&](double root) { return b.Add(b.Op1("erf", b.Div(x, b.C(root))), b.C(1)); };
    b.Out(b.Mul(b.Mul(x, b.C(0.5)), erf(1.5)), "other root");
    b.Out(b.Mul(b.Mul(x, b.C(0.4)), erf(std::numbers::sqrt2)), "other factor");
    b.Out(b.Mul(b.Mul(z, b.C(0.5)), erf(std::numbers::sqrt2)), "other x");
    b.Out(b.Mul(x, b.Op1("sigmoid", b.Mul(x, b.C(1.702)))), "quick gelu");
    b.Out(b.Mul(z, b.Op1("sigmoid", x)), "glu");
    Value* ones = b.Div(b.C(1, {3, 1, 1}), b.Add(b.C(1), b.Op1("exp", b.Neg(x))));
    b.Out(b.Mul(x, ones), "three of them");
  });
  EXPECT_THAT(Ops(g), Not(Contains("gelu")));
  EXPECT_THAT(Ops(g), Not(Contains("silu")));
}

// The logarithm of a sigmoid is finite where the sigmoid is 0, and that of 1 + x is exact where x
// is small: losses of classes and of preferences, as exporters write them.
TEST(Activation, LogarithmsOfSigmoidsAndOfOneMore) {
  const std::vector<double> far = {-800, -1.5, 0, 2, 900};
  for (const std::string form : {"sigmoid", "written out", "other"}) {
    SCOPED_TRACE(form);
    const Graph g = Recover([&](TestGraph& b) {
      Value* x = b.In("x", {5});
      Value* s = form == "written out" ? b.Div(b.C(1), b.Add(b.C(1), b.Op1("exp", b.Neg(x))))
                                       : b.Op1("sigmoid", x);
      b.Out(b.Op1("log", form == "other" ? b.Sub(b.C(1), s) : s));
    });
    EXPECT_THAT(Ops(g), ::testing::AllOf(Contains("log1p"), Not(Contains("log"))));
    const HostTensor y = Evaluate(g, {{"x", HostTensor::Of<double>({5}, far)}}).at("y");
    for (int64_t i = 0; i < 5; ++i) {
      const double x = form == "other" ? -far[i] : far[i];
      EXPECT_NEAR(y.AsDouble(i), std::min(x, 0.) - std::log1p(std::exp(-std::fabs(x))), 1e-12);
    }
  }
  const Graph g = Recover(
      [](TestGraph& b) { b.Out(b.Op1("log", b.Add(b.C(1), b.Op1("exp", b.In("x", {2}))))); });
  EXPECT_THAT(Ops(g), ElementsAre("exp", "log1p"));
  // What has no gradient gets none.
  const Graph detached = Recover([](TestGraph& b) {
    Value* s = b.Op1("sigmoid", b.In("x", {2}));
    b.Out(b.Op1("log", b.Make("sub", {b.C(1), s}, {{"detached", true}})));
  });
  EXPECT_THAT(Ops(detached), ElementsAre("sigmoid", "sub", "log"));
}

TEST(Embedding, GatherOfAParameter) {
  Graph g = Recover([](TestGraph& b) {
    Value* ids = b.In("ids", HostTensor::Of<int64_t>({2, 2}, {0, 3, 2, 1}));
    b.Out(b.Make("gather", {b.P("w", {4, kH}), ids}, {{"axis", int64_t{0}}}));
  });
  EXPECT_THAT(Ops(g), ElementsAre("embedding"));
}

TEST(Embedding, ConstantPositionsAreASlice) {
  for (const HostTensor& ids :
       {HostTensor::Of<int64_t>({3}, {1, 2, 3}), HostTensor::Of<int64_t>({1, 3}, {0, 1, 2}),
        HostTensor::Of<int64_t>({2, 3}, {2, 3, 4, 2, 3, 4}),
        HostTensor::Of<int64_t>({3}, {-3, -2, -1})}) {
    Graph g = Recover([&](TestGraph& b) {
      Value* rows = b.Make("gather", {b.P("w", {5, kH}), b.Constant(ids)}, {{"axis", int64_t{0}}});
      b.Out(b.Add(b.In("x", {2, 3, kH}), rows));
    });
    EXPECT_THAT(Ops(g), ElementsAre("slice", "add"));
  }
}

// With an id that is none: its row is zero.
TEST(Embedding, OneHotRowsTimesAParameterAreALookUp) {
  for (bool casts : {false, true}) {
    Graph g = Recover([=](TestGraph& b) {
      Value* ids = b.In("ids", HostTensor::Of<int64_t>({2, 3}, {0, 4, 2, -1, 5, 3}));
      Value* places = b.Constant(HostTensor::Of<int64_t>({5}, {0, 1, 2, 3, 4}));
      Value* hot = b.Make("equal", {places, b.Reshape(ids, {2, 3, 1})});
      hot = casts ? b.Cast(b.Cast(hot, DType::kI64), DType::kF64) : b.Where(hot, b.C(1), b.C(0));
      b.Out(b.Matmul(hot, b.P("wte", {5, kH})));
    });
    EXPECT_THAT(Ops(g), ::testing::AllOf(Contains("embedding"), Not(Contains("matmul"))));
    EXPECT_EQ(RolesOf(g).at("wte"), "TOKEN_EMBEDDING");
  }
  Graph g = Recover([](TestGraph& b) {
    Value* ids = b.In("ids", HostTensor::Of<int64_t>({2, 1}, {0, 4}));
    Value* places = b.Constant(HostTensor::Of<int64_t>({5}, {1, 2, 3, 4, 5}));
    Value* hot = b.Make("equal", {places, ids});
    b.Out(b.Matmul(b.Cast(hot, DType::kF64), b.P("w", {5, kH})));
  });
  EXPECT_THAT(Ops(g), Contains("matmul"));
}

TEST(Embedding, OtherConstantIdsAreGathered) {
  for (const HostTensor& ids :
       {HostTensor::Of<int64_t>({3}, {1, 3, 2}), HostTensor::Of<int64_t>({3}, {-1, 0, 1}),
        HostTensor::Of<int64_t>({2, 2}, {0, 1, 2, 3})}) {
    Graph g = Recover([&](TestGraph& b) {
      b.Out(b.Make("gather", {b.P("w", {5, kH}), b.Constant(ids)}, {{"axis", int64_t{0}}}));
    });
    EXPECT_THAT(Ops(g), Not(Contains("slice")));
  }
}

enum class LogSoftmax { kStable, kPlain, kOfSoftmax, kOfRows, kTurned, kBehind };
Graph RecoverLookUp(LogSoftmax form, int64_t along) {
  return Recover([=](TestGraph& b) {
    Value* x = b.Add(b.In("x", {3, 2, 5}), b.P("w", {5}));
    auto reduce = [&](const char* op, Value* v) {
      return b.Make(op, {v}, {{"axes", Ints{along}}, {"keepdims", true}});
    };
    if (form == LogSoftmax::kBehind && along == 2) {  // as ONNX Runtime writes out a loss
      x = b.Reshape(x, {6, 5, 1});
      Value* sum = b.Make("reduce_sum", {b.Op1("exp", x)}, {{"axes", Ints{1}}, {"keepdims", true}});
      x = b.Reshape(b.Sub(x, b.Op1("log", sum)), {3, 2, 5});
    } else if (form == LogSoftmax::kTurned && along == 2) {  // the same at another level
      x = b.Transpose(b.Reshape(x, {6, 5, 1}), {0, 2, 1});
      x = b.Sub(x, reduce("reduce_max", x));
      x = b.Sub(x, b.Op1("log", reduce("reduce_sum", b.Op1("exp", x))));
      x = b.Reshape(b.Transpose(x, {0, 2, 1}), {3, 2, 5});
    } else if (form == LogSoftmax::kOfSoftmax) {
      x = b.Op1("log", b.Make("softmax", {x}, {{"axis", along}}));
    } else {
      if (form == LogSoftmax::kStable) x = b.Sub(x, reduce("reduce_max", x));
      Value* exp = b.Op1("exp", x);
      if (form == LogSoftmax::kOfRows && along == 2) {  // as exporters leave the reshapes of a loss
        Value* sum =
            b.Make("reduce_sum", {b.Reshape(exp, {6, 5})}, {{"axes", Ints{1}}, {"keepdims", true}});
        x = b.Sub(x, b.Op1("log", b.Reshape(sum, {3, 2, 1})));
      } else {
        x = b.Sub(x, b.Op1("log", reduce("reduce_sum", exp)));
      }
    }
    HostTensor ids = HostTensor::Of<int64_t>({3, 2, 1, 1}, {0, 4, 2, -2, -5, 3});
    b.Out(b.Make("gather_nd", {x, b.In("ids", ids)}, {{"batch_dims", int64_t{2}}}));
  });
}

TEST(CrossEntropy, IsALookUpInALogSoftmax) {
  for (LogSoftmax form : {LogSoftmax::kStable, LogSoftmax::kPlain, LogSoftmax::kOfSoftmax,
                          LogSoftmax::kOfRows, LogSoftmax::kTurned, LogSoftmax::kBehind}) {
    EXPECT_THAT(Ops(RecoverLookUp(form, 2)), ElementsAre("add", "reshape", "less", "add", "where",
                                                         "cross_entropy", "neg", "reshape"));
    EXPECT_THAT(Ops(RecoverLookUp(form, 1)), Contains("gather_nd"));
  }
}

// As JAX's and TensorFlow's users write it; a label that is no class has no loss.
TEST(CrossEntropy, IsASumOfALogSoftmaxThatOneHotRowsChoose) {
  for (bool last : {true, false}) {
    Graph g = Recover([last](TestGraph& b) {
      Value* x = b.Add(b.In("x", {3, 5, 5}), b.P("w", {5}));
      Value* sum = b.ReduceSum(b.Op1("exp", b.Sub(x, b.ReduceMax(x, {2}, true))), {2}, true);
      x = b.Sub(b.Sub(x, b.ReduceMax(x, {2}, true)), b.Op1("log", sum));
      HostTensor ids(DType::kI64, {3, 5, 1});
      for (int64_t i = 0; i < 15; ++i) ids.SetDouble(i, static_cast<double>(i % 7 - 1));
      Value* places = b.Constant(HostTensor::Of<int64_t>({1, 1, 5}, {0, 1, 2, 3, 4}));
      Value* one_hot = b.Where(b.Make("equal", {b.In("ids", ids), places}), b.C(1), b.C(0));
      b.Out(b.ReduceSum(b.Mul(one_hot, x), {last ? 2 : 1}));
    });
    EXPECT_EQ(Counts(g).count("cross_entropy"), last ? 1 : 0);
    EXPECT_EQ(Counts(g).count("exp"), last ? 0 : 1);
  }
}

TEST(CrossEntropy, OfHalvesIsOneOfHalves) {
  for (bool one_hot : {false, true}) {
    constexpr double kRounding = 2e-3;
    auto build = [one_hot](TestGraph& b) {
      Value* x = b.Cast(b.Add(b.In("x", {3, 5}), b.P("w", {5})), DType::kF16);
      x = b.Op1("log", b.Softmax(x));
      Value* ids = b.In("ids", HostTensor::Of<int64_t>({3, 1}, {4, 0, 2}));
      Value* places = b.Constant(HostTensor::Of<int64_t>({1, 5}, {0, 1, 2, 3, 4}));
      Value* y =
          one_hot ? b.ReduceSum(b.Mul(b.Cast(b.Make("equal", {ids, places}), DType::kF16), x), {1})
                  : b.Make("gather_nd", {x, ids}, {{"batch_dims", int64_t{1}}});
      b.Out(b.Cast(y, DType::kF64));
    };
    Graph g = Recover(build, kRounding);
    EXPECT_EQ(Counts(g).count("cross_entropy"), 1);
  }
}

// As Megatron-LM and optax write it: the logarithm of the sum less the label's logit.
TEST(CrossEntropy, IsALogOfASumLessALookUp) {
  auto recover = [](bool shift_of_both, bool negated, int64_t along) {
    return Recover([=](TestGraph& b) {
      Value* x = b.Add(b.In("x", {3, 2, 5}), b.P("w", {5}));
      auto reduce = [&](const char* op, Value* v) {
        return b.Make(op, {v}, {{"axes", Ints{along}}, {"keepdims", false}});
      };
      Value* max = reduce("reduce_max", x);
      Shape kept = {3, 2, 5};
      kept[along] = 1;
      Value* shifted = b.Sub(x, b.Reshape(max, kept));
      Value* log = b.Op1("log", reduce("reduce_sum", b.Op1("exp", shifted)));
      if (!shift_of_both) log = b.Add(max, log);
      HostTensor ids = HostTensor::Of<int64_t>({3, 2, 1, 1}, {0, 4, 2, -2, -5, 3});
      Value* picked = b.Make("gather_nd", {shift_of_both ? shifted : x, b.In("ids", ids)},
                             {{"batch_dims", int64_t{2}}});
      picked = b.Reshape(picked, {6});
      log = b.Reshape(along == 2 ? log : b.Slice(log, {0, 0}, {3, 2}), {6});
      b.Out(negated ? b.Sub(picked, log) : b.Sub(log, picked));
    });
  };
  for (bool shift_of_both : {false, true}) {
    for (bool negated : {false, true}) {
      const auto ops = Counts(recover(shift_of_both, negated, 2));
      EXPECT_EQ(ops.count("cross_entropy"), 1);
      EXPECT_EQ(ops.count("exp") + ops.count("gather_nd") + ops.count("reduce_max"), 0);
    }
    EXPECT_EQ(Counts(recover(shift_of_both, false, 1)).count("cross_entropy"), 0);
  }
}

// All tokens but the last against all but the first, which a loss inside of a model has.
TEST(CrossEntropy, OfMostRowsIsOfAllRows) {
  auto recover = [](Ints starts, Ints limits, int64_t ignore) {
    return Recover([=](TestGraph& b) {
      Value* x = b.Add(b.In("x", {3, 4, 5}), b.P("w", {5}));
      const int64_t n = (limits[0] - starts[0]) * (limits[1] - starts[1]);
      x = b.Reshape(b.Slice(x, starts, limits), {n, limits[2] - starts[2]});
      HostTensor ids(DType::kI64, {n});
      for (int64_t i = 0; i < n; ++i) ids.SetDouble(i, i % 4 == 1 ? 0 : static_cast<double>(i % 3));
      b.Out(b.Create("cross_entropy", {x, b.In("ids", ids)}, {{"ignore_index", ignore}})->result());
    });
  };
  for (int64_t ignore : {int64_t{-100}, int64_t{1}, std::numeric_limits<int64_t>::min()}) {
    EXPECT_THAT(Ops(recover({0, 0, 0}, {3, 3, 5}, ignore)),
                ElementsAre("add", "reshape", "pad", "cross_entropy", "slice", "reshape"));
  }
  EXPECT_EQ(Counts(recover({1, 1, 0}, {3, 4, 5}, 1)).count("pad"), 1);
  EXPECT_EQ(Counts(recover({0, 3, 0}, {3, 4, 5}, 1)).count("pad"), 0);
  EXPECT_EQ(Counts(recover({0, 0, 0}, {3, 4, 4}, 1)).count("pad"), 0);
}

}  // namespace
}  // namespace shardc::recover_testing
