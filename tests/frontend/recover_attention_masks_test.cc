// Masks of an attention in the spellings of the exporters, each against what it was recovered from.
#include "tests/frontend/attention_forms.h"

namespace shardc::recover_testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

TEST(Attention, CausalMasksBecomeAFlag) {
  const Shape square = {kS, kS}, lead = {1, 1, kS, kS}, batch = {kB, 1, kS, kS};
  std::vector<MaskFn> masks = {
      AddConst(Mask(square, DType::kF64, 0, -kInf, Triangle)),
      AddConst(Mask(batch, DType::kF64, 0, kMin, Triangle)),
      AddConst(Mask(lead, DType::kF64, 0, -1e4, Triangle)),
      WhereConst(Mask(lead, DType::kBool, 1, 0, Triangle), -kInf),
      WhereConst(Mask(batch, DType::kBool, 1, 0, Triangle), kMin),
      // masked_fill: the condition is true where the fill goes
      [=](TestGraph& b, Value* s) {
        return b.Where(b.Constant(Mask(square, DType::kBool, 0, 1, Triangle)), b.C(-kInf), s);
      },
      [=](TestGraph& b, Value* s) {
        Value* drop = b.Make("not", {b.Constant(Mask(square, DType::kBool, 1, 0, Triangle))});
        return b.Where(drop, b.BroadcastTo(b.C(kMin), s->type.shape), s);
      },
      // eager: both
      [=](TestGraph& b, Value* s) {
        s = b.Where(b.Constant(Mask(lead, DType::kBool, 1, 0, Triangle)), s, b.C(kMin));
        return b.Add(s, b.Constant(Mask(batch, DType::kF64, 0, kMin, Triangle)));
      },
      // made of constants by ops that nobody folded
      [=](TestGraph& b, Value* s) {
        Value* keep = b.BroadcastTo(b.Constant(Mask(square, DType::kBool, 1, 0, Triangle)), batch);
        return b.Add(s, b.Where(keep, b.C(0), b.C(-kInf)));
      },
  };
  for (size_t i = 0; i < masks.size(); ++i) {
    for (int guard : {0, 1, 2, 3}) {
      SCOPED_TRACE(StrCat(i, " ", guard));
      Graph g = RecoverForm({.mask = masks[i], .guard = guard});
      ASSERT_THAT(Ops(g), ElementsAre("reshape", "reshape", "reshape", "attention", "reshape"));
      EXPECT_TRUE(Find(g, "attention")->attrs.Bool("causal"));
      EXPECT_EQ(Find(g, "attention")->operands.size(), 3u);
    }
  }
}

TEST(Attention, OtherConstantMasksStay) {
  auto slopes = Mask({kHeads, kS, kS}, DType::kF64, -0.5, -kInf, Triangle);
  for (const MaskFn& mask :
       {WhereConst(Mask({kS, kS}, DType::kBool, 1, 0, Band), -kInf),
        AddConst(Mask({kB, 1, kS, kS}, DType::kF64, 0, kMin, Band)), AddConst(slopes)}) {
    Graph g = RecoverForm({.mask = mask});
    ASSERT_THAT(Ops(g), Contains("attention"));
    EXPECT_FALSE(Find(g, "attention")->attrs.Bool("causal"));
    EXPECT_EQ(Find(g, "attention")->operands.size(), 4u);
  }
}

// Row 1 of the first batch sees no key.
HostTensor Padding() {
  HostTensor t(DType::kBool, {kB, 1, kS, kS});
  for (int64_t i = 0; i < t.num_elements(); ++i) t.SetDouble(i, i / kS != 1 && (i * 7) % 3 != 0);
  return t;
}

