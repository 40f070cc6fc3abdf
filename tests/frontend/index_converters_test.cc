// Ops that take parts of a tensor: extremes, and what is no lookup.
#include <limits>
#include <vector>

#include "tests/frontend/converters_testing.h"

namespace shardc::import_testing {
namespace {

class IndexConverters : public ConverterTest {};

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

TEST_F(IndexConverters, SequencesOfASplit) {
  Input("x", {2, 6});
  Integers("sizes", {1, 2, 3});
  Integers("last", {-1}, true);
  SetInt(Node("SplitToSequence", {"x", "sizes"}, {"pieces"}), "axis", 1);
  Node("SequenceAt", {"pieces", "last"});
  HostTensor y = Evaluate()[0];
  ASSERT_EQ(y.shape(), (Shape{2, 3}));
  EXPECT_EQ(y.AsDouble(0), inputs_["x"].AsDouble(3));
  EXPECT_EQ(y.AsDouble(5), inputs_["x"].AsDouble(11));
}

TEST_F(IndexConverters, SequencesThatGrowAndShrink) {
  Input("x", {2});
  Input("z", {1});
  Integers("first", {0}, true);
  Integers("last", {-1}, true);
  Node("SequenceEmpty", {}, {"none"});
  Node("SequenceInsert", {"none", "x"}, {"x_"});
  Node("SequenceInsert", {"x_", "z", "first"}, {"zx"});
  Node("SequenceInsert", {"zx", "x"}, {"zxx"});
  Node("SequenceErase", {"zxx", "last"}, {"zx_"});
  Node("SequenceErase", {"zxx"}, {"zx__"});
  Node("SequenceErase", {"zxx", "first"}, {"xx"});
  for (const char* name : {"zx_", "zx__", "xx"})
    SetInt(Node("ConcatFromSequence", {name}, {std::string(name) + "_joined"}), "axis", 0);
  SetInt(Node("Concat", {"zx__joined", "zx___joined", "xx_joined"}), "axis", 0);
  HostTensor all = Evaluate()[0];
  ASSERT_EQ(all.shape(), Shape{10});
  const double z = inputs_["z"].AsDouble(0);
  const double x0 = inputs_["x"].AsDouble(0), x1 = inputs_["x"].AsDouble(1);
  const double expected[] = {z, x0, x1, z, x0, x1, x0, x1, x0, x1};
  for (int i = 0; i < 10; ++i) EXPECT_EQ(all.AsDouble(i), expected[i]) << i;
}

// A piece that holds nothing is none to stack.
TEST_F(IndexConverters, WhatIsStackedHasOneShape) {
  Input("x", {2});
  Integers("sizes", {0, 2});
  Node("SplitToSequence", {"x", "sizes"}, {"pieces"});
  auto& stacked = Node("ConcatFromSequence", {"pieces"});
  SetInt(stacked, "axis", 1);
  SetInt(stacked, "new_axis", 1);
  ExpectRefused("E1303", "same shape");
}

// As dynamo writes unbind, stack and the split of a table, without optimize.
TEST_F(IndexConverters, SequencesWithoutKeptDims) {
  Input("x", {2, 3});
  Integers("table", {7, 8, 9});
  Integers("first", {0}, true);
  Integers("last", {-1}, true);
  auto& rows = Node("SplitToSequence", {"x"}, {"rows"});
  SetInt(rows, "axis", 1);
  SetInt(rows, "keepdims", 0);
  Node("SequenceAt", {"rows", "first"}, {"row0"});
  Node("SequenceAt", {"rows", "last"}, {"row2"});
  Node("SequenceConstruct", {"row2", "row0", "row2"}, {"taken"});
  auto& stacked = Node("ConcatFromSequence", {"taken"}, {"stacked"});
  SetInt(stacked, "axis", -1);
  SetInt(stacked, "new_axis", 1);
  SetInt(Node("ConcatFromSequence", {"taken"}, {"joined"}), "axis", 0);
  SetInt(Node("SplitToSequence", {"table"}, {"numbers"}), "keepdims", 0);
  Node("SequenceAt", {"numbers", "last"}, {"number"});
  Node("SequenceLength", {"taken"}, {"length"});
  Node("Add", {"number", "length"}, {"sum"});
  const std::vector<HostTensor> got = Evaluate({"stacked", "joined", "sum"});
  auto x = [this](int64_t row, int64_t i) { return inputs_["x"].AsDouble(i * 3 + row); };
  ASSERT_EQ(got[0].shape(), (Shape{2, 3}));
  ASSERT_EQ(got[1].shape(), (Shape{6}));
  const int64_t rows_taken[] = {2, 0, 2};
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(got[0].AsDouble(i), x(rows_taken[i % 3], i / 3)) << i;
    EXPECT_EQ(got[1].AsDouble(i), x(rows_taken[i / 2], i % 2)) << i;
  }
  EXPECT_EQ(got[2].AsInt(0), 12);
}

TEST_F(IndexConverters, SequencesAreNoTensors) {
  Input("x", {2, 3});
  Integers("at", {0}, true);
  Node("SplitToSequence", {"x"}, {"pieces"});
  Node("Identity", {"pieces"});
  ExpectRefused("E1303", "its input 0 is a sequence of tensors");
  Restart();
  Input("x", {2, 3});
  Integers("at", {0}, true);
  Node("SequenceAt", {"x", "at"});
  ExpectRefused("E1303", "its input 0 is no sequence of tensors");
}

TEST_F(IndexConverters, ALookupWithoutInputsIsRefused) {
  Input("x", {2, 3});
  Node("GatherND", {});
  ExpectRefused("E1302", "has no input 0");
}

TEST_F(IndexConverters, SliceClampsExtremes) {
  Input("x", {5, 4});
  Integers("starts", {kMax, kMin});
  Integers("ends", {kMin, kMax});
  Integers("axes", {0, -1});
  Integers("steps", {-2, kMax});
  Node("Slice", {"x", "starts", "ends", "axes", "steps"});
  HostTensor y = Evaluate()[0];
  ASSERT_EQ(y.shape(), (Shape{3, 1}));
  EXPECT_EQ(y.AsDouble(0), inputs_["x"].AsDouble(16));
  EXPECT_EQ(y.AsDouble(1), inputs_["x"].AsDouble(8));
  EXPECT_EQ(y.AsDouble(2), inputs_["x"].AsDouble(0));
}

TEST_F(IndexConverters, GatherOfOnePositionIsASlice) {
  Input("x", {3, 2, 4});
  Integers("at", {-2}, true);
  SetInt(Node("Gather", {"x", "at"}), "axis", 0);
  Graph graph = Imported({"y"});
  EXPECT_EQ(CountOps(graph, "gather"), 0);
  HostTensor y = Evaluate()[0];
  ASSERT_EQ(y.shape(), (Shape{2, 4}));
  EXPECT_EQ(y.AsDouble(0), inputs_["x"].AsDouble(8));
}

// Each row k times, one behind the other or all in turns, as of tokens that go to k experts: no
// lookup, which would mix the rows. What is repeated otherwise is one.
TEST_F(IndexConverters, GatherThatRepeatsIsABroadcast) {
  struct Case {
    Ints at;
    int64_t axis;
    bool repeats;
  };
  const Case cases[] = {{{0, 0, 1, -1}, 1, true},
                        {{0, 0, 0, 1, 1, 1, 2, 2, 2}, 0, true},
                        {{0, 1, 0, 1, 0, 1}, 1, true},
                        {{0, 0, 1, 1, 2}, 0, false},
                        {{0, 1, 1, 0}, 1, false}};
  for (const Case& c : cases) {
    for (bool nd : {false, true}) {
      if (nd && c.axis != 0) continue;
      SCOPED_TRACE(StrCat(c.at.size(), " of dim ", c.axis, nd ? ", GatherND" : ""));
      model_.graph.Clear();
      Input("x", {3, 2, 4});
      const auto n = static_cast<int64_t>(c.at.size());
      Integers("at", c.at);
      Integers("shape", nd ? Ints{n, 1} : Ints{n});
      Node("Reshape", {"at", "shape"}, {"places"});
      NodeProto& node = Node(nd ? "GatherND" : "Gather", {"x", "places"});
      if (!nd) SetInt(node, "axis", c.axis);
      Graph graph = Imported({"y"});
      EXPECT_EQ(CountOps(graph, nd ? "gather_nd" : "gather"), c.repeats ? 0 : 1);
      HostTensor y = Evaluate()[0];
      ASSERT_EQ(y.shape(), c.axis == 0 ? (Shape{n, 2, 4}) : (Shape{3, n, 4}));
      const int64_t size = c.axis == 0 ? 3 : 2, behind = c.axis == 0 ? 8 : 4;
      for (int64_t i = 0; i < y.num_elements(); ++i) {
        const int64_t row = c.at[i / behind % n];
        const int64_t from = (i / behind / n * size + (row < 0 ? row + size : row)) * behind;
        EXPECT_EQ(y.AsDouble(i), inputs_["x"].AsDouble(from + i % behind));
      }
    }
  }
}

// Dims that the indices cover whole stay batch dims, which sharding can cut.
TEST_F(IndexConverters, GatherElementsKeepsBatchDims) {
  Input("x", {2, 3, 4});
  model_.Input("at", {"2", "3", "1"}, TensorProto::INT64);
  inputs_["at"] = HostTensor::Of<int64_t>({2, 3, 1}, {0, 3, -1, 1, 2, -4});
  SetInt(Node("GatherElements", {"x", "at"}), "axis", -1);
  Graph graph = Imported({"y"});
  for (const auto& op : graph.ops()) {
    if (op->name() == "gather_nd") {
      EXPECT_EQ(op->attrs.Int("batch_dims"), 2);
    }
  }
  EXPECT_EQ(CountOps(graph, "gather_nd"), 1);
  HostTensor y = Evaluate()[0];
  ASSERT_EQ(y.shape(), (Shape{2, 3, 1}));
  const int64_t at[] = {0, 3, 3, 1, 2, 0};
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(y.AsDouble(i), inputs_["x"].AsDouble(i * 4 + at[i])) << i;
  }
}

TEST_F(IndexConverters, IndexOutOfRangeIsRefused) {
  Input("x", {3});
  Integers("at", {3}, true);
  Node("Gather", {"x", "at"});
  ExpectRefused("E1303", "out of range");
}

// Tuples that count beyond a dim are no rows of the next one.
TEST_F(IndexConverters, TuplesOutOfRangeAreNotTheWhole) {
  Input("x", {2, 3});
  model_.Ints("at", {6, 2}, {0, 0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5});
  Node("GatherND", {"x", "at"});
  EXPECT_EQ(CountOps(Imported({"y"}), "gather_nd"), 1);
}

}  // namespace
}  // namespace shardc::import_testing
