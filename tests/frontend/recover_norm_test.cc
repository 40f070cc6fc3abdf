// Recovery of norms.
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

// How 1 / sqrt(y) multiplies n.
using Root = Value* (*)(TestGraph&, Value* n, Value* y);
const std::vector<Root> kRoots = {
    [](TestGraph& b, Value* n, Value* y) { return b.Div(n, b.Op1("sqrt", y)); },
    [](TestGraph& b, Value* n, Value* y) { return b.Div(n, b.Pow(y, 0.5)); },
    [](TestGraph& b, Value* n, Value* y) { return b.Mul(b.Op1("rsqrt", y), n); },
    [](TestGraph& b, Value* n, Value* y) { return b.Mul(n, b.Div(b.C(1), b.Op1("sqrt", y))); },
    [](TestGraph& b, Value* n, Value* y) {
      return b.Mul(n, b.Op1("reciprocal", b.Op1("sqrt", y)));
    },
    [](TestGraph& b, Value* n, Value* y) { return b.Mul(n, b.Pow(y, -0.5)); },
};

TEST(Norm, RmsNormInEverySpelling) {
  for (size_t i = 0; i < 2 * kRoots.size(); ++i) {
    SCOPED_TRACE(i);
    bool pow = i % 2 == 0;
    Graph g = Recover([&](TestGraph& b) {
      Value* x = b.In("x", {kB, kS, kH});
      Value* y = b.Add(b.C(1e-6, {1}), b.Mean(pow ? b.Pow(x, 2) : b.Mul(x, x)));
      Value* n = kRoots[i / 2](b, x, y);
      b.Out(pow ? b.Mul(b.P("w", {kH}), n) : b.Mul(n, b.P("w", {kH})));
    });
    ASSERT_THAT(Ops(g), ElementsAre("rms_norm"));
    EXPECT_EQ(Find(g, "rms_norm")->operands.size(), 2u);
    EXPECT_DOUBLE_EQ(Find(g, "rms_norm")->attrs.Float("eps"), 1e-6);
  }
}

// F.normalize and what multiplies it, its gradient made safe as linalg.vector_norm's is, or not.
TEST(Norm, RowsOfOneLength) {
  for (bool safe : {true, false}) {
    for (double floor : {1e-12, 1e-3}) {
      Graph g = Recover([&](TestGraph& b) {
        Value* x = b.In("x", {kB, kS, kH});
        Value* sum = b.ReduceSum(b.Mul(x, x), {2}, true);
        Value* zero = b.Make("equal", {sum, b.C(0)});
        Value* root = b.Op1("sqrt", safe ? b.Where(zero, b.C(1), sum) : sum);
        Value* length = safe ? b.Where(zero, b.C(0), root) : root;
        Value* unit = b.Div(x, b.Make("max", {length, b.C(floor)}));
        b.Out(unit, "unit");
        b.Out(b.Mul(b.Mul(unit, b.C(std::sqrt(1.0 * kH))), b.P("w", {kH})));
      });
      if (floor > 1e-8) {
        EXPECT_EQ(Find(g, "rms_norm"), nullptr);
        continue;
      }
      EXPECT_THAT(Ops(g), ElementsAre("rms_norm", "mul", "mul"));
      EXPECT_NEAR(Find(g, "rms_norm")->attrs.Float("eps") * kH, 1e-24, 1e-30);
    }
  }
  Graph g = Recover([&](TestGraph& b) {
    Value* x = b.In("x", {kB, kS, kH});
    Value* length = b.Op1("sqrt", b.ReduceSum(b.Mul(x, x), {2}, true));
    Value* unit = b.Div(x, b.Make("max", {length, b.C(1e-12)}));
    b.Out(b.Mul(b.Mul(unit, b.C(std::sqrt(1.0 * kH))), b.P("w", {kH})));
  });
  EXPECT_THAT(Ops(g), ElementsAre("rms_norm"));
  EXPECT_EQ(RolesOf(g)["w"], "NORM");
}

TEST(Norm, LayerNormInEverySpelling) {
  for (size_t i = 0; i < 2 * kRoots.size(); ++i) {
    SCOPED_TRACE(i);
    bool bias = i % 2 == 0;
    Graph g = Recover([&](TestGraph& b) {
      Value* x = b.In("x", {kB, kS, kH});
      Value* n = b.Sub(x, b.Mean(x));
      Value* y = kRoots[i / 2](b, n, b.Add(b.Mean(b.Pow(b.Sub(x, b.Mean(x)), 2)), b.C(1e-5)));
      y = b.Mul(y, b.P("w", {kH}));
      b.Out(bias ? b.Add(b.P("bias", {kH}), y) : y);
    });
    ASSERT_THAT(Ops(g), ElementsAre("layer_norm"));
    EXPECT_EQ(Find(g, "layer_norm")->operands.size(), bias ? 3u : 2u);
  }
}

