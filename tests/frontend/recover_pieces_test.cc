// Parts picked by constant positions, rows that were folded with the batch in them, layers that run
// several times, and rewrites that must come to an end.
#include <algorithm>
#include <map>

#include "frontend/dropout.h"
#include "tests/frontend/recover_testing.h"

namespace shardc::recover_testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

HostTensor Ints64(const Shape& shape, const std::vector<int64_t>& values) {
  HostTensor t(DType::kI64, shape);
  for (size_t i = 0; i < values.size(); ++i) {
    t.SetDouble(static_cast<int64_t>(i), static_cast<double>(values[i]));
  }
  return t;
}

Value* Gather(TestGraph& b, Value* x, const Shape& shape, const std::vector<int64_t>& at,
              int64_t axis) {
  return b.Make("gather", {x, b.Constant(Ints64(shape, at))}, {{"axis", axis}});
}

TEST(Pieces, AGatherOfNeighboursIsASlice) {
  Graph g = Recover([](TestGraph& b) {
    b.Out(Gather(b, b.In("x", {3, 7, 2}), {3}, {-6, 3, 5}, 1));  // every second, from 1
  });
  EXPECT_THAT(Ops(g), ElementsAre("slice"));
}

// Of each of four stretches of six the elements from 2 to 4; and of those behind the first.
TEST(Pieces, AGatherOfAPartOfEachStretchIsASlice) {
  for (const int64_t from : {0, 1}) {
    Graph g = Recover([&](TestGraph& b) {
      std::vector<int64_t> at;
      for (int64_t i = from; i < 4; ++i) at.insert(at.end(), {6 * i + 2, 6 * i + 3, 6 * i + 4});
      b.Out(Gather(b, b.In("x", {2, 24}), {std::ssize(at)}, at, 1));
    });
    EXPECT_THAT(Ops(g), Not(Contains("gather")));
  }
  // Not so far apart, over the end of a stretch, of other lengths.
  for (const std::vector<int64_t>& at : std::vector<std::vector<int64_t>>{
           {2, 3, 8, 9, 13, 14}, {5, 6, 11, 12}, {2, 3, 8, 9, 14}, {0, 1, 5, 6}}) {
    Graph g = Recover([&](TestGraph& b) {
      b.Out(Gather(b, b.In("x", {2, 24}), {std::ssize(at)}, at, 1));
    });
    EXPECT_THAT(Ops(g), ElementsAre("gather"));
  }
}

// Logits without what pads the vocabulary, whose weight is to be cut: one segment of the features.
TEST(Pieces, ASliceOfALinearLayersFeaturesIsASplit) {
  for (const auto& [start, limit, sizes] : std::vector<std::tuple<int64_t, int64_t, Ints>>{
           {0, 5, {5, 3}}, {2, 8, {2, 6}}, {3, 6, {3, 3, 2}}}) {
    for (bool bias : {false, true}) {
      Graph g = Recover([&, from = start, to = limit](TestGraph& b) {
        Value* x = b.Make("matmul", {b.In("x", {2, 3, 4}), b.P("w", {4, 8})});
        if (bias) x = b.Add(x, b.P("b", {8}));
        b.Out(b.Slice(x, {0, 0, from}, {2, 3, to}));
      });
      ASSERT_THAT(Ops(g), Contains("split"));
      EXPECT_EQ(Find(g, "split")->attrs.IntList("sizes"), sizes);
    }
  }
  Graph g = Recover([](TestGraph& b) {
    Value* x = b.Make("matmul", {b.In("x", {2, 3, 4}), b.P("w", {4, 8})});
    b.Out(b.Slice(x, {0, 1, 0}, {2, 3, 8}), "tokens");
    b.Out(b.Slice(b.In("y", {2, 8}), {0, 0}, {2, 5}), "of_input");
  });
  EXPECT_THAT(Ops(g), Not(Contains("split")));
}

TEST(Pieces, AGatherInAnotherOrderStays) {
  Graph g = Recover([](TestGraph& b) {
    b.Out(Gather(b, b.In("x", {3, 7, 2}), {3}, {1, 3, 2}, 1), "y");
    b.Out(Gather(b, b.In("z", {3, 7, 2}), {2}, {4, 4}, 1), "repeated");
  });
  EXPECT_THAT(Ops(g), ElementsAre("gather", "gather"));
}

