// Attention in the spellings of the exporters, each against what it was recovered from.
#include "tests/frontend/attention_forms.h"

namespace shardc::recover_testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

TEST(Attention, EveryFormOfKAndOfTheScale) {
  for (KForm k : {KForm::kPerm, KForm::kAfterHeads, KForm::kFlat, KForm::kNt}) {
    for (int scale = 0; scale < 4; ++scale) {
      SCOPED_TRACE(StrCat(static_cast<int>(k), " ", scale));
      Graph g = RecoverForm({.k = k, .scale = scale});
      ASSERT_THAT(Ops(g), ElementsAre("reshape", "reshape", "reshape", "attention", "reshape"));
      const Op* attention = Find(g, "attention");
      EXPECT_EQ(attention->attrs.String("layout"), "bshd");
      EXPECT_NEAR(attention->attrs.Float("scale"), 1 / std::sqrt(1.0 * kD), 1e-15);
      EXPECT_FALSE(attention->attrs.Bool("causal"));
    }
  }
}

TEST(Attention, GroupedHeads) {
  for (KForm k : {KForm::kAfterHeads, KForm::kFlat, KForm::kNt}) {
    for (int kv : {1, 2}) {
      for (int scale : {0, 2}) {
        Graph g = RecoverForm({.k = k, .scale = scale, .heads_kv = kv});
        ASSERT_THAT(Ops(g), ElementsAre("reshape", "reshape", "reshape", "attention", "reshape"));
        EXPECT_EQ(Find(g, "attention")->in(1).shape, (Shape{kB, kS, kv, kD}));
        EXPECT_EQ(Find(g, "attention")->in(2).shape, (Shape{kB, kS, kv, kD}));
      }
    }
  }
}

// dynamo_export of PyTorch 2.1 to 2.5.
TEST(Attention, OneHeadThatIsRepeatedAsItIsMultiplied) {
  for (int scale : {0, 1, 2, 3}) {
    Graph g = RecoverForm({.k = KForm::kOneHead, .scale = scale, .heads_kv = 1});
    ASSERT_THAT(Ops(g), ElementsAre("reshape", "reshape", "reshape", "attention", "reshape"));
    const Op* attention = Find(g, "attention");
    EXPECT_EQ(attention->in(1).shape, (Shape{kB, kS, 1, kD}));
    EXPECT_EQ(attention->in(2).shape, (Shape{kB, kS, 1, kD}));
    EXPECT_NEAR(attention->attrs.Float("scale"), 1 / std::sqrt(1.0 * kD), 1e-15);
  }
}

TEST(Attention, RotatedHeadsStayBehindTheSequence) {
  Graph g = RecoverForm({.rotate = true});
  EXPECT_EQ(Find(g, "attention")->attrs.String("layout"), "bshd");
  EXPECT_THAT(Ops(g), Not(Contains("transpose")));
}

TEST(Attention, KvHeadsRepeatedBeforeTheTranspose) {
  for (int kv : {1, 2}) {
    for (Form::Repeat repeat : {Form::kHeadsLast, Form::kTile, Form::kStack}) {
      SCOPED_TRACE(StrCat(kv, " ", static_cast<int>(repeat)));
      Graph g = RecoverForm({.k = KForm::kAfterHeads, .heads_kv = kv, .repeat = repeat});
      ASSERT_THAT(Ops(g), ElementsAre("reshape", "reshape", "reshape", "attention", "reshape"));
      EXPECT_EQ(Find(g, "attention")->in(1).shape, (Shape{kB, kS, kv, kD}));
      EXPECT_EQ(Find(g, "attention")->in(2).shape, (Shape{kB, kS, kv, kD}));
    }
  }
}

TEST(Attention, ProbabilitiesThatAreWantedElsewhereStay) {
  Graph g = Recover([](TestGraph& b) {
    Value* p = b.Softmax(b.Make("matmul_nt", {b.In("q", {1, 2, 3, 4}), b.In("k", {1, 2, 3, 4})}));
    b.Out(p, "p");
    b.Out(b.Matmul(p, b.In("v", {1, 2, 3, 4})));
  });
  EXPECT_THAT(Ops(g), Not(Contains("attention")));
}