TEST(Norm, LayerNormAsAScaleAndAShift) {
  for (bool other : {false, true}) {
    Graph g = Recover([other](TestGraph& b) {
      Value *x = b.In("x", {kB, kS, kH}), *mean = b.Mean(x), *centered = b.Sub(x, mean);
      Value* variance = b.Add(b.Mean(b.Mul(centered, centered)), b.C(1e-3));
      Value* root = b.Op1("reciprocal", b.Op1("sqrt", variance));
      Value* scale = b.Mul(root, b.P("w", {kH}));
      Value* shifted = b.Mul(other ? b.Mean(b.In("z", {kB, kS, kH})) : mean, scale);
      b.Out(b.Add(b.Mul(x, scale), b.Sub(b.P("bias", {kH}), shifted)));
    });
    if (other) {
      EXPECT_EQ(Find(g, "layer_norm"), nullptr);
      continue;
    }
    ASSERT_THAT(Ops(g), ElementsAre("layer_norm"));
    EXPECT_EQ(Find(g, "layer_norm")->operands.size(), 3u);
    EXPECT_DOUBLE_EQ(Find(g, "layer_norm")->attrs.Float("eps"), 1e-3);
  }
}

// As Keras writes it, and the sum in other orders.
TEST(Norm, AScaleAndAShiftInEverySpelling) {
  for (int form = 0; form < 6; ++form) {
    SCOPED_TRACE(form);
    Graph g = Recover([form](TestGraph& b) {
      Value *x = b.In("x", {kB, kS, kH}), *mean = b.Mean(x);
      Value* variance = b.Add(b.Mean(b.Pow(b.Sub(x, mean), 2)), b.C(1e-3));
      Value* scale = b.Mul(b.P("w", {1, 1, kH}), b.Op1("rsqrt", variance));
      Value *bias = b.P("bias", {1, 1, kH}), *scaled = b.Mul(scale, x);
      Value *shift = b.Mul(mean, scale), *negative = b.Mul(scale, b.Op1("neg", mean));
      Value* forms[] = {b.Add(scaled, b.Add(negative, bias)), b.Add(b.Add(scaled, negative), bias),
                        b.Add(b.Sub(scaled, shift), bias),    b.Sub(scaled, b.Sub(shift, bias)),
                        b.Sub(b.Add(bias, scaled), shift),    b.Sub(scaled, shift)};
      b.Out(forms[form]);
    });
    EXPECT_THAT(Ops(g), Contains("layer_norm"));
    EXPECT_THAT(Ops(g), Not(Contains(::testing::AnyOf("mul", "add", "sub", "reduce_mean"))));
    EXPECT_EQ(RolesOf(g)["w"], "NORM");
  }
  Graph g = Recover([](TestGraph& b) {  // x * s + mean * s
    Value *x = b.In("x", {kB, kS, kH}), *mean = b.Mean(x);
    Value* scale = b.Op1("rsqrt", b.Add(b.Mean(b.Pow(b.Sub(x, mean), 2)), b.C(1e-3)));
    b.Out(b.Sub(b.Mul(x, scale), b.Mul(b.Op1("neg", mean), scale)));
  });
  EXPECT_EQ(Find(g, "layer_norm"), nullptr);
}

TEST(Norm, AWeightThatIsMultipliedByTheRootFirst) {
  for (bool layer : {false, true}) {
    Graph g = Recover([layer](TestGraph& b) {
      Value* x = b.In("x", {kB, kS, kH});
      if (layer) x = b.Sub(x, b.Mean(x));
      Value* root = b.Op1("rsqrt", b.Add(b.Mean(b.Mul(x, x)), b.C(1e-6)));
      Value* y = b.Mul(x, b.Mul(root, b.P("w", {kH})));
      b.Out(layer ? b.Add(y, b.P("bias", {kH})) : y);
    });
    EXPECT_THAT(Ops(g), ElementsAre(layer ? "layer_norm" : "rms_norm"));
  }
}

// As Flax writes it.
TEST(Norm, AVarianceFromTheMeanOfSquares) {
  for (bool other : {false, true}) {
    for (const char* floor : {"", "max", "relu"}) {
      Graph g = Recover([&](TestGraph& b) {
        Value *x = b.In("x", {kB, kS, kH}), *mean = b.Mean(x);
        Value* squares = b.Mean(b.Mul(x, x));
        Value* variance = b.Sub(squares, b.Mul(mean, other ? b.C(0.25) : mean));
        if (floor == std::string("max")) variance = b.Make("max", {b.C(0), variance});
        if (floor == std::string("relu")) variance = b.Op1("relu", variance);
        Value* scale = b.Mul(b.Op1("rsqrt", b.Add(variance, b.C(1e-6))), b.P("w", {kH}));
        b.Out(b.Add(b.Mul(b.Sub(x, mean), scale), b.P("bias", {kH})));
      });
      if (other) {
        EXPECT_EQ(Find(g, "layer_norm"), nullptr);
      } else {
        EXPECT_THAT(Ops(g), ElementsAre("layer_norm"));
      }
    }
  }
}

