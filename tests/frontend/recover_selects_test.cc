// Masks that multiply: choices by zeros and ones, and softmaxes of which some is kept.
#include "tests/frontend/attention_forms.h"

namespace shardc::recover_testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

// Some rows see no key.
HostTensor Padding() {
  return Mask({kB, 1, kS, kS}, DType::kBool, 1, 0,
              [](int64_t i, int64_t j) { return i != 1 && j != 2; });
}

TEST(Select, ProductsWithZerosAndOnes) {
  for (int form = 0; form < 7; ++form) {
    SCOPED_TRACE(form);
    Graph g = Recover([form](TestGraph& b) {
      Value *x = b.In("x", {kB, 1, kS, kS}), *y = b.In("y", {kS, kS}),
            *keep = b.In("keep", Padding());
      Value *ones = b.Cast(keep, DType::kF64), *zeros = b.Cast(b.Op1("not", keep), DType::kF64);
      Value* triangle = b.Constant(Mask({kS, kS}, DType::kF64, 1, 0, Triangle));
      Value* fill = b.Constant(Mask({kS, kS}, DType::kF64, 0, -7, Triangle));
      Value* forms[] = {
          b.Add(b.Mul(x, ones), b.Mul(zeros, y)),
          b.Add(b.Mul(y, b.Sub(b.C(1), ones)), b.Mul(ones, x)),
          b.Sub(b.Mul(ones, x), b.Mul(b.Sub(b.C(1), ones), b.C(1e4))),
          b.Sub(b.Mul(b.Constant(Mask({kS, kS}, DType::kF64, 0.5, 0, Triangle)), x), fill),
          b.Add(b.Mul(triangle, x), fill),
          b.Sub(b.Mul(triangle, x), fill),
          b.Add(b.Mul(triangle, x), b.Mul(b.C(3), b.Sub(b.C(1), triangle)))};
      b.Out(forms[form]);
    });
    EXPECT_THAT(Ops(g), Contains("where"));
    EXPECT_THAT(Ops(g), Not(Contains(::testing::AnyOf("add", "sub"))));
  }
}

TEST(Select, NearMissesStay) {
  Graph g = Recover([](TestGraph& b) {
    Value *x = b.In("x", {kS, kS}),
          *triangle = b.Constant(Mask({kS, kS}, DType::kF64, 1, 0, Triangle));
    HostTensor two = Mask({kS, kS}, DType::kF64, 2, 1, Triangle);
    HostTensor over = Mask({kS, kS}, DType::kF64, 1, -7, Triangle);
    b.Out(
        b.Add(b.Mul(x, b.Constant(two)), b.Constant(Mask({kS, kS}, DType::kF64, 0, 3, Triangle))));
    b.Out(b.Add(b.Mul(x, triangle), b.Constant(over)), "over");
    b.Out(b.Add(b.Mul(x, triangle), b.Mul(triangle, b.In("y", {kS, kS}))), "same");
  });
  EXPECT_THAT(Ops(g), Not(Contains("where")));
}

// Keras's Softmax layer: a fill below, and zeros above.
TEST(Attention, ProbabilitiesMaskedAgain) {
  for (int form = 0; form < 4; ++form) {
    SCOPED_TRACE(form);
    Graph g = Recover([form](TestGraph& b) {
      auto heads = [&](const char* name) { return b.In(name, {kB, kHeads, kS, kD}); };
      Value* keep = b.In("keep", Padding());
      Value* other = form == 3 ? b.In("other", {kB, 1, kS, kS}) : nullptr;
      Value* ones = b.Cast(keep, DType::kF64);
      Value* scores = b.Mul(b.Make("matmul_nt", {heads("q"), heads("k")}), b.C(0.4));
      if (form == 1) scores = b.Add(b.Mul(scores, ones), b.Mul(b.Sub(b.C(1), ones), b.C(-1e9)));
      if (form != 1) scores = b.Where(keep, scores, b.C(-1e9));
      if (other) scores = b.Add(scores, other);
      Value* p = b.Softmax(scores);
      Value* zeros = b.Mul(b.C(0), b.Cast(b.Op1("not", keep), DType::kF64));
      if (form == 0) p = b.Mul(p, ones);
      if (form == 1) p = b.Add(b.Mul(p, ones), zeros);
      if (form > 1) p = b.Where(keep, p, b.C(form == 2 ? 1 : 0));
      b.Out(b.Matmul(p, heads("v")));
    });
    const Op* attention = Find(g, "attention");
    ASSERT_EQ(attention != nullptr, form < 2);
    if (!attention) continue;
    EXPECT_EQ(attention->operands[3], g.FindInput("keep"));
  }
}