TEST(Attention, FlattenedBatchAndHeads) {
  Graph g = Recover([](TestGraph& b) {
    auto flat = [&](const std::string& name) {
      return b.Reshape(b.In(name, {kB, kHeads, kS, kD}), {kB * kHeads, kS, kD});
    };
    Value* scores = b.Matmul(flat("q"), b.Transpose(flat("k"), {0, 2, 1}));
    scores = b.Add(scores, b.Constant(Mask({1, kS, kS}, DType::kF64, 0, -kInf, Triangle)));
    b.Out(b.Reshape(b.Matmul(b.Softmax(scores), flat("v")), {kB, kHeads, kS, kD}));
  });
  ASSERT_THAT(Ops(g), ElementsAre("attention"));
  EXPECT_TRUE(Find(g, "attention")->attrs.Bool("causal"));
  EXPECT_EQ(Find(g, "attention")->attrs.String("layout"), "bhsd");
}

// Megatron-LM's: the sequence first, repeated kv heads and the batch as one dim, and to the scores
// is added what memory held times zero.
TEST(Attention, SequenceFirst) {
  constexpr int64_t kGroups = 2;
  Graph g = Recover([](TestGraph& b) {
    auto flat = [&](Value* x) { return b.Reshape(x, {kS, kB * kHeads, kD}); };
    auto repeated = [&](const std::string& name) {
      Value* x = b.Reshape(b.In(name, {kS, kB, kGroups, kD}), {kS, kB, kGroups, 1, kD});
      return flat(b.BroadcastTo(x, {kS, kB, kGroups, kHeads / kGroups, kD}));
    };
    Value* q = b.Transpose(flat(b.In("q", {kS, kB, kHeads, kD})), {1, 0, 2});
    Value* scores = b.Mul(b.Matmul(q, b.Transpose(repeated("k"), {1, 2, 0})), b.C(0.4));
    HostTensor zeros(DType::kF64, {kB * kHeads, kS, kS});
    for (int64_t i = 0; i < zeros.num_elements(); i += 2) zeros.SetDouble(i, -0.0);
    scores = b.Add(scores, b.Constant(std::move(zeros)));
    Value* keep = b.Constant(Mask({1, 1, kS, kS}, DType::kBool, 1, 0, Triangle));
    scores = b.Where(keep, b.Reshape(scores, {kB, kHeads, kS, kS}), b.C(-1e4));
    Value* p = b.Reshape(b.Softmax(scores), {kB * kHeads, kS, kS});
    Value* o = b.Matmul(p, b.Transpose(repeated("v"), {1, 0, 2}));
    o = b.Transpose(b.Reshape(o, {kB, kHeads, kS, kD}), {2, 0, 1, 3});
    b.Out(b.Reshape(o, {kS, kB, kHeads * kD}));
  });
  ASSERT_THAT(Ops(g), ElementsAre("transpose", "transpose", "transpose", "attention", "transpose",
                                  "reshape"));
  const Op* attention = Find(g, "attention");
  EXPECT_EQ(attention->operands.size(), 3u);
  EXPECT_EQ(attention->in(1).shape, (Shape{kB, kGroups, kS, kD}));
  EXPECT_EQ(attention->in(2).shape, (Shape{kB, kGroups, kS, kD}));
}

// One head of k and v for all queries: einsum makes heads and queries the rows of one matrix.
TEST(Attention, HeadsAsRows) {
  Graph g = Recover([](TestGraph& b) {
    const Shape scores_shape = {kB, kHeads, kS, kS};
    Value* q = b.Reshape(b.In("q", {kB, kHeads, kS, kD}), {kB, kHeads * kS, kD});
    Value* scores = b.Reshape(b.Make("matmul_nt", {q, b.In("k", {kB, kS, kD})}), scores_shape);
    scores = b.Add(scores, b.Constant(Random("bias", {kHeads, kS, kS})));
    scores = b.Add(scores, b.Constant(Mask({kS, kS}, DType::kF64, 0, -kInf, Triangle)));
    Value* p = b.Reshape(b.Softmax(scores), {kB, kHeads * kS, kS});
    b.Out(b.Reshape(b.Matmul(p, b.In("v", {kB, kS, 3})), {kB, kHeads, kS, 3}));
  });
  ASSERT_THAT(Ops(g), Contains("attention"));
  EXPECT_THAT(Ops(g), Not(Contains("matmul")));
  EXPECT_EQ(Find(g, "attention")->in(1).shape, (Shape{kB, 1, kS, kD}));
}