TEST(Pieces, RowsOfTensorsInTurnsAreJoinedAlongADimOfTheirOwn) {
  auto build = [](const std::vector<int64_t>& at) {
    return [at](TestGraph& b) {
      Value* x = b.Make("concat", {b.In("x", {2, 3}), b.In("y", {2, 3})}, {{"axis", int64_t{1}}});
      b.Out(Gather(b, x, {std::ssize(at)}, at, 1));
    };
  };
  EXPECT_THAT(Ops(Recover(build({3, 0, -2, 1, 5, 2}))),
              ::testing::AllOf(Contains("concat"), Not(Contains("gather"))));
  for (const std::vector<int64_t>& other :
       {std::vector<int64_t>{0, 3, 1, 5, 2, 4}, {0, 3, 1, 4}, {0, 3, 1, 4, 2, 2}}) {
    EXPECT_THAT(Ops(Recover(build(other))), Contains("gather"));
  }
}

TEST(Pieces, GatherNdOfRowsHasAGradient) {
  Graph g = Recover([](TestGraph& b) {
    Value* ids = b.In("ids", Ints64({4, 1}, {0, 2, 2, 1}));
    b.Out(b.Make("gather_nd", {b.In("x", {3, 5}), ids}, {{"batch_dims", int64_t{0}}}));
  });
  EXPECT_THAT(Ops(g), ElementsAre("reshape", "gather"));
}

TEST(Pieces, GatherNdAtConstantPositions) {
  Graph g = Recover([](TestGraph& b) {
    Value* at = b.Constant(Ints64({3, 2}, {0, 4, 2, -1, -2, 1}));
    b.Out(b.Make("gather_nd", {b.In("x", {3, 5, 2}), at}, {{"batch_dims", int64_t{0}}}));
  });
  EXPECT_THAT(Ops(g), Contains("gather"));
  EXPECT_THAT(Ops(g), Not(Contains("gather_nd")));
}

// mask[batch, key] with all positions written out, as transformers index a mask of the batch: the
// mask itself, in other dims.
TEST(Pieces, AMaskThatIsReadElementByElementIsReshaped) {
  for (bool pairs : {true, false}) {
    Graph g = Recover([&](TestGraph& b) {
      HostTensor data(DType::kBool, {2, 6}), at(DType::kI64, {2, 1, 1, 6, 2}),
          rows(DType::kI64, {2, 1, 1, 6});
      for (int64_t i = 0; i < 12; ++i) {
        data.SetDouble(i, i % 5 != 2);
        at.SetDouble(2 * i, static_cast<double>(i / 6));
        at.SetDouble(2 * i + 1, static_cast<double>(i % 6));
        rows.SetDouble(i, static_cast<double>(i));
      }
      Value* mask = b.In("mask", data);
      Value* seen = pairs ? b.Make("gather_nd", {mask, b.Constant(at)})
                          : b.Make("gather", {b.Reshape(mask, {12}), b.Constant(rows)},
                                   {{"axis", int64_t{0}}});
      b.Out(b.Where(seen, b.In("x", {2, 1, 3, 6}), b.C(-1e9)));
    });
    EXPECT_THAT(Ops(g), ElementsAre("reshape", "where")) << pairs;
  }
}

// Falcon: the heads of q, k and v, the last two by lists of positions in a transposed view.
TEST(Pieces, SlicesThatAreTheWholeTogetherAreASplit) {
  Graph g = Recover([](TestGraph& b) {
    Value* x = b.Op1("relu", b.In("x", {2, 3, 6, 4}));
    Value* t = b.Transpose(x, {2, 0, 1, 3});
    auto head = [&](int64_t at) {
      Value* row =
          b.Make("gather_nd", {t, b.Constant(Ints64({1, 1}, {at}))}, {{"batch_dims", int64_t{0}}});
      return b.Transpose(row, {1, 2, 0, 3});
    };
    b.Out(head(-1), "v");
    b.Out(head(-2), "k");
    b.Out(b.Slice(x, {0, 0, 0, 0}, {2, 3, 4, 4}), "q");
  });
  EXPECT_THAT(Ops(g), ElementsAre("relu", "split"));
  EXPECT_EQ(Find(g, "split")->attrs.IntList("sizes"), (Ints{4, 1, 1}));
}

