// Scatters, and what finds positions.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/frontend/converters_testing.h"
#include "tests/ir/thrown.h"

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

// As many as data says (chosen_rows_test.cc has what may be done with them).
TEST_F(ScatterConverters, PositionsFoundWhenRunningAreNoOutput) {
  Input("x", {3});
  Node("NonZero", {"x"});
  ExpectRefused("E1301", "as many rows as are chosen when it runs");
  ExpectRefused("E1301", "export after model.set_experts_implementation(\"batched_mm\")");
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

// Into zeros nothing else is chosen from: so weights of experts, and sums over ranks of their
// gradients, pass it.
TEST_F(ScatterConverters, ScatterIntoZerosIsASum) {
  Input("x", {2, 5});
  Integers("k", {2});
  Node("TopK", {"x", "k"}, {"v", "i"});
  Integers("shape", {2, 5});
  model_.Floats("zero", {1}, {0});
  SetInt(Node("Cast", {"zero"}, {"wide"}), "to", TensorProto::DOUBLE);
  Node("Expand", {"wide", "shape"}, {"zeros"});
  SetInt(Node("ScatterElements", {"zeros", "i", "v"}), "axis", 1);
  EXPECT_EQ(CountOps(Imported({"y"}), "where"), 0);
  const HostTensor y = Evaluate()[0], x = inputs_["x"];
  for (int64_t row = 0; row < 2; ++row) {
    std::vector<double> sorted;
    for (int64_t i = 0; i < 5; ++i) sorted.push_back(x.AsDouble(row * 5 + i));
    std::sort(sorted.begin(), sorted.end());
    for (int64_t i = row * 5; i < row * 5 + 5; ++i) {
      EXPECT_EQ(y.AsDouble(i), x.AsDouble(i) >= sorted[3] ? x.AsDouble(i) : 0);
    }
  }
}

TEST_F(ScatterConverters, ScatterIntoMinusZerosKeepsThem) {
  Input("x", {2, 5});
  Integers("k", {2});
  Node("TopK", {"x", "k"}, {"v", "i"});
  Integers("shape", {2, 5});
  model_.Floats("zero", {1}, {-0.f});
  SetInt(Node("Cast", {"zero"}, {"wide"}), "to", TensorProto::DOUBLE);
  Node("Expand", {"wide", "shape"}, {"zeros"});
  SetInt(Node("ScatterElements", {"zeros", "i", "v"}), "axis", 1);
  const HostTensor y = Evaluate()[0];
  for (int64_t i = 0; i < 10; ++i) {
    if (y.AsDouble(i) == 0) {
      EXPECT_TRUE(std::signbit(y.AsDouble(i))) << i;
    }
  }
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
        EXPECT_EQ(out[2].AsInt(at), line[r].second);
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

// What k experts make of each token, added up: a sum over them, without rounds of lookups.
TEST_F(ScatterConverters, AddingEachPlaceEquallyOftenIsASum) {
  for (const Ints& at : {Ints{0, 0, 1, 1, 2, 2}, Ints{0, 1, 2, 0, 1, 2}}) {
    model_.graph.Clear();
    Input("data", {3, 4});
    Input("updates", {6, 4});
    Integers("at", at);
    Integers("shape", {6, 1});
    Node("Reshape", {"at", "shape"}, {"places"});
    SetString(Node("ScatterND", {"data", "places", "updates"}), "reduction", "add");
    EXPECT_EQ(CountOps(Imported({"y"}), "gather"), 0);
    HostTensor y = Evaluate()[0], expected = inputs_["data"];
    for (int64_t i = 0; i < 24; ++i) {
      const int64_t to = at[i / 4] * 4 + i % 4;
      expected.SetDouble(to, expected.AsDouble(to) + inputs_["updates"].AsDouble(i));
    }
    EXPECT_LT(testing::MaxError(y, expected), 1e-12);
  }
}

// Places that are known only when the model runs, and differ, against the same as constants: the
// nodes of onnx have those alone.
class TensorScatters : public ScatterConverters {
 protected:
  TensorScatters() { model_.Opset("", 24); }
  void Scatter(const std::string& at, const std::string& to, const char* mode, int64_t axis) {
    NodeProto& node = Node("TensorScatter", {"cache", "x", at}, {to});
    SetString(node, "mode", mode);
    SetInt(node, "axis", axis);
  }
};

TEST_F(TensorScatters, PlacesThatDependOnData) {
  for (const char* mode : {"linear", "circular"}) {
    for (auto [axis, s] : {std::pair<int64_t, int64_t>{2, 3}, {-2, 1}, {1, 2}}) {
      Restart(24);
      Shape cache = {3, 2, 5, 4}, x = cache;
      if (axis == 1) std::swap(cache[1], cache[2]), x = cache;
      x[axis < 0 ? axis + 4 : axis] = s;
      Input("cache", cache);
      Input("x", x, 200);
      const bool round = std::string(mode) == "circular";
      const std::vector<int64_t> places = {2, 0, round ? int64_t{4} : 1};
      model_.Ints("known", {3}, places);
      model_.Input("at", {"3"}, TensorProto::INT64);
      inputs_["at"] = HostTensor::Of<int64_t>({3}, places);
      Scatter("known", "y", mode, axis);
      Scatter("at", "z", mode, axis);
      auto out = Evaluate({"y", "z"});
      EXPECT_EQ(out[0], out[1]) << mode << axis;
      // Element by element.
      const int64_t dim = axis < 0 ? axis + 4 : axis, n = cache[dim];
      const int64_t inner = NumElements({cache.begin() + dim + 1, cache.end()});
      const int64_t of_batch = NumElements({cache.begin() + 1, cache.end()});
      HostTensor want = inputs_.at("cache");
      for (int64_t i = 0; i < inputs_.at("x").num_elements(); ++i) {
        const int64_t outer = i / (s * inner), b = outer * n * inner / of_batch;
        const int64_t place = (places[b] + i / inner % s) % n;
        want.SetDouble((outer * n + place) * inner + i % inner, inputs_.at("x").AsDouble(i));
      }
      EXPECT_EQ(out[1], want) << mode << axis;
    }
  }
}

TEST_F(TensorScatters, OneKnownPlaceIsOfSlices) {
  Input("cache", {2, 3, 5, 4});
  Input("x", {2, 3, 2, 4});
  model_.Ints("at", {2}, {2, 2});
  Scatter("at", "y", "linear", -2);
  Graph graph = Imported({"y"});
  EXPECT_EQ(CountOps(graph, "where") + CountOps(graph, "gather_nd"), 0);
  EXPECT_EQ(CountOps(graph, "concat"), 1);
}

TEST_F(TensorScatters, WhatDoesNotFitIsRefused) {
  Input("cache", {2, 3, 5, 4});
  Input("x", {2, 3, 2, 3});
  Node("TensorScatter", {"cache", "x"});
  ExpectRefused("E1303", "what is written, [2, 3, 2, 3], does not fit a cache of [2, 3, 5, 4]");
}

TEST_F(TensorScatters, PlacesOverTheEndAreRefused) {
  Input("cache", {2, 3, 5, 4});
  Input("x", {2, 3, 2, 4});
  model_.Ints("at", {2}, {2, 4});
  Scatter("at", "y", "linear", -2);
  ExpectRefused("E1303", "sequence 1 is written from place 4 on, and the last from which it fits");
}

TEST_F(TensorScatters, PlacesOfOtherSequencesAreRefused) {
  Input("cache", {2, 3, 5, 4});
  Input("x", {2, 3, 2, 4});
  model_.Ints("at", {3}, {2, 2, 2});
  Scatter("at", "y", "linear", -2);
  ExpectRefused("E1303", "one place for each of 2 sequences");
}

TEST_F(TensorScatters, AnotherModeIsRefused) {
  Input("cache", {2, 3, 5, 4});
  Input("x", {2, 3, 2, 4});
  SetString(Node("TensorScatter", {"cache", "x"}), "mode", "round");
  ExpectRefused("E1303", "there is no mode \"round\"");
}

// Of the places from which the update fits no other is taken, nor one from the end.
TEST_F(TensorScatters, PlacesOverTheEndFailWhenTheModelRuns) {
  for (int64_t place : {4, -1}) {
    Restart(24);
    Input("cache", {2, 3, 5, 4});
    Input("x", {2, 3, 2, 4});
    model_.Input("at", {"2"}, TensorProto::INT64);
    inputs_["at"] = HostTensor::Of<int64_t>({2}, {0, place});
    Scatter("at", "y", "linear", -2);
    EXPECT_EQ(testing::Thrown([&] { Evaluate(); }).id(), "E4003");
  }
}

}  // namespace
}  // namespace shardc::import_testing