// [b, g, h / g, s, d], with or without a dim of 1 in k and v.
TEST(Attention, HeadsInGroups) {
  constexpr int64_t kGroups = 2, kEach = kHeads / kGroups;
  for (bool as_rows : {true, false}) {
    for (int mask = 0; mask < 3; ++mask) {
      SCOPED_TRACE(StrCat(as_rows, " ", mask));
      Graph g = Recover([&](TestGraph& b) {
        Value* q = b.Reshape(b.In("q", {kB, kHeads, kS, kD}), {kB, kGroups, kEach, kS, kD});
        auto kv = [&](const std::string& name) {
          Value* x = b.In(name, {kB, kGroups, kS, kD});
          return as_rows ? x : b.Reshape(x, {kB, kGroups, 1, kS, kD});
        };
        if (as_rows) q = b.Reshape(q, {kB, kGroups, kEach * kS, kD});
        Value* scores = b.Make("matmul_nt", {q, kv("k")});
        scores = b.Reshape(scores, {kB, kGroups, kEach, kS, kS});
        const Shape shapes[] = {{kS, kS}, {kB, kGroups, kEach, kS, kS}, {kGroups, 1, kS, kS}};
        scores = b.Add(scores, b.Constant(Random("mask", shapes[mask])));
        Value* p = b.Softmax(scores);
        if (as_rows) p = b.Reshape(p, {kB, kGroups, kEach * kS, kS});
        b.Out(b.Reshape(b.Matmul(p, kv("v")), {kB, kHeads, kS, kD}));
      });
      // A mask for each group and not for each head has no shape that broadcasts to heads.
      const auto ops = Ops(g);
      ASSERT_EQ(std::count(ops.begin(), ops.end(), "attention"), mask == 2 ? 0 : 1);
      if (mask == 2) continue;
      EXPECT_EQ(Find(g, "attention")->in(1).shape, (Shape{kB, kGroups, kS, kD}));
      EXPECT_EQ(Find(g, "attention")->in(0).shape, (Shape{kB, kHeads, kS, kD}));
    }
  }
}

// GPT-OSS's: a score beside those of the keys, for each head, that has no value.
TEST(Attention, WithSinks) {
  constexpr int64_t kKv = 2;
  for (bool split : {false, true}) {
    for (double fill : {-kInf, kMin, -1e4}) {
      Graph g = Recover([&](TestGraph& b) {
        auto heads = [&](const std::string& name, int64_t n) {
          Value* x = b.Transpose(b.In(name, {kB, kS, n, kD}), {0, 2, 1, 3});
          if (n == kHeads) return x;
          x = b.BroadcastTo(b.Reshape(x, {kB, n, 1, kS, kD}), {kB, n, kHeads / n, kS, kD});
          return b.Reshape(x, {kB, kHeads, kS, kD});
        };
        Value* scores = b.Mul(b.Make("matmul_nt", {heads("q", kHeads), heads("k", kKv)}), b.C(0.4));
        // The second query sees no key but the sink.
        auto sees = [](int64_t i, int64_t j) { return i != 1 && j <= i; };
        HostTensor keep = Mask({kS, kS}, DType::kBool, 1, 0, sees);
        scores = b.Where(b.In("keep", std::move(keep)), scores, b.C(fill));
        Value* sinks = b.Reshape(b.P("sinks", {kHeads}), {1, kHeads, 1, 1});
        sinks = b.BroadcastTo(sinks, {kB, kHeads, kS, 1});
        Value* both = b.Make("concat", {scores, sinks}, {{"axis", int64_t{3}}});
        Value* p = b.Softmax(b.Sub(both, b.ReduceMax(both, {3}, true)));
        if (split) {
          p = b.Create("split", {p}, {{"axis", int64_t{3}}, {"sizes", Ints{kS, 1}}})->result();
        } else {
          p = b.Slice(p, {0, 0, 0, 0}, {kB, kHeads, kS, kS});
        }
        b.Out(b.Transpose(b.Matmul(p, heads("v", kKv)), {0, 2, 1, 3}));
      });
      SCOPED_TRACE(StrCat(split, " ", fill));
      ASSERT_THAT(Ops(g), Contains("attention"));
      EXPECT_THAT(Ops(g), Not(Contains("softmax")));
      EXPECT_EQ(Find(g, "attention")->in(1).shape, (Shape{kB, kS, kKv, kD}));
      EXPECT_EQ(Find(g, "attention")->attrs.String("layout"), "bshd");
    }
  }
}