// A bias by distance, and a triangle whose fill, the lowest of half precision, absorbs no score.
TEST(Attention, ABiasAndAFillOfHalfPrecision) {
  auto bias = [](TestGraph& b, Value* s) { return b.Add(s, b.Constant(Random("bias", {kS, kS}))); };
  constexpr double kLowest = -65504;
  Graph g = RecoverForm({.mask = [&](TestGraph& b, Value* s) {
    return WhereConst(Mask({kS, kS}, DType::kBool, 1, 0, Triangle), kLowest)(b, bias(b, s));
  }});
  const Op* attention = Find(g, "attention");
  ASSERT_TRUE(attention);
  EXPECT_EQ(attention->operands.size(), 4u);
  // Rows that see no key are uniform: what they ask for is taken to be nothing.
  g = RecoverForm({.mask = [&](TestGraph& b, Value* s) {
    return b.Where(b.In("padding", Padding()), bias(b, s), b.C(kLowest));
  }});
  EXPECT_THAT(Ops(g), Contains("attention"));
  // Not where the fill can be near a score.
  g = RecoverForm({.mask = [&](TestGraph& b, Value* s) {
    return WhereConst(Mask({kS, kS}, DType::kBool, 1, 0, Triangle), -100)(b, bias(b, s));
  }});
  EXPECT_THAT(Ops(g), Not(Contains("attention")));
}

// Where all that a row sees is brought down to it, a fill that absorbs nothing is seen too.
TEST(Attention, AFillThatOtherMasksComeNear) {
  auto triangle = WhereConst(Mask({kS, kS}, DType::kBool, 1, 0, Triangle), -1e4);
  Graph g = RecoverForm({.mask = [&](TestGraph& b, Value* s) {
    return triangle(b, b.Add(s, b.Where(b.In("padding", Padding()), b.C(0), b.C(-1e4))));
  }});
  EXPECT_THAT(Ops(g), Not(Contains("attention")));
  auto below_first_row = [](int64_t i, int64_t) { return i > 0; };
  g = RecoverForm({.mask = [&](TestGraph& b, Value* s) {
    s = AddConst(Mask({kS, kS}, DType::kF64, -3, -1e4, below_first_row))(b, s);
    return triangle(b, s);
  }});
  EXPECT_THAT(Ops(g), Not(Contains("attention")));
}

TEST(Attention, ComputedMaskWithGuard) {
  const MaskFn mask = [](TestGraph& b, Value* s) {
    Value* triangle = b.Constant(Mask({kS, kS}, DType::kBool, 1, 0, Triangle));
    Value* keep = b.Make("and", {triangle, b.In("padding", Padding())});
    return b.Add(s, b.Where(keep, b.C(0), b.C(-kInf)));
  };
  for (int guard : {1, 2, 3}) {
    Graph g = RecoverForm({.mask = mask, .guard = guard});
    const Op* attention = Find(g, "attention");
    ASSERT_TRUE(attention) << guard;
    EXPECT_TRUE(attention->attrs.Bool("causal"));
    EXPECT_EQ(attention->operands[3], g.FindInput("padding"));
  }
}

TEST(Attention, FiniteComputedMaskKeepsUniformRows) {
  for (bool replace : {true, false}) {
    Graph g = RecoverForm({.mask = [=](TestGraph& b, Value* s) {
      Value* keep = b.In("padding", Padding());
      s = b.Where(b.Constant(Mask({kS, kS}, DType::kBool, 1, 0, Triangle)), s, b.C(kMin));
      return replace ? b.Where(keep, s, b.C(kMin)) : b.Add(s, b.Where(keep, b.C(0), b.C(kMin)));
    }});
    const Op* attention = Find(g, "attention");
    ASSERT_TRUE(attention);
    EXPECT_FALSE(attention->attrs.Bool("causal"));
    EXPECT_EQ(attention->in(3).dtype, DType::kF64);
  }
}

