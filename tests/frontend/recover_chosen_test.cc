// Rows that stand several times in a tensor, and products of which a mask takes some rows.
#include "tests/frontend/recover_testing.h"

namespace shardc::recover_testing {
namespace {

using ::testing::Contains;
using ::testing::Not;

constexpr int64_t kTokens = 5, kWidth = 4, kExperts = 3, kTimes = 2;

// As many times each, or all of them in turns.
Value* Repeated(TestGraph& b, Value* x, bool in_turns) {
  const Shape one = in_turns ? Shape{1, kTokens, kWidth} : Shape{kTokens, 1, kWidth};
  const Shape all = in_turns ? Shape{kTimes, kTokens, kWidth} : Shape{kTokens, kTimes, kWidth};
  return b.Reshape(b.BroadcastTo(b.Reshape(x, one), all), {kTokens * kTimes, kWidth});
}

int64_t ElementsOf(const Graph& g, std::string_view op) {
  int64_t elements = 0;
  for (const auto& o : g.ops()) elements += o->name() == op ? o->out().num_elements() : 0;
  return elements;
}

TEST(Repeats, AreComputedOnce) {
  for (const bool in_turns : {false, true}) {
    Graph g = Recover([&](TestGraph& b) {
      Value* rows = Repeated(b, b.In("x", {kTokens, kWidth}), in_turns);
      Value* y = b.Op1("exp", b.Matmul(rows, b.P("w", {kWidth, 3})));
      b.Out(b.Add(y, b.In("bias", {3})));
    });
    EXPECT_EQ(ElementsOf(g, "exp"), kTokens * 3);
  }
}

// What is added to each of the times is not the same.
TEST(Repeats, OfOtherRowsStay) {
  Graph g = Recover([&](TestGraph& b) {
    Value* rows = Repeated(b, b.In("x", {kTokens, kWidth}), false);
    Value* others = Repeated(b, b.In("z", {kTokens, kWidth}), true);
    b.Out(b.Op1("exp", b.Add(rows, b.In("y", {kTokens * kTimes, kWidth}))));
    b.Out(b.Op1("sin", b.Add(rows, others)), "orders");
  });
  EXPECT_EQ(ElementsOf(g, "exp"), kTokens * kTimes * kWidth);
  EXPECT_EQ(ElementsOf(g, "sin"), kTokens * kTimes * kWidth);
}

TEST(Repeats, TimesSharesAreSummedOnce) {
  for (const bool in_turns : {false, true}) {
    Graph g = Recover([&](TestGraph& b) {
      Value* rows = Repeated(b, b.In("x", {kTokens, kWidth}), in_turns);
      Value* y = b.Mul(rows, b.In("share", {kTokens * kTimes, 1}));
      const Shape apart =
          in_turns ? Shape{kTimes, kTokens, kWidth} : Shape{kTokens, kTimes, kWidth};
      b.Out(b.ReduceSum(b.Reshape(y, apart), {in_turns ? 0 : 1}));
    });
    EXPECT_EQ(ElementsOf(g, "mul"), kTokens * kWidth);
  }
}

// What one expert of those with the largest scores makes of x, by `f`, and its shares.
struct Expert {
  Value *made, *share, *mask;
};
Expert ExpertOf(TestGraph& b, const std::function<Value*(TestGraph&, Value*)>& f) {
  Value* x = b.In("x", {kTokens, kWidth});
  Value* chosen = b.Make("top_k", {b.In("scores", {kTokens, kExperts})},
                         {{"axis", int64_t{1}}, {"k", kTimes}, {"largest", true}});
  Value* is = b.Make("equal", {chosen, b.Scalar(DType::kI64, 1)});
  Value* shares = b.Make("where", {is, b.In("shares", {kTokens, kTimes}), b.C(0)});
  Value* any = b.Make("greater", {b.ReduceSum(b.Cast(is, DType::kF64), {1}), b.C(0)});
  return {f(b, x), b.Reshape(b.ReduceSum(shares, {1}), {kTokens, 1}), b.Reshape(any, {kTokens, 1})};
}
Value* Mlp(TestGraph& b, Value* x) {
  Value* h = b.Op1("relu", b.Add(b.Matmul(x, b.P("up", {kWidth, 6})), b.P("bias", {6})));
  return b.Matmul(h, b.P("down", {6, kWidth}));
}

Value* ToColumns(TestGraph& b, Value* x) { return b.Matmul(x, b.P("w", {kWidth, kTokens})); }

TEST(ChosenProducts, WhereSharesAreZero) {
  Graph g = Recover([](TestGraph& b) {
    const Expert e = ExpertOf(b, Mlp);
    b.Out(b.Mul(e.made, e.share));
  });
  EXPECT_THAT(Ops(g), Not(Contains("matmul")));
  for (const auto& op : g.ops()) {
    if (op->name() == "matmul_rows") {
      EXPECT_NEAR(op->attrs.Float("density"), 2.0 / 3, 1e-6);
    }
  }
}

TEST(ChosenProducts, WhereOthersAreTaken) {
  Graph g = Recover([](TestGraph& b) {
    const Expert e = ExpertOf(b, Mlp);
    b.Out(b.Make("where", {e.mask, e.made, b.In("other", {kTokens, kWidth})}));
  });
  EXPECT_THAT(Ops(g), Not(Contains("matmul")));
}

// An output has all rows, a sum over them needs all, a product with rows on its right, too, and of
// zeros a quotient is no number.
TEST(ChosenProducts, NotWhereTheOthersCount) {
  using Make = std::function<void(TestGraph&)>;
  const Make all[] = {[](TestGraph& b) {
                        const Expert e = ExpertOf(b, Mlp);
                        b.Out(e.made, "made");
                        b.Out(b.Mul(e.made, e.share));
                      },
                      [](TestGraph& b) {
                        const Expert e = ExpertOf(b, [](TestGraph& g, Value* x) {
                          Value* y = g.Matmul(x, g.P("w", {kWidth, kWidth}));
                          return g.Sub(y, g.ReduceSum(y, {0}, true));
                        });
                        b.Out(b.Mul(e.made, e.share));
                      },
                      [](TestGraph& b) {
                        const Expert e = ExpertOf(b, [](TestGraph& g, Value* x) {
                          Value* y = g.Matmul(x, g.P("w", {kWidth, kWidth}));
                          return g.Matmul(g.In("mix", {kTokens, kTokens}), y);
                        });
                        b.Out(b.Mul(e.made, e.share));
                      },
                      [](TestGraph& b) {
                        const Expert e = ExpertOf(b, [](TestGraph& g, Value* x) {
                          Value* y = g.Matmul(x, g.P("w", {kWidth, kWidth}));
                          return g.Div(y, g.Op1("abs", y));
                        });
                        b.Out(b.Mul(e.made, e.share));
                      },
                      // What is not chosen is there as it was before its last step.
                      [](TestGraph& b) {
                        const Expert e = ExpertOf(b, Mlp);
                        b.Out(b.Make("where", {e.mask, b.Op1("tanh", e.made), e.made}));
                      },
                      [](TestGraph& b) {
                        const Expert e = ExpertOf(b, Mlp);
                        b.Out(b.Make("where", {e.mask, e.made, b.Op1("exp", e.made)}));
                      },
                      // Columns are chosen, of which there are as many.
                      [](TestGraph& b) {
                        const Expert e = ExpertOf(b, ToColumns);
                        b.Out(b.Mul(e.made, b.Reshape(e.share, {1, kTokens})));
                      },
                      [](TestGraph& b) {
                        const Expert e = ExpertOf(b, ToColumns);
                        b.Out(b.Make("where", {b.Reshape(e.mask, {kTokens}), e.made, b.C(0)}));
                      },
                      // No experts: what is chosen may be nearly all.
                      [](TestGraph& b) {
                        Value* y = Mlp(b, b.In("x", {kTokens, kWidth}));
                        Value* mask = b.Make("greater", {b.In("m", {kTokens, 1}), b.C(0)});
                        b.Out(b.Make("where", {mask, y, b.C(0)}));
                      }};
  for (const Make& make : all) EXPECT_THAT(Ops(Recover(make)), Contains("matmul"));
}

}  // namespace
}  // namespace shardc::recover_testing