// jax2onnx: probabilities are masked and divided by what is left of them, if anything is.
TEST(Attention, ProbabilitiesMaskedAndDividedByTheirSum) {
  for (int form = 0; form < 4; ++form) {
    SCOPED_TRACE(form);
    Graph g = Recover([form](TestGraph& b) {
      auto heads = [&](const char* name) { return b.In(name, {kB, kHeads, kS, kD}); };
      HostTensor triangle = Mask({kS, kS}, DType::kF64, 1, 0, Triangle);
      Value* ones = form == 0 ? b.Constant(triangle) : b.Cast(b.In("keep", Padding()), DType::kF64);
      Value* p = b.Softmax(b.Make("matmul_nt", {heads("q"), heads("k")}));
      p = b.Mul(p, ones);
      Value* sum = b.ReduceSum(p, {form == 2 ? 2 : 3}, true);
      Value* zeros = b.C(0);
      if (form == 3) zeros = b.Constant(HostTensor(DType::kF64, {1, kB, 1, 1, 1}));
      Value* some = b.Make("greater", {sum, zeros});
      if (form == 3) return b.Out(b.Div(p, b.Where(some, sum, b.C(1))));
      p = b.Div(p, b.Where(some, sum, b.C(1)));
      b.Out(b.Matmul(b.Where(some, p, b.C(0)), heads("v")));
    });
    if (form >= 2) {
      EXPECT_THAT(Ops(g), Not(Contains("attention")));
    } else {
      EXPECT_THAT(Ops(g), ElementsAre("attention"));
      EXPECT_EQ(Find(g, "attention")->attrs.Bool("causal"), form == 0);
    }
  }
}

// einsum("btkgh,bskh->btkgs"), as in Gemma: the heads of a group are behind the queries.
TEST(Attention, QueriesBeforeTheHeadsOfAGroup) {
  constexpr int64_t kGroups = 2, kEach = 2;
  for (bool masked : {false, true}) {
    Graph g = Recover([masked](TestGraph& b) {
      Value* q = b.Reshape(b.In("q", {kB, kS, kGroups * kEach * kD}), {kB, kS, kGroups, kEach, kD});
      q = b.Reshape(b.Transpose(q, {0, 2, 1, 3, 4}), {kB, kGroups, kS * kEach, kD});
      auto kv = [&](const char* name, Ints perm) {
        return b.Transpose(b.In(name, {kB, kS, kGroups, kD}), std::move(perm));
      };
      Value* scores = b.Reshape(b.Matmul(q, kv("k", {0, 2, 3, 1})), {kB, kGroups, kS, kEach, kS});
      HostTensor keep = Mask({kS, kS}, DType::kBool, 1, 0, Triangle).Reshaped({kS, 1, kS});
      if (masked) scores = b.Where(b.Constant(std::move(keep)), scores, b.C(kMin));
      Value* p = b.Reshape(b.Softmax(scores), {kB, kGroups, kS * kEach, kS});
      Value* o = b.Reshape(b.Matmul(p, kv("v", {0, 2, 1, 3})), {kB, kGroups, kS, kEach, kD});
      b.Out(b.Reshape(b.Transpose(o, {0, 2, 1, 3, 4}), {kB, kS, kGroups * kEach * kD}));
    });
    const Op* attention = Find(g, "attention");
    ASSERT_TRUE(attention);
    EXPECT_EQ(attention->attrs.Bool("causal"), masked);
    const Shape q = attention->in(0).shape;
    EXPECT_THAT(q, attention->attrs.String("layout") == "bshd" ? ElementsAre(kB, kS, kHeads, kD)
                                                               : ElementsAre(kB, kHeads, kS, kD));
  }
}

// As of rows of an image or an alignment: [b, h, row, s, d], of which each row has its own keys.
TEST(Attention, RowsBehindHeadsAreNoQueries) {
  constexpr int64_t kRows = kS;  // it divides the number of queries, which might pass for heads
  for (bool masked : {false, true}) {
    SCOPED_TRACE(masked);
    Graph g = Recover([masked](TestGraph& b) {
      auto rows = [&](const char* name) {
        return b.Transpose(b.In(name, {kB, kRows, kHeads, kS, kD}), {0, 2, 1, 3, 4});
      };
      Value* scores = b.Make("matmul_nt", {rows("q"), rows("k")});
      HostTensor keep = Mask({kRows, kS}, DType::kBool, 1, 0, Triangle).Reshaped({kRows, 1, kS});
      if (masked) scores = b.Where(b.Constant(std::move(keep)), scores, b.C(kMin));
      b.Out(b.Matmul(b.Softmax(scores), rows("v")));
    });
    EXPECT_EQ(Counts(g).count("attention"), masked ? 0 : 1);
  }
}

// einsum("bshd,bthd->bhts") with keys first, and values transposed, as Keras and tf2onnx write
// them.
TEST(Attention, ScoresAndValuesTransposed) {
  Graph g = Recover([](TestGraph& b) {
    auto heads = [&](const char* name, Ints perm) {
      return b.Transpose(b.In(name, {kB, kS, kHeads, kD}), std::move(perm));
    };
    Value* scores = b.Matmul(heads("k", {0, 2, 1, 3}), heads("q", {0, 2, 3, 1}));
    scores = b.Mul(scores, b.C(0.4));
    Value* p = b.Softmax(b.Transpose(scores, {0, 1, 3, 2}));
    Value* o = b.Make("matmul_nt", {p, heads("v", {0, 2, 3, 1})});
    b.Out(b.Transpose(o, {0, 2, 1, 3}));
  });
  EXPECT_THAT(Ops(g), ElementsAre("attention"));
  EXPECT_EQ(Find(g, "attention")->attrs.String("layout"), "bshd");
}

}  // namespace
}  // namespace shardc::recover_testing