// max(scores, the type's lowest) after the masks: rows that see no key are uniform.
TEST(Attention, AFloorUnderTheScores) {
  auto floor = [](TestGraph& b, Value* s, double least) { return b.Make("max", {s, b.C(least)}); };
  Graph g = RecoverForm({.mask = [&](TestGraph& b, Value* s) {
    return floor(b, AddConst(Mask({kS, kS}, DType::kF64, 0, kMin, Triangle))(b, s), kMin);
  }});
  ASSERT_THAT(Ops(g), Contains("attention"));
  EXPECT_TRUE(Find(g, "attention")->attrs.Bool("causal"));
  EXPECT_EQ(Find(g, "attention")->operands.size(), 3u);
  for (double fill : {kMin, -kInf}) {
    g = RecoverForm({.mask = [&](TestGraph& b, Value* s) {
      s = b.Add(s, b.Where(b.In("padding", Padding()), b.C(0), b.C(fill)));
      return floor(b, s, kMin);
    }});
    ASSERT_THAT(Ops(g), Contains("attention"));
    EXPECT_EQ(Find(g, "attention")->operands.size(), 4u);
  }
  // Not where scores may lie below it.
  g = RecoverForm({.mask = [&](TestGraph& b, Value* s) { return floor(b, s, -100); }});
  EXPECT_THAT(Ops(g), Not(Contains("attention")));
  g = RecoverForm({.mask = [&](TestGraph& b, Value* s) {
    return b.Add(floor(b, s, kMin), b.Where(b.In("padding", Padding()), b.C(0), b.C(-kInf)));
  }});
  EXPECT_THAT(Ops(g), Contains("attention"));
}

// The mask of an attention has no gradient.
TEST(Attention, ATrainedBiasStaysAnAdd) {
  auto biased = [](bool trained, int guard) {
    return RecoverForm({.mask =
                            [=](TestGraph& b, Value* s) {
                              Value* bias = trained ? b.P("bias", {kHeads, kS, kS})
                                                    : b.In("bias", {kHeads, kS, kS});
                              return b.Add(s, b.Mul(bias, b.C(3)));
                            },
                        .guard = guard});
  };
  EXPECT_THAT(Ops(biased(false, 1)), Contains("attention"));
  EXPECT_THAT(Ops(biased(true, 1)), Not(Contains("attention")));
  EXPECT_THAT(Ops(biased(true, 0)), Not(Contains("attention")));
}

// The op gives zero to a row that sees no key, and such a model NaN.
TEST(Attention, RowsThatSeeNothingAreNaNStill) {
  auto added = [](TestGraph& b) {
    HostTensor mask = Padding();
    HostTensor number(DType::kF64, mask.shape());
    for (int64_t i = 0; i < mask.num_elements(); ++i) {
      number.SetDouble(i, mask.AsDouble(i) != 0 ? 0 : -kInf);
    }
    return b.In("mask", std::move(number));
  };
  const MaskFn masks[] = {
      [](TestGraph& b, Value* s) { return b.Where(b.In("padding", Padding()), s, b.C(-kInf)); },
      WhereConst(Padding(), -kInf),
      [&](TestGraph& b, Value* s) { return b.Add(s, added(b)); },
      [&](TestGraph& b, Value* s) {
        return WhereConst(Mask({kS, kS}, DType::kBool, 1, 0, Triangle), kMin)(b,
                                                                              b.Add(s, added(b)));
      },
  };
  for (const MaskFn& mask : masks) {
    Graph g = RecoverForm({.mask = mask});
    ASSERT_THAT(Ops(g), Contains("attention"));
    EXPECT_EQ(Find(g, "attention")->attrs.String("layout"), "bshd");
  }
}