// GPT-OSS: gates and their linear parts in turns.
TEST(Pieces, EverySecondElementIsAPieceOfADim) {
  Graph g = Recover([](TestGraph& b) {
    Value* x = b.Op1("relu", b.In("x", {2, 3, 6}));
    auto every = [&](int64_t start, int64_t limit, int64_t step) {
      return b.Make("slice", {x},
                    {{"starts", Ints{0, 0, start}},
                     {"limits", Ints{2, 3, limit}},
                     {"steps", Ints{1, 1, step}}});
    };
    b.Out(every(0, 6, 2), "gate");
    b.Out(every(1, 6, 2), "up");
  });
  EXPECT_THAT(Ops(g), ElementsAre("relu", "reshape", "split", "reshape", "reshape"));
  EXPECT_EQ(Find(g, "split")->attrs.Int("axis"), 3);
  Graph others = Recover([](TestGraph& b) {
    Value* x = b.Op1("relu", b.In("x", {6, 7}));
    auto every = [&](Ints starts, Ints limits, Ints steps) {
      return b.Make("slice", {x}, {{"starts", starts}, {"limits", limits}, {"steps", steps}});
    };
    b.Out(every({0, 0}, {6, 7}, {1, 2}), "does not divide");
    b.Out(every({2, 0}, {6, 7}, {2, 1}), "not all");
    b.Out(every({4, 0}, {-1, 7}, {-2, 1}), "backwards");
  });
  EXPECT_THAT(Ops(others), ElementsAre("relu", "slice", "slice", "slice"));
}

TEST(Pieces, SlicesWithAGapOrAnOverlapStay) {
  for (int64_t limit : {1, 3}) {
    Graph g = Recover([&](TestGraph& b) {
      Value* x = b.Op1("relu", b.In("x", {2, 6}));
      b.Out(b.Slice(x, {0, 0}, {2, limit}), "a");
      b.Out(b.Slice(x, {0, 2}, {2, 6}), "b");
    });
    EXPECT_THAT(Ops(g), ElementsAre("relu", "slice", "slice"));
  }
}

HostTensor Repeated(const HostTensor& row, const Shape& shape) {
  HostTensor t(DType::kF64, shape);
  for (int64_t i = 0; i < t.num_elements(); ++i) {
    t.SetDouble(i, row.AsDouble(i % row.num_elements()));
  }
  return t;
}

TEST(Pieces, ASplitOfAPieceIsPartOfTheSplit) {
  auto split = [](TestGraph& b, Value* x, Ints sizes) {
    return b.Create("split", {x}, {{"axis", int64_t{1}}, {"sizes", std::move(sizes)}})->results;
  };
  Graph g = Recover([&](TestGraph& b) {
    auto outer = split(b, b.Op1("relu", b.In("x", {3, 9})), {2, 4, 3});
    b.Out(b.Neg(outer[0]), "first");
    auto inner = split(b, outer[1], {1, 3});
    b.Out(inner[0], "a");
    b.Out(inner[1], "b");
    b.Out(outer[2], "last");
  });
  EXPECT_THAT(Ops(g), ElementsAre("relu", "split", "neg"));
  EXPECT_EQ(Find(g, "split")->attrs.IntList("sizes"), (Ints{2, 1, 3, 3}));
  g = Recover([&](TestGraph& b) {
    auto outer = split(b, b.Op1("relu", b.In("x", {3, 9})), {2, 7});
    auto inner = split(b, outer[1], {1, 6});
    b.Out(inner[0], "a");
    b.Out(b.Neg(inner[1]), "b");
    b.Out(outer[0], "first");
    b.Out(outer[1], "whole");
  });
  EXPECT_THAT(Ops(g), ElementsAre("relu", "split", "split", "neg"));
}

// [q | k | v | gate]: what is [3, heads, head_dim] within the first piece are pieces of the whole.
TEST(Pieces, ASplitOfAReorderedPieceIsPartOfTheSplit) {
  auto split = [](TestGraph& b, Value* x, int64_t axis, Ints sizes) {
    return b.Create("split", {x}, {{"axis", axis}, {"sizes", std::move(sizes)}})->results;
  };
  auto recover = [&](const Shape& heads, Ints perm, int64_t axis) {
    return Recover([&, perm](TestGraph& b) {
      auto outer = split(b, b.Op1("relu", b.In("x", {3, 16})), 1, {12, 4});
      auto qkv = split(b, b.Transpose(b.Reshape(outer[0], heads), perm), axis, {1, 1, 1});
      for (size_t i = 0; i < 3; ++i) b.Out(b.Neg(qkv[i]), StrCat(i));
      b.Out(outer[1], "gate");
    });
  };
  Graph g = recover({3, 3, 2, 2}, {1, 2, 0, 3}, 0);
  ASSERT_EQ(Counts(g)["split"], 1);
  EXPECT_EQ(Find(g, "split")->attrs.IntList("sizes"), (Ints{4, 4, 4, 4}));
  // q, k and v of each head do not lie one behind the other.
  EXPECT_EQ(Counts(recover({3, 2, 3, 2}, {2, 1, 0, 3}, 0))["split"], 2);
}