// The same but for the order in which the probabilities of queries are taken.
TEST(Attention, WithSinksAndQueriesTurnedAround) {
  Graph g = Recover([](TestGraph& b) {
    Value* scores =
        b.Make("matmul_nt", {b.In("q", {kB, kHeads, kS, kD}), b.In("k", {kB, kHeads, kS, kD})});
    Value* sinks = b.In("sinks", {kB, kHeads, kS, 1});
    Value* p = b.Softmax(b.Make("concat", {scores, sinks}, {{"axis", int64_t{3}}}));
    p = b.Make("slice", {p},
               {{"starts", Ints{0, 0, kS - 1, 0}},
                {"limits", Ints{kB, kHeads, -1, kS}},
                {"steps", Ints{1, 1, -1, 1}}});
    b.Out(b.Matmul(p, b.In("v", {kB, kHeads, kS, kD})));
  });
  EXPECT_THAT(Ops(g), Not(Contains("attention")));
}

// A softmax by its definition, with the maximum subtracted in some way, or not at all.
TEST(Attention, WithASoftmaxOfItsOwn) {
  for (int form = 0; form < 4; ++form) {
    Graph g = Recover([form](TestGraph& b) {
      const Shape shape = {kB, kHeads, kS, kD}, kept = {kB, kHeads, kS, 1};
      Value* x = b.Make("matmul_nt", {b.In("q", shape), b.In("k", shape)});
      Value* most = form == 1 ? b.Reshape(b.ReduceMax(x, {3}), kept) : b.ReduceMax(x, {-1}, true);
      Value* e = b.Op1("exp", form == 0 ? x : b.Sub(x, most));
      Value* sum = form == 2 ? b.Reshape(b.ReduceSum(e, {3}), kept) : b.ReduceSum(e, {3}, true);
      Value* p = form == 3 ? b.Mul(b.Op1("reciprocal", sum), e) : b.Div(e, sum);
      b.Out(b.Matmul(p, b.In("v", shape)));
    });
    EXPECT_THAT(Ops(g), ElementsAre("attention")) << form;
  }
  Graph g = Recover([](TestGraph& b) {  // along another axis
    Value* e = b.Op1("exp", b.In("x", {3, 3}));
    b.Out(b.Div(e, b.ReduceSum(e, {0})));
  });
  EXPECT_THAT(Ops(g), Not(Contains("softmax")));
}

// einsum's "bshd,bthd->bsht": what stands between the products has another order of dims.
TEST(Attention, ScoresInAnotherOrder) {
  Graph g = Recover([](TestGraph& b) {
    auto heads = [&](const std::string& name, Ints perm) {
      return b.Transpose(b.In(name, {kB, kS, kHeads, kD}), std::move(perm));
    };
    Value* scores = b.Matmul(heads("q", {0, 2, 1, 3}), heads("k", {0, 2, 3, 1}));
    scores = b.Mul(b.Transpose(scores, {0, 2, 1, 3}), b.C(0.4));
    Value* slopes = b.Constant(Random("slopes", {kHeads, 1}));
    Value* distance = b.Constant(Random("distance", {kS, 1, kS}));
    scores = b.Sub(scores, b.Mul(slopes, distance));
    HostTensor keep = Mask({kS, kS}, DType::kBool, 1, 0, Triangle).Reshaped({kS, 1, kS});
    scores = b.Where(b.Constant(std::move(keep)), scores, b.C(kMin));
    Value* p = b.Transpose(b.Softmax(scores), {0, 2, 1, 3});
    b.Out(b.Transpose(b.Matmul(p, heads("v", {0, 2, 1, 3})), {0, 2, 1, 3}));
  });
  ASSERT_THAT(Ops(g), Contains("attention"));
  EXPECT_THAT(Ops(g), Not(Contains("softmax")));
  EXPECT_EQ(Find(g, "attention")->attrs.String("layout"), "bshd");
}

// Megatron-LM's own: [s, b, h], with batch and heads as one dim for baddbmm and bmm.
TEST(Attention, SequenceFirstWithBatchAndHeadsMerged) {
  Graph g = Recover([](TestGraph& b) {
    auto flat = [&](const std::string& name, Ints perm) {
      Value* x = b.Reshape(b.In(name, {kS, kB, kHeads * kD}), {kS, kB * kHeads, kD});
      return b.Transpose(x, std::move(perm));
    };
    Value* scores = b.Mul(b.Matmul(flat("q", {1, 0, 2}), flat("k", {1, 2, 0})), b.C(0.25));
    scores = b.Reshape(scores, {kB, kHeads, kS, kS});
    scores = b.Where(b.Constant(Mask({1, 1, kS, kS}, DType::kBool, 1, 0, Triangle)), scores,
                     b.C(-10000));
    Value* p = b.Reshape(b.Softmax(scores), {kB * kHeads, kS, kS});
    Value* o = b.Reshape(b.Matmul(p, flat("v", {1, 0, 2})), {kB, kHeads, kS, kD});
    b.Out(b.Reshape(b.Transpose(o, {2, 0, 1, 3}), {kS, kB, kHeads * kD}));
  });
  ASSERT_THAT(Ops(g), Contains("attention"));
  EXPECT_TRUE(Find(g, "attention")->attrs.Bool("causal"));
  // Batch and heads are nowhere one dim.
  for (const auto& op : g.ops()) {
    for (const Value* r : op->results) EXPECT_THAT(r->type.shape, Not(Contains(kB * kHeads)));
  }
}