// Models replace scores by -1e9 where they mean infinity: rows of nothing else are uniform.
TEST(Attention, FillsThatAbsorbNothing) {
  auto fill = [](TestGraph& b, Value* s, Value* keep) { return b.Where(keep, s, b.C(-1e9)); };
  Graph g = RecoverForm({.mask = [&](TestGraph& b, Value* s) {
    s = fill(b, s, b.In("padding", Padding()));
    return fill(b, s, b.Constant(Mask({kS, kS}, DType::kBool, 1, 0, Triangle)));
  }});
  EXPECT_THAT(Ops(g), Contains("attention"));
  // Nor beside infinities that are computed, which leave such a row what the triangle hides.
  g = RecoverForm({.mask = [&](TestGraph& b, Value* s) {
    Value* padding = b.Where(b.In("padding", Padding()), b.C(0), b.C(-kInf));
    Value* seen = b.Constant(Mask({kS, kS}, DType::kBool, 1, 0, Triangle));
    return b.Where(seen, b.Add(s, padding), b.C(-65504));
  }});
  EXPECT_THAT(Ops(g), Not(Contains("attention")));
  // Not where what is added decides which of them is largest.
  g = RecoverForm({.mask = [&](TestGraph& b, Value* s) {
    return fill(b, b.Add(s, b.In("bias", {kHeads, kS, kS})), b.In("padding", Padding()));
  }});
  EXPECT_THAT(Ops(g), Not(Contains("attention")));
}

// (1 - mask) * -1e4 for padding, and as much for later tokens.
TEST(Attention, TwoMasksAddedToEachOther) {
  Graph g = RecoverForm({.mask = [](TestGraph& b, Value* s) {
    Value* padding = b.Cast(b.In("padding", Padding()), DType::kI64);
    Value* mask = b.Mul(b.Sub(b.C(1), b.Cast(padding, DType::kF64)), b.C(-1e4));
    return b.Add(s, b.Add(mask, b.Constant(Mask({kS, kS}, DType::kF64, 0, -1e4, Triangle))));
  }});
  EXPECT_THAT(Ops(g), Contains("attention"));
  EXPECT_THAT(Ops(g), Not(Contains("where")));
}

// A mask or another number for each of batch and heads as one dim is not the scores' any more.
TEST(Attention, MaskedBeforeItIsRegroupedStays) {
  Graph g = Recover([](TestGraph& b) {
    Value* q = b.In("q", {kB * kHeads, kS, kD});
    Value* scores = b.Make("matmul_nt", {q, b.In("k", {kB * kHeads, kS, kD})});
    scores = b.Add(scores, b.Constant(Random("alibi", {kB * kHeads, 1, kS})));
    Value* p = b.Softmax(b.Reshape(scores, {kB, kHeads, kS, kS}));
    b.Out(b.Matmul(b.Reshape(p, {kB * kHeads, kS, kS}), b.In("v", {kB * kHeads, kS, kD})));
  });
  EXPECT_THAT(Ops(g), Not(Contains("attention")));
}

TEST(Attention, AMaskOfTheModelsOwnAttention) {
  Graph g = Recover([](TestGraph& b) {
    Value *q = b.In("q", {kB, kHeads, kS, kD}), *k = b.In("k", {kB, 2, kS, kD}),
          *v = b.In("v", {kB, 2, kS, kD});
    Value* mask = b.Constant(Mask({kB, 1, kS, kS}, DType::kBool, 1, 0, Triangle));
    Attributes attrs = {{"scale", 0.3}, {"causal", false}, {"layout", std::string("bhsd")}};
    b.Out(b.Create("attention", {q, k, v, mask}, attrs)->result());
  });
  EXPECT_THAT(Ops(g), ElementsAre("attention"));
  EXPECT_TRUE(Find(g, "attention")->attrs.Bool("causal"));
  EXPECT_EQ(Find(g, "attention")->operands.size(), 3u);
}

// Further than recursion goes.
TEST(Attention, AMaskOfVeryManyConditions) {
  Graph g = RecoverForm({.mask = [](TestGraph& b, Value* scores) {
    Value *padding = b.In("padding", Padding()), *keep = padding;
    for (int i = 0; i < 60'000; ++i) keep = b.Make("and", {keep, padding});
    return b.Where(keep, scores, b.C(kMin));
  }});
  EXPECT_THAT(Ops(g), Contains("attention"));
}

}  // namespace
}  // namespace shardc::recover_testing
