// What looks like a pattern but for one thing computes something else, and must stay.
#include <numbers>

#include "tests/frontend/recover_testing.h"

namespace shardc::recover_testing {
namespace {

constexpr int64_t kN = 5;  // as many rows as columns: what loses its dim broadcasts along the rows

Value* Reduced(TestGraph& b, const char* op, Value* x, int64_t axis, bool keepdims) {
  return b.Make(op, {x}, {{"axes", Ints{axis}}, {"keepdims", keepdims}});
}

// Recovers each graph, which must compute the same, and must not become the op.
void ExpectNone(std::string_view op, const std::vector<std::function<Value*(TestGraph&)>>& all) {
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(StrCat("form ", i));
    const Graph g = Recover([&](TestGraph& b) { b.Out(all[i](b)); });
    EXPECT_EQ(Find(g, op), nullptr);
  }
}

Value* Root(TestGraph& b, Value* v) { return b.Op1("sqrt", b.Add(v, b.C(1e-5))); }

TEST(NearMisses, OfLayerNorms) {
  ExpectNone("layer_norm",
             {[](TestGraph& b) {  // the mean of each column, of the row's number
                Value* x = b.In("x", {kN, kN});
                Value* n = b.Sub(x, Reduced(b, "reduce_mean", x, 1, false));
                return b.Div(n, Root(b, b.Mean(b.Mul(n, n))));
              },
              [](TestGraph& b) {  // the squares of something else
                Value *x = b.In("x", {3, kN}), *z = b.In("z", {3, kN});
                Value* spread = b.Sub(b.Mean(b.Mul(z, z)), b.Mul(b.Mean(x), b.Mean(x)));
                return b.Div(b.Sub(x, b.Mean(x)), Root(b, b.Op1("abs", spread)));
              },
              [](TestGraph& b) {
                Value *x = b.In("x", {3, kN}), *z = b.In("z", {3, kN});
                Value* squares = b.Mean(b.Mul(z, z));
                Value* spread = b.Op1("relu", b.Sub(squares, b.Mul(b.Mean(x), b.Mean(x))));
                return b.Div(b.Sub(x, b.Mean(x)), Root(b, spread));
              },
              [](TestGraph& b) {  // the mean of something else
                Value *x = b.In("x", {3, kN}), *z = b.In("z", {3, kN});
                Value* mean = b.Mean(z);
                Value* spread = b.Op1("relu", b.Sub(b.Mean(b.Mul(x, x)), b.Mul(mean, mean)));
                return b.Div(b.Sub(x, b.Mean(x)), Root(b, spread));
              },
              [](TestGraph& b) {  // a variance that is never small
                Value* x = b.In("x", {3, kN});
                Value* mean = b.Mean(x);
                Value* spread = b.Sub(b.Mean(b.Mul(x, x)), b.Mul(mean, mean));
                return b.Div(b.Sub(x, mean), Root(b, b.Make("max", {spread, b.C(3)})));
              }});
}

TEST(NearMisses, OfRmsNorms) {
  ExpectNone("rms_norm", {[](TestGraph& b) {
                            Value* x = b.In("x", {3, kN});
                            return b.Mul(x, b.Div(b.C(2), Root(b, b.Mean(b.Mul(x, x)))));
                          },
                          [](TestGraph& b) {  // along the columns
                            Value* x = b.In("x", {kN, kN});
                            Value* squares = Reduced(b, "reduce_mean", b.Mul(x, x), 0, true);
                            return b.Mul(x, b.Op1("rsqrt", b.Add(squares, b.C(1e-5))));
                          },
                          [](TestGraph& b) {
                            Value* x = b.In("x", {kN, kN});
                            Value* squares = Reduced(b, "reduce_mean", b.Mul(x, x), 1, false);
                            return b.Mul(x, b.Op1("rsqrt", b.Add(squares, b.C(1e-5))));
                          }});
}

// x / max(|x|, floor), where the length is made zero where `is_zero` of its square and another
// number; of which one thing is another.
enum class Length { kOfOther, kOtherChoice, kOtherNumber, kNotZero, kOfColumns };
Value* Unit(TestGraph& b, Length form) {
  Value *x = b.In("x", {kN, kN}), *z = b.In("z", {kN, kN});
  Value* sum = Reduced(b, "reduce_sum", b.Mul(x, x), 1, form != Length::kOfColumns);
  if (form == Length::kOfColumns) return b.Div(x, b.Make("max", {b.Op1("sqrt", sum), b.C(1e-12)}));
  Value* other = Reduced(b, "reduce_sum", b.Op1("relu", b.Mul(z, x)), 1, true);
  Value* number = form == Length::kOtherNumber ? b.C(3) : b.C(0);
  Value* zero = b.Make("equal", {form == Length::kOfOther ? other : sum, number});
  Value* inner =
      form == Length::kOtherChoice ? b.Make("equal", {b.Op1("relu", other), b.C(0)}) : zero;
  Value* root = b.Op1("sqrt", b.Where(inner, b.C(1), sum));
  root = b.Where(zero, form == Length::kNotZero ? b.C(2) : b.C(0), root);
  return b.Div(x, b.Make("max", {root, b.C(1e-12)}));
}

TEST(NearMisses, OfUnitNorms) {
  for (Length form : {Length::kOfOther, Length::kOtherChoice, Length::kOtherNumber,
                      Length::kNotZero, Length::kOfColumns}) {
    ExpectNone("rms_norm", {[form](TestGraph& b) { return Unit(b, form); }});
  }
}

TEST(NearMisses, OfSoftmaxes) {
  ExpectNone("softmax", {[](TestGraph& b) {  // the sum of something else
                           Value* sum = b.ReduceSum(b.Op1("exp", b.In("z", {kN, kN})), {1}, true);
                           return b.Div(b.Op1("exp", b.In("x", {kN, kN})), sum);
                         },
                         [](TestGraph& b) {
                           Value* e = b.Op1("exp", b.In("x", {kN, kN}));
                           return b.Div(e, Reduced(b, "reduce_sum", e, 1, false));
                         }});
  // What is taken off is not the same for all that is divided by one sum.
  for (bool of_columns : {false, true}) {
    Graph g = Recover([&](TestGraph& b) {
      Value* x = b.In("x", {kN, kN});
      b.Out(b.Softmax(b.Sub(x, Reduced(b, "reduce_max", x, of_columns ? 0 : 1, of_columns))));
    });
    EXPECT_EQ(Counts(g)["sub"], 1);
  }
}

// Of rows of which nothing is kept a quotient is no number, unless the model says what it is.
TEST(NearMisses, OfGuardsOfRenormalizedProbabilities) {
  enum Form { kZero, kOfOther, kOfColumns };
  for (Form form : {kZero, kOfOther, kOfColumns}) {
    SCOPED_TRACE(form);
    Recover([form](TestGraph& b) {
      HostTensor keep(DType::kBool, {kN, kN});
      for (int64_t i = kN; i < kN * kN; ++i) keep.SetDouble(i, i % 3 != 0);
      Value* p = b.Where(b.In("keep", keep), b.Softmax(b.In("x", {kN, kN})), b.C(0));
      Value* sum = Reduced(b, "reduce_sum", p, 1, form != kOfColumns);
      Value* of = form == kOfOther ? b.In("z", sum->type.shape) : sum;
      if (form != kOfColumns)
        sum = b.Where(b.Make("greater", {of, b.C(0)}), sum, form == kZero ? b.C(0) : b.C(1));
      b.Out(b.Div(p, sum));
    });
  }
}

TEST(NearMisses, OfActivations) {
  auto gelu = [](TestGraph& b, const std::function<Value*(Value*)>& outer) {
    Value* x = b.In("x", {kN});
    return b.Mul(b.Mul(x, b.C(0.5)), outer(b.Op1("erf", b.Mul(x, b.C(std::numbers::sqrt2 / 2)))));
  };
  ExpectNone("gelu",
             {[&](TestGraph& b) {
                return gelu(b, [&](Value* f) { return b.Add(b.Mul(f, b.C(0.7)), b.C(1)); });
              },
              [&](TestGraph& b) {
                return gelu(b, [&](Value* f) { return b.Add(b.Add(b.Mul(f, f), f), b.C(1)); });
              },
              [&](TestGraph& b) {
                return gelu(
                    b, [&](Value* f) { return b.Add(b.Add(b.Mul(b.Mul(f, f), f), f), b.C(1)); });
              }});
  auto sigmoid = [](TestGraph& b, Value* x, double one, double more) {
    return b.Div(b.C(one), b.Add(b.C(more), b.Op1("exp", b.Neg(x))));
  };
  ExpectNone("silu", {[&](TestGraph& b) {
                        Value* x = b.In("x", {kN});
                        return b.Mul(x, sigmoid(b, x, 2, 1));
                      },
                      [&](TestGraph& b) {
                        Value* x = b.In("x", {kN});
                        return b.Mul(x, sigmoid(b, x, 1, 2));
                      }});
  ExpectNone("log1p", {[](TestGraph& b) {
                         return b.Op1("log", b.Add(b.Op1("abs", b.In("x", {kN})), b.C(2)));
                       },
                       [](TestGraph& b) {
                         Value* x = b.Op1("abs", b.In("x", {kN}));
                         return b.Op1("log", b.Add(x, b.C(1, {3, kN})));
                       },
                       [](TestGraph& b) {
                         return b.Op1("log", b.Sub(b.C(2), b.Op1("sigmoid", b.In("x", {kN}))));
                       }});
}

TEST(NearMisses, OfOneHotRows) {
  enum Form { kTwo, kRestNotZero, kOfFewer };
  for (Form form : {kTwo, kRestNotZero, kOfFewer}) {
    const Graph g = Recover([form](TestGraph& b) {
      Value* ids = b.In("ids", HostTensor::Of<int64_t>({3, 1}, {2, 0, 3}));
      HostTensor places = HostTensor::Of<int64_t>({4}, {0, 1, 2, 3});
      if (form == kOfFewer) places = HostTensor::Of<int64_t>({1, 1}, {0});
      Value* is = b.Make("equal", {ids, b.Constant(places)});
      Value* rows = b.Where(is, b.C(form == kTwo ? 2 : 1), b.C(form == kRestNotZero ? 0.5 : 0));
      b.Out(b.Matmul(b.BroadcastTo(rows, {3, 4}), b.P("table", {4, 2})));
    });
    EXPECT_EQ(Find(g, "embedding"), nullptr);
  }
}

TEST(NearMisses, OfLogSumExps) {
  enum Form { kOtherMaximum, kOtherLogits, kOfColumns };
  for (Form form : {kOtherMaximum, kOtherLogits, kOfColumns}) {
    SCOPED_TRACE(form);
    Recover([form](TestGraph& b) {
      Value *x = b.Add(b.In("x", {kN, kN}), b.P("w", {kN})), *m = b.ReduceMax(x, {1}, true);
      Value* other = b.In("m", {kN, 1});
      if (form == kOtherLogits) x = b.Sub(x, b.In("z", {kN, kN}));
      Value* shifted = form == kOtherMaximum ? b.Sub(x, other) : x;
      Value* log =
          b.Op1("log", Reduced(b, "reduce_sum", b.Op1("exp", shifted), 1, form != kOfColumns));
      Value* ids = b.In("ids", HostTensor::Of<int64_t>({kN, 1}, {4, 0, 2, 1, 1}));
      Value* y = b.Sub(x, form == kOtherMaximum ? b.Add(m, log) : log);
      b.Out(b.Make("gather_nd", {y, ids}, {{"batch_dims", int64_t{1}}}));
    });
  }
}

TEST(NearMisses, OfMostRows) {
  const Graph g = Recover([](TestGraph& b) {  // in the other order
    Value* x = b.Add(b.In("x", {4, kN}), b.P("w", {kN}));
    x = b.Make("slice", {x},
               {{"starts", Ints{3, 0}}, {"limits", Ints{-1, kN}}, {"steps", Ints{-1, 1}}});
    Value* ids = b.In("ids", HostTensor::Of<int64_t>({4}, {4, 0, 2, 1}));
    b.Out(b.Create("cross_entropy", {x, ids}, {{"ignore_index", int64_t{-1}}})->result());
  });
  EXPECT_EQ(Find(g, "pad"), nullptr);
}

TEST(NearMisses, OfChoices) {
  auto numbers = [](TestGraph& b, const Shape& shape, const std::vector<double>& values) {
    return b.Constant(HostTensor::Of<double>(shape, values));
  };
  ExpectNone("where", {[&](TestGraph& b) {  // 1 - 2 is not 0
                         Value* m = numbers(b, {4}, {0, 2, 2, 0});
                         return b.Add(b.Mul(b.In("x", {4}), m),
                                      b.Mul(b.In("y", {4}), b.Sub(b.C(1), m)));
                       },
                       [&](TestGraph& b) {  // the first row alone is the other's opposite
                         Value* m = numbers(b, {2}, {0, 1});
                         Value* n = numbers(b, {2, 2}, {1, 0, 0, 1});
                         return b.Add(b.Mul(b.In("x", {2, 2}), m), b.Mul(b.In("y", {2, 2}), n));
                       },
                       [&](TestGraph& b) {
                         Value* m = numbers(b, {2, 2}, {0, 1, 1, 0});
                         return b.Add(b.Mul(b.In("x", {2, 2}), m), numbers(b, {2}, {7, 0}));
                       },
                       [&](TestGraph& b) {
                         return b.Mul(b.Softmax(b.In("x", {4})), numbers(b, {4}, {0, 2, 2, 0}));
                       }});
}

TEST(NearMisses, OfFlatRows) {
  Recover([](TestGraph& b) {  // along all rows
    Value* x = b.Reshape(b.In("x", {2, 3, kN}), {6, kN});
    b.Out(b.Reshape(b.Make("softmax", {x}, {{"axis", int64_t{0}}}), {2, 3, kN}));
  });
  Recover([](TestGraph& b) {  // batches in another order
    Value *x = b.Reshape(b.In("x", {2, 3, kN, 4}), {6, kN, 4}),
          *y = b.Reshape(b.In("y", {3, 2, 4, kN}), {6, 4, kN});
    b.Out(b.Matmul(x, y));
  });
  Recover([](TestGraph& b) {  // other dims in each other's place
    b.Out(b.Matmul(b.P("w", {6, kN}), b.Transpose(b.In("x", {kN, kN, kN}), {1, 0, 2})));
  });
}

// Of a token's experts one weight is looked up by other numbers than the other, or of other
// experts.
TEST(NearMisses, OfExpertsThatTokensLookUp) {
  constexpr int64_t kTokens = 6, kWidth = 4;
  for (bool other_ids : {false, true}) {
    SCOPED_TRACE(other_ids);
    Recover([=](TestGraph& b) {
      auto chosen = [&](const std::string& name, int64_t by) {
        HostTensor ids(DType::kI64, {kTokens});
        for (int64_t i = 0; i < kTokens; ++i) ids.SetDouble(i, static_cast<double>(i * by % 3));
        return b.In(name, std::move(ids));
      };
      Value *ids = chosen("ids", 1), *others = other_ids ? chosen("others", 2) : ids;
      auto looked_up = [&](const std::string& name, int64_t experts, Value* by) {
        Value* w = b.P(name, {experts, kWidth, kWidth});
        return b.Make("gather", {w, by}, {{"axis", int64_t{0}}});
      };
      Value* x = b.Reshape(b.In("x", {kTokens, kWidth}), {kTokens, 1, kWidth});
      Value* y = b.Op1("tanh", b.Matmul(x, looked_up("up", 3, ids)));
      y = b.Matmul(y, looked_up("down", other_ids ? 3 : 4, others));
      b.Out(b.ReduceSum(b.Mul(y, b.In("shares", {kTokens, 1, 1})), {1}));
    });
  }
}

// Where an expert is not chosen it has a share, too.
TEST(NearMisses, OfChosenRows) {
  const Graph g = Recover([](TestGraph& b) {
    Value* chosen = b.Make("top_k", {b.In("scores", {kN, 3})},
                           {{"axis", int64_t{1}}, {"k", int64_t{2}}, {"largest", true}});
    Value* is = b.Make("equal", {chosen, b.Scalar(DType::kI64, 1)});
    Value* shares = b.Where(is, b.In("shares", {kN, 2}), b.C(0.5));
    Value* y = b.Matmul(b.In("x", {kN, 4}), b.P("w", {4, 4}));
    b.Out(b.Mul(y, b.Reshape(b.ReduceSum(shares, {1}), {kN, 1})));
  });
  EXPECT_EQ(Find(g, "matmul_rows"), nullptr);
}

// Positions that may be before the first row, and rows that are no whole number of stretches.
TEST(NearMisses, OfPositionsWithinStretches) {
  for (bool before : {false, true}) {
    SCOPED_TRACE(before);
    Recover([before](TestGraph& b) {
      auto constant = [&](const Shape& shape, const std::vector<int64_t>& values) {
        return b.Constant(HostTensor::Of<int64_t>(shape, values));
      };
      Value* at = b.In("at", HostTensor::Of<int64_t>({3}, {5, 1, 3}));
      at = b.Make("mod", {at, constant({}, {5})});
      if (before) at = b.Sub(at, constant({}, {1}));
      at = b.Add(at, constant({3}, {0, 5, 10}));
      Value* x = b.Op1("exp", b.In("x", {before ? 15 : 16, 2}));
      b.Out(b.Make("gather", {x, at}, {{"axis", int64_t{0}}}));
    });
  }
}

}  // namespace
}  // namespace shardc::recover_testing