// What onnxoptimizer makes of q, k and v, and modules that put their weights together themselves.
TEST(Products, WithPiecesThatAreReadApartAreOfEach) {
  for (const bool nt : {false, true}) {
    for (const bool biased : {false, true}) {
      Graph g = Recover([&](TestGraph& b) {
        std::vector<Value*> weights, biases;
        for (const int64_t n : {8, 4, 2}) {
          const std::string name = std::to_string(n);
          weights.push_back(b.P("w" + name, nt ? Shape{n, 6} : Shape{6, n}));
          biases.push_back(b.P("b" + name, {n}));
        }
        auto together = [&](const std::vector<Value*>& v, int64_t axis) {
          return b.Make("concat", v, {{"axis", axis}});
        };
        Value* y = b.Make(nt ? "matmul_nt" : "matmul",
                          {b.In("x", {2, 3, 6}), together(weights, nt ? 0 : 1)});
        if (biased) y = b.Add(y, together(biases, 0));
        Op* split = b.Create("split", {y}, {{"axis", int64_t{2}}, {"sizes", Ints{8, 4, 2}}});
        for (Value* piece : split->results) b.Out(piece, "y" + std::to_string(piece->index));
      });
      EXPECT_THAT(Ops(g), Not(Contains("concat")));
      EXPECT_THAT(Ops(g), Not(Contains("split")));
      EXPECT_EQ(Counts(g)[nt ? "matmul_nt" : "matmul"], 3);
    }
  }
}

// Other sizes, or the whole.
TEST(Products, WithPiecesThatAreReadOtherwiseStay) {
  for (const bool whole : {false, true}) {
    Graph g = Recover([&](TestGraph& b) {
      Value* weights =
          b.Make("concat", {b.P("v", {6, 4}), b.P("w", {6, 8})}, {{"axis", int64_t{1}}});
      Value* y = b.Matmul(b.In("x", {2, 3, 6}), weights);
      if (whole) b.Out(b.Make("relu", {y}), "all");
      Op* split = b.Create("split", {y},
                           {{"axis", int64_t{2}}, {"sizes", whole ? Ints{4, 8} : Ints{6, 6}}});
      for (Value* piece : split->results) b.Out(piece, "y" + std::to_string(piece->index));
    });
    EXPECT_EQ(Counts(g)["matmul"], 1);
  }
}

TEST(RepeatedParams, RowsOfEveryBatchAreOneParameter) {
  Graph g = Recover([](TestGraph& b) {
    Value* positions = b.P("folded", Repeated(Random("p", {5, 6}), {3, 5, 6}));
    Value* types = b.P("types", Repeated(Random("t", {6}), {3, 5, 6}));
    b.Out(b.Add(b.Add(b.In("x", {3, 5, 6}), positions), types));
  });
  std::map<std::string, Shape> shapes;
  for (Op* p : g.Params()) shapes[p->attrs.String("name")] = p->out().shape;
  EXPECT_EQ(shapes["folded"], (Shape{1, 5, 6}));
  EXPECT_EQ(shapes["types"], (Shape{1, 1, 6}));
}

// A class token in front of every image; equal rows side by side in the sequence stay rows.
TEST(RepeatedParams, RowsInFrontOfEverySequenceAreOneParameter) {
  Graph g = Recover([](TestGraph& b) {
    Value* token = b.P("token", Repeated(Random("t", {6}), {3, 2, 6}));
    b.Out(b.Make("concat", {token, b.In("x", {3, 5, 6})}, {{"axis", int64_t{1}}}));
  });
  ASSERT_EQ(g.Params().size(), 1u);
  EXPECT_EQ(g.Params()[0]->out().shape, (Shape{1, 2, 6}));
}