// onnxruntime-genai: heads are merged with the sequence for the norm of each.
TEST(Norm, OfHeadsThatAreMergedWithTheSequence) {
  for (bool chain : {false, true}) {
    Graph g = Recover([chain](TestGraph& b) {
      Value* q = b.Matmul(b.In("x", {kB, kS, kH}), b.P("q", {kH, 12}));
      Value *n = b.Reshape(q, {kB, kS * 3, 4}), *w = b.P("w", {4});
      if (chain) {
        n = b.Mul(n, b.Mul(b.Op1("rsqrt", b.Add(b.Mean(b.Mul(n, n)), b.C(1e-6))), w));
      } else {
        n = b.Create("rms_norm", {n, w}, {{"eps", 1e-6}})->result();
      }
      b.Out(b.Reshape(n, {kB, kS, 12}));
    });
    EXPECT_THAT(Ops(g), ElementsAre("matmul", "reshape", "rms_norm", "reshape"));
    EXPECT_EQ(Find(g, "rms_norm")->out().shape, (Shape{kB, kS, 3, 4}));
  }
}

// As LayerNormalization's mean may be an output of the model.
TEST(Norm, OfHeadsWhoseStatisticIsAnOutputStays) {
  Graph g = Recover([](TestGraph& b) {
    Value* n = b.Reshape(b.In("x", {kB, kS, 12}), {kB, kS * 3, 4});
    Op* norm = b.Create("layer_norm", {n, b.P("w", {4})}, {{"eps", 1e-6}});
    b.Out(norm->result());
    b.Out(norm->results[1], "mean");
  });
  EXPECT_EQ(Find(g, "layer_norm")->out().shape, (Shape{kB, kS * 3, 4}));
}

// With as many rows as columns, statistics without the last dim broadcast along the rows.
TEST(Norm, AScaleAndAShiftByOtherRowsStatisticsStay) {
  Graph g = Recover([](TestGraph& b) {
    Value* x = b.In("x", {kS, kS});
    auto mean = [&](Value* v) {
      return b.Make("reduce_mean", {v}, {{"axes", Ints{1}}, {"keepdims", false}});
    };
    Value *m = mean(x), *centered = b.Sub(x, m);
    Value* root = b.Op1("rsqrt", b.Add(mean(b.Mul(centered, centered)), b.C(1e-3)));
    Value* scale = b.Mul(root, b.P("w", {kS}));
    b.Out(b.Add(b.Mul(x, scale), b.Sub(b.P("bias", {kS}), b.Mul(m, scale))), "both");
    Value *kept = b.Mean(x), *around = b.Sub(x, kept);
    root = b.Op1("rsqrt", b.Add(mean(b.Mul(around, around)), b.C(1e-3)));
    scale = b.Mul(root, b.P("w2", {kS}));
    b.Out(b.Add(b.Mul(x, scale), b.Sub(b.P("bias2", {kS}), b.Mul(kept, scale))), "variance");
  });
  EXPECT_EQ(Find(g, "layer_norm"), nullptr);
}

TEST(Norm, AConstantBiasOfZerosIsNoParameter) {
  Graph g = Recover([](TestGraph& b) {
    Value* x = b.In("x", {kS, kH});
    b.Out(b.Create("layer_norm", {x, b.P("w", {kH}), b.C(0, {kH})}, {{"eps", 1e-5}})->result());
  });
  EXPECT_EQ(Find(g, "layer_norm")->operands.size(), 2u);
}

TEST(Norm, NearMissesStay) {
  Graph g = Recover([](TestGraph& b) {
    Value* x = b.In("x", {kS, kH});
    // Over the first dim; of another tensor; cubes.
    Value* first = b.Make("reduce_mean", {b.Pow(x, 2)}, {{"axes", Ints{0}}, {"keepdims", true}});
    b.Out(b.Div(x, b.Op1("sqrt", b.Add(first, b.C(1e-5)))), "a");
    b.Out(b.Div(x, b.Op1("sqrt", b.Add(b.Mean(b.Pow(b.In("z", {kS, kH}), 2)), b.C(1e-5)))), "b");
    b.Out(b.Div(x, b.Op1("sqrt", b.Add(b.Mean(b.Pow(b.Op1("abs", x), 3)), b.C(1e-5)))), "c");
  });
  EXPECT_THAT(Ops(g), Not(Contains("rms_norm")));
}

// Longer than any stack is deep.
TEST(Norm, ChainsOfAnyLengthBeforeASum) {
  Graph g = Recover([&](TestGraph& b) {
    Value* x = b.In("x", {kH});
    Value* y = x;
    for (int i = 0; i < 120'000; ++i) y = b.Op1("neg", y);
    b.Out(b.Add(y, x));
  });
  EXPECT_EQ(g.ops().back()->name(), "add");
}

}  // namespace
}  // namespace shardc::recover_testing
