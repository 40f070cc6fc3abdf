// Attention whose probabilities are dropped.
#include "frontend/dropout.h"
#include "tests/frontend/attention_forms.h"

namespace shardc::recover_testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

void ExpectDropping(const Graph& g, int64_t operands) {
  const Op* attention = Find(g, "attention");
  ASSERT_TRUE(attention);
  EXPECT_THAT(Ops(g), Not(Contains("softmax")));
  EXPECT_EQ(attention->attrs.Float("ratio"), 0.4);
  EXPECT_EQ(attention->attrs.Int("seed"), 7);
  EXPECT_EQ(attention->operands.size(), static_cast<size_t>(operands));
  EXPECT_TRUE(attention->operands.back()->producer->def->is_state);
}

// That what is drawn is the same, Recover itself sees.
TEST(Attention, DropoutOfTheProbabilities) {
  const MaskFn causal = WhereConst(Mask({kS, kS}, DType::kBool, 1, 0, Triangle), -kInf);
  const MaskFn biased = AddConst(Mask({kHeads, kS, kS}, DType::kF64, -0.5, -kInf, Triangle));
  for (KForm k : {KForm::kPerm, KForm::kAfterHeads, KForm::kFlat, KForm::kNt}) {
    for (int scale = 0; scale < 4; ++scale) {
      ExpectDropping(RecoverForm({.k = k, .scale = scale, .dropout = 0.4}), 4);
    }
  }
  for (int guard : {0, 1, 2, 3}) {
    Graph g = RecoverForm({.mask = causal, .guard = guard, .dropout = 0.4});
    ExpectDropping(g, 4);
    EXPECT_TRUE(Find(g, "attention")->attrs.Bool("causal"));
    ExpectDropping(RecoverForm({.mask = biased, .guard = guard, .dropout = 0.4}), 5);
  }
  for (Form::Repeat repeat : {Form::kHeadsFirst, Form::kHeadsLast, Form::kTile}) {
    Graph g =
        RecoverForm({.k = KForm::kAfterHeads, .heads_kv = 2, .repeat = repeat, .dropout = 0.4});
    ExpectDropping(g, 4);
    EXPECT_EQ(Find(g, "attention")->in(1).shape, (Shape{kB, kS, 2, kD}));
  }
  ExpectDropping(RecoverForm({.rotate = true, .dropout = 0.4}), 4);
}

// Heads that were never apart from the batch, and scores or probabilities that were for a while.
TEST(Attention, DropoutOfFlattenedHeads) {
  constexpr int64_t kFlat = kB * kHeads;
  for (int where = 0; where < 4; ++where) {
    SCOPED_TRACE(where);
    Graph g = Recover([=](TestGraph& b) {
      auto flat = [&](const char* name) {
        return b.Reshape(b.In(name, {kB, kHeads, kS, kD}), {kFlat, kS, kD});
      };
      Value* p = b.Matmul(flat("q"), b.Transpose(flat("k"), {0, 2, 1}));
      auto apart = [&](Value* x, bool now) { return now ? b.Reshape(x, {kB, kHeads, kS, kS}) : x; };
      p = b.Softmax(apart(p, where == 1 || where == 2));
      if (where == 2) p = b.Reshape(p, {kFlat, kS, kS});
      p = AddDropout(b, apart(p, where == 3), 0.4, 7);
      b.Out(b.Matmul(b.Reshape(p, {kFlat, kS, kS}), flat("v")));
    });
    ExpectDropping(g, 4);
  }
}

TEST(Attention, DropoutOfRoundedProbabilities) {
  for (bool first : {false, true}) {
    Graph g = Recover(
        [=](TestGraph& b) {
          auto narrow = [&](const char* name) {
            return b.Cast(b.In(name, {kB, kHeads, kS, kD}), DType::kF32);
          };
          Value* scores = b.Make("matmul_nt", {narrow("q"), narrow("k")});
          Value* p = b.Softmax(b.Cast(scores, DType::kF64));
          if (first) p = b.Cast(p, DType::kF32);
          p = AddDropout(b, p, 0.4, 7);
          b.Out(b.Matmul(b.Cast(p, DType::kF32), narrow("v")));
        },
        1e-6);
    ExpectDropping(g, 4);
  }
}

// Dropped probabilities that are wanted elsewhere too would be computed twice.
TEST(Attention, DropoutThatIsReadTwiceStays) {
  for (bool before : {false, true}) {
    Graph g = Recover([=](TestGraph& b) {
      Value* s = b.Make("matmul_nt", {b.In("q", {1, 2, 3, 4}), b.In("k", {1, 2, 3, 4})});
      Value* p = b.Softmax(s);
      Value* dropped = AddDropout(b, p, 0.4);
      Value* o = b.Matmul(dropped, b.In("v", {1, 2, 3, 4}));
      b.Out(b.Add(o, b.Make("reduce_sum", {before ? p : dropped},
                            {{"axes", Ints{3}}, {"keepdims", true}})));
    });
    EXPECT_THAT(Ops(g), Not(Contains("attention")));
  }
}

}  // namespace
}  // namespace shardc::recover_testing