TEST(RepeatedParams, EqualMatricesOfABatchedProductStay) {
  Graph g = Recover([](TestGraph& b) {
    b.Out(b.Matmul(b.In("x", {3, 4, 5}), b.P("experts", Repeated(Random("p", {5, 6}), {3, 5, 6}))));
  });
  ASSERT_EQ(g.Params().size(), 1u);
  EXPECT_EQ(g.Params()[0]->out().shape, (Shape{3, 5, 6}));
}

// As PyTorch's decompositions write a linear layer of what was transposed.
TEST(RepeatedParams, AMatrixThatTheGraphExpandsIsMultipliedByOnce) {
  for (bool nt : {false, true}) {
    Graph g = Recover([=](TestGraph& b) {
      Value* w = b.Reshape(b.P("w", nt ? Shape{6, 5} : Shape{5, 6}), {1, nt ? 6 : 5, nt ? 5 : 6});
      w = b.BroadcastTo(w, {3, nt ? 6 : 5, nt ? 5 : 6});
      b.Out(b.Make(nt ? "matmul_nt" : "matmul", {b.In("x", {3, 4, 5}), w}));
    });
    EXPECT_THAT(Ops(g), ElementsAre(nt ? "matmul_nt" : "matmul"));
  }
}

TEST(RepeatedParams, AFillStays) {
  Graph g = Recover([](TestGraph& b) {
    HostTensor zeros(DType::kF64, {3, 5, 6});
    for (int64_t i = 0; i < zeros.num_elements(); ++i) zeros.SetDouble(i, 0);
    b.Out(b.Add(b.In("x", {3, 5, 6}), b.P("new", zeros)));
  });
  ASSERT_EQ(g.Params().size(), 1u);
  EXPECT_EQ(g.Params()[0]->out().shape, (Shape{3, 5, 6}));
}

// q of an unbound [3, b, h, s, d]: dropping the leading dim of 1 flattens nothing that the scale
// could be lifted over for ever.
TEST(Lift, AScaleBehindADroppedLeadingDimComesToAnEnd) {
  Graph g = Recover([](TestGraph& b) {
    Value* x = b.Op1("relu", b.In("x", {1, 2, 3, 4, 5}));
    b.Out(b.Mul(b.Reshape(x, {2, 3, 4, 5}), b.C(0.5, {1})));
  });
  EXPECT_THAT(Ops(g), ElementsAre("relu", "mul", "reshape"));
}

// BLOOM adds a slope per head to scores [b * h, s, t], with the mask afterwards.
TEST(Lift, ABiasOfFlattenedHeadsIsPartOfTheAttention) {
  Graph g = Recover([](TestGraph& b) {
    constexpr int kB = 2, kHeads = 3, kS = 4, kD = 5;
    Value *q = b.In("q", {kB, kHeads, kS, kD}), *k = b.In("k", {kB, kHeads, kD, kS});
    Value* scores = b.Reshape(b.Mul(b.Matmul(q, k), b.C(0.4)), {kB * kHeads, kS, kS});
    Value* bias = b.Constant(Random("alibi", {kB * kHeads, 1, kS}));
    Value* sum = b.Reshape(b.Add(scores, bias), {kB, kHeads, kS, kS});
    b.Out(b.Matmul(b.Softmax(sum), b.In("v", {kB, kHeads, kS, kD})));
  });
  EXPECT_THAT(Ops(g), Contains("attention"));
  EXPECT_THAT(Ops(g), Not(Contains("softmax")));
}

// Attention and an MLP, whose parts may be dropped out; names of its parameters to their roles.
std::map<std::string, std::string> RolesOfALayer(bool learned_bias, double dropout,
                                                 bool recovered) {
  Graph g = Recover([&](TestGraph& b) {
    constexpr int kS = 4, kHeads = 2, kD = 3, kH = 6;
    auto dropped = [&](Value* v) { return dropout > 0 ? AddDropout(b, v, dropout) : v; };
    Value* x = b.Op1("relu", b.In("x", {2, kS, kH}));
    auto heads = [&](const char* name, Ints perm) {
      Value* y = b.Matmul(x, b.P(name, {kH, kH}));
      return b.Transpose(b.Reshape(y, {2, kS, kHeads, kD}), std::move(perm));
    };
    Value* scores = b.Matmul(heads("q", {0, 2, 1, 3}), heads("k", {0, 2, 3, 1}));
    if (learned_bias) scores = b.Add(scores, b.P("bias", {1, kHeads, kS, kS}));
    Value* o = b.Matmul(dropped(b.Softmax(scores)), heads("v", {0, 2, 1, 3}));
    o = dropped(b.Reshape(b.Transpose(o, {0, 2, 1, 3}), {2, kS, kH}));
    Value* y = b.Add(dropped(b.Matmul(o, b.P("out", {kH, kH}))), x);
    Value* up = dropped(b.Op1("relu", b.Matmul(y, b.P("up", {kH, 2 * kH}))));
    b.Out(b.Add(dropped(b.Matmul(up, b.P("down", {2 * kH, kH}))), y));
  });
  const auto ops = Ops(g);
  EXPECT_EQ(std::count(ops.begin(), ops.end(), "attention"), recovered ? 1 : 0);
  return RolesOf(g);
}