// f32 and f64 stand for half precision and f32.
enum class Widened { kOperands, kScores, kComputed };
Graph RecoverWidened(Widened how, bool guard) {
  return Recover(
      [=](TestGraph& b) {
        auto narrow = [&](const char* name) {
          return b.Cast(b.In(name, {kB, kHeads, kS, kD}), DType::kF32);
        };
        Value *q = narrow("q"), *k = narrow("k"), *v = narrow("v");
        auto wide = [&](Value* x) { return b.Cast(x, DType::kF64); };
        Value* scores = nullptr;
        if (how == Widened::kScores) {
          scores = wide(b.Make("matmul_nt", {q, k}));
        } else {
          q = wide(q);
          if (how == Widened::kComputed) q = b.Mul(q, b.P("w", {kD}));
          scores = b.Matmul(b.Mul(q, b.C(0.4)), b.Transpose(wide(k), {0, 1, 3, 2}));
        }
        scores = b.Add(scores, b.Constant(Mask({kS, kS}, DType::kF64, 0, kMin, Triangle)));
        Value* p = b.Softmax(scores);
        if (guard) {
          p = b.Cast(p, DType::kF32);
          HostTensor zero(DType::kF32, {});
          p = b.Where(b.Op1("is_nan", p), b.Constant(zero), p);
        }
        b.Out(b.Matmul(b.Cast(p, DType::kF32), v));
      },
      1e-6);
}

TEST(Attention, ScoresInAWiderTypeThanTheValues) {
  for (Widened how : {Widened::kOperands, Widened::kScores, Widened::kComputed}) {
    for (bool guard : {false, true}) {
      SCOPED_TRACE(StrCat(static_cast<int>(how), " ", guard));
      Graph g = RecoverWidened(how, guard);
      const Op* attention = Find(g, "attention");
      ASSERT_TRUE(attention);
      EXPECT_TRUE(attention->attrs.Bool("causal"));
      EXPECT_EQ(attention->operands.size(), 3u);
      DType expected = how == Widened::kComputed ? DType::kF64 : DType::kF32;
      EXPECT_EQ(attention->in(0).dtype, expected);
      EXPECT_EQ(g.outputs[0].value->type.dtype, DType::kF32);
      EXPECT_THAT(Ops(g), Not(Contains("softmax")));
    }
  }
}

TEST(Attention, MasksInTwoTypesAreAddedInTheWider) {
  Graph g = Recover(
      [](TestGraph& b) {
        auto narrow = [&](const char* name) {
          return b.Cast(b.In(name, {kB, kHeads, kS, kD}), DType::kF32);
        };
        Value* scores = b.Make("matmul_nt", {narrow("q"), narrow("k")});
        scores = b.Add(scores, b.Cast(b.Constant(Random("bias", {kHeads, kS, kS})), DType::kF32));
        scores = b.Add(b.Cast(scores, DType::kF64), b.Constant(Random("bias2", {kS, kS})));
        b.Out(b.Matmul(b.Cast(b.Softmax(scores), DType::kF32), narrow("v")));
      },
      1e-6);
  const Op* attention = Find(g, "attention");
  ASSERT_TRUE(attention);
  EXPECT_EQ(attention->in(0).dtype, DType::kF32);
  ASSERT_EQ(attention->operands.size(), 4u);
  EXPECT_EQ(attention->in(3).dtype, DType::kF64);
}

TEST(Attention, SoftmaxOverAnotherAxisStays) {
  Graph g = Recover([](TestGraph& b) {
    Value* s = b.Make("matmul_nt", {b.In("q", {1, 2, 3, 4}), b.In("k", {1, 2, 3, 4})});
    b.Out(b.Matmul(b.Make("softmax", {s}, {{"axis", int64_t{2}}}), b.In("v", {1, 2, 3, 4})));
  });
  EXPECT_THAT(Ops(g), Not(Contains("attention")));
}

}  // namespace
}  // namespace shardc::recover_testing
