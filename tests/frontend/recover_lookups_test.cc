// Lookups whose indices count the batch, as x[arange(b), at] is written by PyTorch's exporters.
#include "tests/frontend/recover_testing.h"

namespace shardc::recover_testing {
namespace {

using ::testing::Contains;
using ::testing::Not;

HostTensor Ints64(const Shape& shape, const std::vector<int64_t>& values) {
  return HostTensor::Of<int64_t>(shape, values);
}

const Op* LookupOf(const Graph& g) { return Find(g, "gather_nd"); }

// By dynamo: tuples (i, at[i]).
TEST(BatchedLookups, TuplesThatCount) {
  Graph g = Recover([](TestGraph& b) {
    Value* at = b.Reshape(b.In("at", Ints64({3}, {4, 0, -2})), {3, 1});
    Value* counts = b.Constant(Ints64({3, 1}, {0, 1, 2}));
    Value* tuples = b.Make("concat", {counts, at}, {{"axis", int64_t{1}}});
    b.Out(b.Make("gather_nd", {b.In("x", {3, 5, 2}), tuples}));
  });
  ASSERT_NE(LookupOf(g), nullptr);
  EXPECT_EQ(LookupOf(g)->attrs.Int("batch_dims"), 1);
  EXPECT_EQ(LookupOf(g)->in(1).shape, (Shape{3, 1}));
  EXPECT_THAT(Ops(g), Not(Contains("concat")));
}

// Both dims of the tuples are counted, the second along the second.
TEST(BatchedLookups, TuplesThatCountTwice) {
  Graph g = Recover([](TestGraph& b) {
    Value* at = b.In("at", Ints64({2, 3, 1}, {4, 0, -2, 1, 1, 3}));
    Value* rows = b.BroadcastTo(b.Constant(Ints64({2, 1, 1}, {0, 1})), {2, 3, 1});
    Value* columns = b.Constant(Ints64({2, 3, 1}, {0, 1, 2, 0, 1, 2}));
    Value* tuples = b.Make("concat", {rows, columns, at}, {{"axis", int64_t{2}}});
    b.Out(b.Make("gather_nd", {b.In("x", {2, 3, 5}), tuples}));
  });
  ASSERT_NE(LookupOf(g), nullptr);
  EXPECT_EQ(LookupOf(g)->attrs.Int("batch_dims"), 2);
}

// What is scattered to places that count.
TEST(BatchedLookups, ScattersThatCount) {
  Graph g = Recover([](TestGraph& b) {
    Value* at = b.In("at", Ints64({3, 1}, {4, 0, 4}));
    Value* counts = b.Constant(Ints64({3, 1}, {0, 1, 2}));
    Value* tuples = b.Make("concat", {counts, at}, {{"axis", int64_t{1}}});
    b.Out(b.Make("gather_nd_grad", {b.In("dy", {3, 2}), tuples}, {{"sizes", Ints{3, 5}}}));
  });
  const Op* scatter = Find(g, "gather_nd_grad");
  ASSERT_NE(scatter, nullptr);
  EXPECT_EQ(scatter->attrs.Int("batch_dims"), 1);
  EXPECT_EQ(scatter->attrs.IntList("sizes"), Ints{5});
}

// Rows of fewer than there are, in another order, or not from the first: all examples are needed.
TEST(BatchedLookups, TuplesThatDoNotCountStay) {
  for (const std::vector<int64_t>& counted :
       {std::vector<int64_t>{0, 1}, {0, 2, 1}, {1, 2, 2}, {0, 0, 0}}) {
    Graph g = Recover([&](TestGraph& b) {
      const auto n = static_cast<int64_t>(counted.size());
      Value* at = b.In("at", Ints64({n, 1}, std::vector<int64_t>(counted.size(), 3)));
      Value* tuples =
          b.Make("concat", {b.Constant(Ints64({n, 1}, counted)), at}, {{"axis", int64_t{1}}});
      b.Out(b.Make("gather_nd", {b.In("x", {3, 5, 2}), tuples}));
    });
    ASSERT_NE(LookupOf(g), nullptr);
    EXPECT_EQ(LookupOf(g)->attrs.Int("batch_dims", 0), 0);
  }
}

// By TorchScript: positions i * 5 + at[i] in the flattened dims.
Graph Flattened(const std::function<Value*(TestGraph&)>& at, Shape positions = {3}) {
  return Recover([&](TestGraph& b) {
    Shape column(positions.size(), 1);
    column[0] = 3;
    Value* sum = b.Add(at(b), b.Constant(Ints64(column, {0, 5, 10})));
    Value* x = b.Reshape(b.In("x", {3, 5, 2}), {15, 2});
    b.Out(b.Make("gather", {x, sum}, {{"axis", int64_t{0}}}));
  });
}

// The last token that is none of padding, by arg max.
Value* LastToken(TestGraph& b) {
  Value* ids = b.In("ids", Ints64({3, 5}, {7, 8, 9, 0, 0, 1, 0, 0, 0, 0, 2, 3, 4, 5, 6}));
  Value* kept = b.Make("not_equal", {ids, b.Constant(Ints64({}, {0}))});
  Value* positions = b.Constant(Ints64({5}, {0, 1, 2, 3, 4}));
  Value* x = b.Mul(b.Cast(kept, DType::kI64), positions);
  Value* hits = b.Make("equal", {x, b.ReduceMax(x, {1}, true)});
  Value* first = b.Where(hits, positions, b.Constant(Ints64({}, {4})));
  return b.Make("reduce_min", {first}, {{"axes", Ints{1}}, {"keepdims", false}});
}

TEST(BatchedLookups, PositionsThatCount) {
  Graph g = Flattened(LastToken);
  ASSERT_NE(LookupOf(g), nullptr);
  EXPECT_EQ(LookupOf(g)->attrs.Int("batch_dims"), 1);
  EXPECT_THAT(Ops(g), Not(Contains("gather")));
}

// What is clipped, or the rest of a division, lies within a row, too.
TEST(BatchedLookups, PositionsKnownToLieWithinARow) {
  auto at = [](TestGraph& b) { return b.In("at", Ints64({3}, {-7, 3, 9})); };
  auto number = [](TestGraph& b, int64_t n) { return b.Constant(Ints64({}, {n})); };
  const std::vector<std::function<Value*(TestGraph&)>> within = {
      [&](TestGraph& b) {
        return b.Make("mod", {at(b), number(b, 5)});
      },
      [&](TestGraph& b) {
        return b.Make("min", {b.Make("max", {at(b), number(b, 0)}), number(b, 4)});
      },
      [&](TestGraph& b) {
        Value* some = b.Make("mod", {at(b), number(b, 3)});
        return b.Sub(number(b, 4), b.Neg(b.Neg(b.Mul(some, number(b, 2)))));
      }};
  for (const auto& position : within) {
    Graph g = Flattened(position);
    EXPECT_THAT(Ops(g), Contains("gather_nd"));
    EXPECT_THAT(Ops(g), Not(Contains("gather")));
  }
}

TEST(BatchedLookups, SeveralPositionsOfEach) {
  Graph g = Flattened(
      [](TestGraph& b) {
        Value* at = b.In("at", Ints64({3, 2}, {-7, 3, 9, 1, 2, 11}));
        return b.Make("mod", {at, b.Constant(Ints64({}, {5}))});
      },
      {3, 2});
  ASSERT_NE(LookupOf(g), nullptr);
  EXPECT_EQ(LookupOf(g)->in(1).shape, (Shape{3, 2, 1}));
}

// What may name another example's row does so: nothing is known of an input, and 5 is no place.
TEST(BatchedLookups, PositionsThatMayLeaveTheRowStay) {
  Graph g = Flattened([](TestGraph& b) { return b.In("at", Ints64({3}, {2, -1, 4})); });
  EXPECT_EQ(LookupOf(g), nullptr);
  g = Flattened([](TestGraph& b) {
    return b.Make("mod", {b.In("at", Ints64({3}, {2, -1, 4})), b.Constant(Ints64({}, {6}))});
  });
  EXPECT_EQ(LookupOf(g), nullptr);
}

// Of a table, whose rows are no examples.
TEST(BatchedLookups, TablesStay) {
  Graph g = Recover([](TestGraph& b) {
    Value* at = b.Make("mod", {b.In("at", Ints64({3}, {2, 1, 4})), b.Constant(Ints64({}, {5}))});
    Value* sum = b.Add(at, b.Constant(Ints64({3}, {0, 5, 10})));
    b.Out(b.Make("gather", {b.P("table", {15, 2}), sum}, {{"axis", int64_t{0}}}));
  });
  EXPECT_EQ(LookupOf(g), nullptr);
}

}  // namespace
}  // namespace shardc::recover_testing