// A bias that is learned must keep its gradient, which an attention's mask has not.
TEST(WrittenOutAttention, StaysButHasRoles) {
  const std::map<std::string, std::string> roles = {{"q", "QKV"},     {"k", "QKV"},
                                                    {"v", "QKV"},     {"out", "ATTENTION_OUT"},
                                                    {"up", "MLP_UP"}, {"down", "MLP_DOWN"}};
  EXPECT_EQ(RolesOfALayer(false, 0, true), roles);
  EXPECT_EQ(RolesOfALayer(false, 0.1, true), roles);
  auto with_bias = roles;
  with_bias["bias"] = "none";
  EXPECT_EQ(RolesOfALayer(true, 0, false), with_bias);
  EXPECT_EQ(RolesOfALayer(true, 0.1, false), with_bias);
}

// Scores of sinks, which have no values, beside those of the keys.
TEST(WrittenOutAttention, WithSinksHasRoles) {
  Graph g = Recover([&](TestGraph& b) {
    constexpr int kS = 4, kHeads = 2, kD = 3, kH = 6;
    Value* x = b.Op1("relu", b.In("x", {2, kS, kH}));
    auto heads = [&](const char* name) {
      Value* y = b.Matmul(x, b.P(name, {kH, kH}));
      return b.Transpose(b.Reshape(y, {2, kS, kHeads, kD}), {0, 2, 1, 3});
    };
    Value* scores = b.Op1("tanh", b.Make("matmul_nt", {heads("q"), heads("k")}));
    Value* sinks = b.BroadcastTo(b.P("sinks", {1, kHeads, 1, 1}), {2, kHeads, kS, 1});
    Value* p = b.Softmax(b.Make("concat", {scores, sinks}, {{"axis", int64_t{3}}}));
    p = b.Slice(p, {0, 0, 0, 0}, {2, kHeads, kS, kS});
    Value* o = b.Transpose(b.Matmul(p, heads("v")), {0, 2, 1, 3});
    b.Out(b.Matmul(b.Reshape(o, {2, kS, kH}), b.P("out", {kH, kH})));
  });
  EXPECT_EQ(
      RolesOf(g),
      (std::map<std::string, std::string>{
          {"q", "QKV"}, {"k", "QKV"}, {"v", "QKV"}, {"sinks", "none"}, {"out", "ATTENTION_OUT"}}));
}

