// Scatters, and what finds positions.
#include <algorithm>
#include <string>
#include <vector>

#include "tests/frontend/converters_testing.h"

namespace shardc::import_testing {
namespace {

class ScatterConverters : public ConverterTest {};

TEST_F(ScatterConverters, ScatterToComputedPlacesWithOtherReductionsIsRefused) {
  Input("x", {3});
  Input("u", {1});
  model_.Input("i", {"1"}, TensorProto::INT64);
  SetString(Node("ScatterElements", {"x", "i", "u"}), "reduction", "mul");
  ExpectRefused("E1304", "\"mul\" of ScatterElements needs positions that are known");
}

TEST_F(ScatterConverters, ScatterOfLargeIntegersToComputedPlacesIsRefused) {
  model_.Input("x", {"3"}, TensorProto::INT64);
  model_.Input("u", {"1"}, TensorProto::INT64);
  model_.Input("i", {"1"}, TensorProto::INT64);
  Node("ScatterElements", {"x", "i", "u"});
  ExpectRefused("E1301", "64-bit integers");
}

// Where a model sends tokens to experts by their positions.
TEST_F(ScatterConverters, PositionsFoundWhenRunningAreRefused) {
  Input("x", {3});
  Node("NonZero", {"x"});
  ExpectRefused("E1301", "known only when the model runs");
}

// x[:, 1:3] = u and x[:, 1:3] += u, as exporters write them: slices, also where the batch is cut.
TEST_F(ScatterConverters, ScatterToABoxIsOfSlices) {
  Input("x", {2, 4});
  Input("u", {2, 2});
  model_.Ints("at", {2, 2, 2}, {0, 1, 0, 2, 1, 1, 1, 2});
  Node("ScatterND", {"x", "at", "u"}, {"y"});
  SetString(Node("ScatterND", {"x", "at", "u"}, {"z"}), "reduction", "add");
  EXPECT_EQ(CountOps(Imported({"y", "z"}), "gather"), 0);
  const HostTensor x = Numbers({2, 4}), u = Numbers({2, 2});
  auto out = Evaluate({"y", "z"});
  for (int64_t i = 0; i < 8; ++i) {
    const int64_t column = i % 4;
    const bool there = column == 1 || column == 2;
    const double put = there ? u.AsDouble(i / 4 * 2 + column - 1) : 0;
    EXPECT_EQ(out[0].AsDouble(i), there ? put : x.AsDouble(i)) << i;
    EXPECT_EQ(out[1].AsDouble(i), x.AsDouble(i) + put) << i;
  }
}

// The last of several updates of a place wins; rows may be named from the end.
TEST_F(ScatterConverters, ScatterToOtherPlacesIsALookup) {
  Input("x", {4, 2});
  Input("u", {3, 2});
  model_.Ints("at", {3, 1}, {2, 0, -2});
  Node("ScatterND", {"x", "at", "u"}, {"y"});
  model_.Ints("columns", {2, 1}, {1, 0});
  Input("v", {2, 1});
  NodeProto& product = Node("ScatterElements", {"x", "columns", "v"}, {"z"});
  SetInt(product, "axis", 1);
  SetString(product, "reduction", "mul");
  auto elements = [](const HostTensor& t) {
    std::vector<double> all;
    for (int64_t i = 0; i < t.num_elements(); ++i) all.push_back(t.AsDouble(i));
    return all;
  };
  const HostTensor x = Numbers({4, 2}), u = Numbers({3, 2}), v = Numbers({2, 1});
  auto out = Evaluate({"y", "z"});
  EXPECT_EQ(elements(out[0]),
            (std::vector<double>{u.AsDouble(2), u.AsDouble(3), x.AsDouble(2), x.AsDouble(3),
                                 u.AsDouble(4), u.AsDouble(5), x.AsDouble(6), x.AsDouble(7)}));
  std::vector<double> expected = elements(x);
  expected[1] *= v.AsDouble(0);
  expected[2] *= v.AsDouble(1);
  EXPECT_EQ(elements(out[1]), expected);
}

// Of several updates of one place each counts.
TEST_F(ScatterConverters, ScatterAddsTwiceToAPlace) {
  Input("x", {3});
  Input("u", {4});
  Integers("i", {1, -2, 0, 1});
  SetString(Node("ScatterElements", {"x", "i", "u"}), "reduction", "add");
  const HostTensor x = Numbers({3}), u = Numbers({4}), y = Evaluate()[0];
  EXPECT_EQ(y.AsDouble(0), x.AsDouble(0) + u.AsDouble(2));
  EXPECT_NEAR(y.AsDouble(1), x.AsDouble(1) + u.AsDouble(0) + u.AsDouble(1) + u.AsDouble(3), 1e-15);
  EXPECT_EQ(y.AsDouble(2), x.AsDouble(2));
}

TEST_F(ScatterConverters, ScatterWithAnUnknownReductionIsRefused) {
  Input("x", {3});
  Input("u", {1});
  Integers("i", {1});
  SetString(Node("ScatterElements", {"x", "i", "u"}), "reduction", "mean");
  ExpectRefused("E1303", "no reduction");
}

TEST_F(ScatterConverters, TopKOfTooManyIsRefused) {
  Input("x", {3});
  Integers("k", {4});
  Node("TopK", {"x", "k"}, {"y", "i"});
  ExpectRefused("E1303", "takes 4 of 3 elements");
}

TEST_F(ScatterConverters, TopKOfAComputedNumberIsRefused) {
  Input("x", {3});
  model_.Input("k", {"1"}, TensorProto::INT64);
  Node("TopK", {"x", "k"}, {"y", "i"});
  ExpectRefused("E1304", "known when compiling");
}

// Also where nothing is read but the positions, and along a dim in the middle.
TEST_F(ScatterConverters, TopKAlongAnyDim) {
  Input("x", {2, 5, 3});
  Integers("k", {2});
  SetInt(Node("TopK", {"x", "k"}, {"v", "i"}), "axis", 1);
  NodeProto& smallest = Node("TopK", {"x", "k"}, {"", "j"});
  SetInt(smallest, "axis", -2);
  SetInt(smallest, "largest", 0);
  auto out = Evaluate({"v", "i", "j"});
  ASSERT_EQ(out[0].shape(), (Shape{2, 2, 3}));
  const HostTensor& x = inputs_["x"];
  for (int64_t a = 0; a < 2; ++a) {
    for (int64_t c = 0; c < 3; ++c) {
      std::vector<std::pair<double, int64_t>> line;
      for (int64_t b = 0; b < 5; ++b) line.emplace_back(x.AsDouble((a * 5 + b) * 3 + c), b);
      std::sort(line.begin(), line.end());
      for (int64_t r = 0; r < 2; ++r) {
        const int64_t at = (a * 2 + r) * 3 + c;
        EXPECT_EQ(out[0].AsDouble(at), line[4 - static_cast<size_t>(r)].first);
        EXPECT_EQ(out[1].AsInt(at), line[4 - static_cast<size_t>(r)].second);
        EXPECT_EQ(out[2].AsInt(at), line[static_cast<size_t>(r)].second);
      }
    }
  }
}

// A constant everywhere may go to one place twice; bools and integers go through floats.
TEST_F(ScatterConverters, ScatterWherePositionsAreComputed) {
  Input("x", {2, 4});
  Input("u", {2, 3});
  model_.Input("i", {"2", "3"}, TensorProto::INT64);
  inputs_["i"] = HostTensor::Of<int64_t>({2, 3}, {3, 0, -3, 1, 2, 0});
  model_.Input("twice", {"2", "3"}, TensorProto::INT64);
  inputs_["twice"] = HostTensor::Of<int64_t>({2, 3}, {3, 3, 0, 1, 1, 1});
  model_.Floats("seven", {}, {7});
  Integers("shape", {2, 3});
  SetInt(Node("Cast", {"seven"}, {"wide"}), "to", TensorProto::DOUBLE);
  Node("Expand", {"wide", "shape"}, {"sevens"});
  SetInt(Node("Cast", {"u"}, {"ui"}), "to", TensorProto::INT32);
  SetInt(Node("Cast", {"x"}, {"xi"}), "to", TensorProto::INT32);
  auto scatter = [&](const std::string& x, const std::string& i, const std::string& u,
                     const std::string& to) -> NodeProto& {
    NodeProto& node = Node("ScatterElements", {x, i, u}, {to});
    SetInt(node, "axis", 1);
    return node;
  };
  scatter("x", "i", "u", "set");
  scatter("xi", "i", "ui", "integers");
  scatter("x", "twice", "sevens", "uniform");
  SetString(scatter("x", "twice", "u", "added"), "reduction", "add");
  auto out = Evaluate({"set", "integers", "uniform", "added"});
  const HostTensor &x = inputs_["x"], &u = inputs_["u"];
  for (int64_t r = 0; r < 2; ++r) {
    double set[4], uniform[4], added[4];
    for (int64_t c = 0; c < 4; ++c) set[c] = uniform[c] = added[c] = x.AsDouble(r * 4 + c);
    for (int64_t c = 0; c < 3; ++c) {
      const int64_t i = inputs_["i"].AsInt(r * 3 + c), twice = inputs_["twice"].AsInt(r * 3 + c);
      set[i < 0 ? i + 4 : i] = u.AsDouble(r * 3 + c);
      uniform[twice] = 7;
      added[twice] += u.AsDouble(r * 3 + c);
    }
    for (int64_t c = 0; c < 4; ++c) {
      EXPECT_EQ(out[0].AsDouble(r * 4 + c), set[c]);
      EXPECT_EQ(out[1].AsInt(r * 4 + c), static_cast<int64_t>(set[c]));
      EXPECT_EQ(out[2].AsDouble(r * 4 + c), uniform[c]);
      EXPECT_DOUBLE_EQ(out[3].AsDouble(r * 4 + c), added[c]);
    }
  }
}

}  // namespace
}  // namespace shardc::import_testing