// DeBERTa's: queries and keys are multiplied with what is projected from distances too, and scores
// read at the distance of each pair. NEZHA's: a second product with the probabilities is added.
// BitNet's: a norm before the projection.
TEST(WrittenOutAttention, WithDistancesHasRoles) {
  constexpr int kS = 4, kHeads = 2, kD = 3, kH = 6, kDistances = 2 * kS - 1;
  HostTensor distances(DType::kI64, {kHeads, kS, kS, 1});
  for (int64_t i = 0; i < distances.num_elements(); ++i)
    distances.data<int64_t>()[i] = i / kS % kS - i % kS + kS - 1;
  Graph g = Recover([&](TestGraph& b) {
    Value* x = b.Op1("relu", b.In("x", {1, kS, kH}));
    auto heads = [&](Value* from, const char* name) {
      Value* y = b.Matmul(from, b.P(name, {kH, kH}));
      return b.Transpose(b.Reshape(y, {1, from->type.shape[1], kHeads, kD}), {0, 2, 1, 3});
    };
    Value *q = heads(x, "q"), *k = heads(x, "k");
    Value* table = b.Reshape(b.P("distances", {kDistances, kH}), {1, kDistances, kH});
    auto at_distance = [&](Value* scores) {  // [1, h, s, distances] -> [1, h, s, s]
      Value* at = b.Reshape(b.Constant(distances), {1, kHeads, kS, kS, 1});
      return b.Make("gather_nd", {scores, at}, {{"batch_dims", int64_t{3}}});
    };
    Value* scores = b.Make("matmul_nt", {q, k});
    scores = b.Add(scores, at_distance(b.Make("matmul_nt", {q, heads(table, "distance_k")})));
    Value* other = at_distance(b.Make("matmul_nt", {k, heads(table, "distance_q")}));
    Value* p = b.Softmax(b.Add(scores, b.Transpose(other, {0, 1, 3, 2})));
    Value* o = b.Add(b.Matmul(p, heads(x, "v")), b.Matmul(p, b.In("values", {1, 1, kS, kD})));
    o = b.Reshape(b.Transpose(o, {0, 2, 1, 3}), {1, kS, kH});
    o = b.Create("rms_norm", {o, b.P("norm", {kH})}, {{"eps", 1e-5}})->result();
    b.Out(b.Matmul(o, b.P("out", {kH, kH})));
  });
  EXPECT_EQ(RolesOf(g), (std::map<std::string, std::string>{{"q", "QKV"},
                                                            {"k", "QKV"},
                                                            {"v", "QKV"},
                                                            {"distances", "none"},
                                                            {"distance_k", "QKV"},
                                                            {"distance_q", "QKV"},
                                                            {"norm", "NORM"},
                                                            {"out", "ATTENTION_OUT"}}));
}

// DeepSeek's: k and v come from few columns, and a part of k that all heads share beside them.
TEST(LatentAttention, TheProjectionToFewColumnsHasNoRole) {
  Graph g = Recover([&](TestGraph& b) {
    constexpr int kS = 4, kHeads = 2, kD = 3, kH = 6, kRank = 2;
    Value* x = b.Op1("relu", b.In("x", {2, kS, kH}));
    Value* down = b.Matmul(x, b.P("down", {kH, kRank + 1}));
    Op* parts = b.Create("split", {down}, {{"axis", int64_t{2}}, {"sizes", Ints{kRank, 1}}});
    Value* norm =
        b.Create("rms_norm", {parts->result(0), b.P("norm", {kRank})}, {{"eps", 1e-5}})->result();
    auto heads = [&](Value* from, const char* name, int depth) {
      Value* y = b.Matmul(from, b.P(name, {from->type.shape[2], kHeads * depth}));
      return b.Transpose(b.Reshape(y, {2, kS, kHeads, depth}), {0, 2, 1, 3});
    };
    Value* shared = b.BroadcastTo(b.Reshape(parts->result(1), {2, 1, kS, 1}), {2, kHeads, kS, 1});
    Value* k = b.Make("concat", {heads(norm, "k", kD - 1), shared}, {{"axis", int64_t{3}}});
    Value* p = b.Softmax(b.Make("matmul_nt", {heads(x, "q", kD), k}));
    Value* o = b.Transpose(b.Matmul(p, heads(norm, "v", kD)), {0, 2, 1, 3});
    b.Out(b.Matmul(b.Reshape(o, {2, kS, kHeads * kD}), b.P("out", {kHeads * kD, kH})));
  });
  EXPECT_THAT(Ops(g), Contains("attention"));
  EXPECT_EQ(RolesOf(g), (std::map<std::string, std::string>{{"q", "QKV"},
                                                            {"k", "QKV"},
                                                            {"v", "QKV"},
                                                            {"down", "none"},
                                                            {"norm", "NORM"},
                                                            {"out", "ATTENTION_OUT"}}));
}

// ALBERT: the layer's matrix is read twice, so its bias is shared too, not two biases of one value.
TEST(SharedLayers, KeepTheirVectors) {
  Graph g = Recover([](TestGraph& b) {
    Value *w = b.P("w", {6, 6}), *bias = b.P("bias", {6}), *x = b.In("x", {4, 6});
    for (int i = 0; i < 2; ++i) x = b.Op1("tanh", b.Add(b.Matmul(x, w), bias));
    b.Out(x);
  });
  EXPECT_EQ(g.Params().size(), 2u);
  EXPECT_THAT(g.notes, IsEmpty());
}

}  // namespace
}  // namespace shardc::recover_testing
