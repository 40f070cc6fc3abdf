// Rows that data chooses: looked up, computed one by one, and put back.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "frontend/recover.h"
#include "tests/frontend/converters_testing.h"

namespace shardc::import_testing {
namespace {

constexpr int64_t kTokens = 5, kWidth = 3, kTimes = 2;

class ChosenRows : public ConverterTest {
 protected:
  void SetUp() override {
    ConverterTest::SetUp();
    Input("x", {kTokens, kWidth});
    Input("data", {kTokens, kWidth}, 40);
    Integers("minus_one", {-1});
    Integers("zero", {0});
    Integers("one", {1});
    Integers("two", {2});
  }

  // Where `of`, an input of that shape, is positive.
  void Mask(const std::string& name, const std::string& of, const Shape& shape) {
    Input(of, shape, 100);
    TensorProto* none = model_.graph.add_initializer();
    none->set_name("none");
    none->set_data_type(TensorProto::DOUBLE);
    none->add_double_data(0);
    Node("Greater", {of, "none"}, {name});
  }
  bool Chosen(const std::string& of, int64_t i) { return inputs_.at(of).AsDouble(i) > 0; }
  // The places of a mask, [n, dims].
  void Places(const std::string& mask, const std::string& name) {
    Node("NonZero", {mask}, {name + ".dims"});
    SetInts(Node("Transpose", {name + ".dims"}, {name}), "perm", {1, 0});
  }
  // The place along one dim, [n, 1].
  void PlaceAlong(const std::string& places, const char* dim, const char* end,
                  const std::string& name) {
    Node("Slice", {places, dim, end, "one"}, {name});
  }
  double At(const std::string& input, int64_t row, int64_t column) {
    return inputs_.at(input).AsDouble(row * kWidth + column);
  }
};

// y[mask] = exp(x[mask])
TEST_F(ChosenRows, PutInPlaceOfOthers) {
  Mask("mask", "m", {kTokens});
  Places("mask", "at");
  Node("GatherND", {"x", "at"}, {"rows"});
  Node("Exp", {"rows"}, {"made"});
  Node("ScatterND", {"data", "at", "made"});
  const HostTensor y = Evaluate()[0];
  int64_t chosen = 0;
  for (int64_t t = 0; t < kTokens; ++t) {
    chosen += Chosen("m", t);
    for (int64_t d = 0; d < kWidth; ++d) {
      const double expected = Chosen("m", t) ? std::exp(At("x", t, d)) : At("data", t, d);
      EXPECT_EQ(y.AsDouble(t * kWidth + d), expected) << t << " " << d;
    }
  }
  EXPECT_GT(chosen, 0);
  EXPECT_LT(chosen, kTokens);
}

// The same, as exporters write it for a mask of rows: one of their elements.
TEST_F(ChosenRows, PutInPlaceElementByElement) {
  Mask("mask", "m", {kTokens});
  Places("mask", "at");
  Node("GatherND", {"x", "at"}, {"rows"});
  Node("Exp", {"rows"}, {"made"});
  Node("Reshape", {"made", "minus_one"}, {"elements"});
  Integers("spread", {kTokens, kWidth});
  Node("Unsqueeze", {"mask", "one"}, {"column"});
  Node("Expand", {"column", "spread"}, {"mask_of_all"});
  Places("mask_of_all", "all");
  Node("ScatterND", {"data", "all", "elements"});
  const HostTensor y = Evaluate()[0];
  for (int64_t i = 0; i < kTokens * kWidth; ++i) {
    const int64_t t = i / kWidth, d = i % kWidth;
    EXPECT_EQ(y.AsDouble(i), Chosen("m", t) ? std::exp(At("x", t, d)) : At("data", t, d)) << i;
  }
}

// Of a mask [tokens, times], or [times, tokens], the tokens' rows times weights, each token's added
// to it: as a mixture of experts has it.
class ChosenByExpert : public ChosenRows, public ::testing::WithParamInterface<bool> {
 protected:
  bool by_token() const { return GetParam(); }
  int64_t At2(int64_t t, int64_t k) const { return by_token() ? t * kTimes + k : k * kTokens + t; }
  void Rows() {
    const Shape shape = by_token() ? Shape{kTokens, kTimes} : Shape{kTimes, kTokens};
    Mask("mask", "m", shape);
    Input("w", shape, 70);
    Places("mask", "at");
    if (by_token()) {
      PlaceAlong("at", "zero", "one", "token");
    } else {
      PlaceAlong("at", "one", "two", "token");
    }
    Node("GatherND", {"x", "token"}, {"rows"});
    Node("GatherND", {"w", "at"}, {"weight"});
    Node("Unsqueeze", {"weight", "one"}, {"weights"});
    Node("Exp", {"rows"}, {"made"});
    Node("Mul", {"made", "weights"}, {"term"});
  }
  void ExpectAdded(const HostTensor& y) {
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t d = 0; d < kWidth; ++d) {
        double expected = At("data", t, d);
        for (int64_t k = 0; k < kTimes; ++k) {
          if (!Chosen("m", At2(t, k))) continue;
          expected += inputs_.at("w").AsDouble(At2(t, k)) * std::exp(At("x", t, d));
        }
        EXPECT_NEAR(y.AsDouble(t * kWidth + d), expected, 1e-12) << t << " " << d;
      }
    }
  }
};

TEST_P(ChosenByExpert, AddedByAReduction) {
  Rows();
  SetString(Node("ScatterND", {"data", "token", "term"}), "reduction", "add");
  model_.Opset("", 18);
  ExpectAdded(Evaluate()[0]);
}

// data[token] += term
TEST_P(ChosenByExpert, AddedToWhatWasThere) {
  Rows();
  Node("GatherND", {"data", "token"}, {"there"});
  Node("Add", {"there", "term"}, {"sum"});
  Node("ScatterND", {"data", "token", "sum"});
  ExpectAdded(Evaluate()[0]);
}

// index_add_, with an index for each element.
TEST_P(ChosenByExpert, AddedWithAnIndexForEachElement) {
  Rows();
  Node("Shape", {"term"}, {"shape"});
  Node("Expand", {"token", "shape"}, {"index"});
  NodeProto& scatter = Node("ScatterElements", {"data", "index", "term"});
  SetString(scatter, "reduction", "add");
  SetInt(scatter, "axis", 0);
  model_.Opset("", 18);
  ExpectAdded(Evaluate()[0]);
}

// The rows are computed once for a token, not for each of its times, and no scatter is left.
TEST_P(ChosenByExpert, AreComputedOnce) {
  Rows();
  Node("GatherND", {"data", "token"}, {"there"});
  Node("Add", {"there", "term"}, {"sum"});
  Node("ScatterND", {"data", "token", "sum"});
  Graph graph = Imported({"y"});
  RecoverPatterns(graph);
  for (const auto& op : graph.ops()) {
    if (op->name() == "exp") {
      EXPECT_EQ(op->out().num_elements(), kTokens * kWidth);
    }
    EXPECT_FALSE(op->name() == "gather" || op->name() == "gather_nd" || op->name() == "concat")
        << op->name();
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, ChosenByExpert, ::testing::Bool(), [](const auto& info) {
  return info.param ? "TokensFirst" : "TimesFirst";
});

class SomeRows : public ChosenRows {
 protected:
  void SetUp() override {
    ChosenRows::SetUp();
    Mask("mask", "m", {kTokens});
    Places("mask", "at");
    Node("GatherND", {"x", "at"}, {"rows"});
  }
};

TEST_F(SomeRows, SumOverThem) {
  Node("ReduceSum", {"rows", "zero"});
  ExpectRefused("E1301", "reduce_sum over rows that are chosen only when the model runs");
}

TEST_F(SomeRows, SoftmaxOverThem) {
  SetInt(Node("Softmax", {"rows"}), "axis", 0);
  ExpectRefused("E1301", "over rows that are chosen");
}

TEST_F(SomeRows, HowManyThereAre) {
  Node("Shape", {"rows"}, {"shape"});
  Node("Gather", {"shape", "zero"}, {"count"});
  SetInt(Node("Cast", {"count"}, {"number"}), "to", TensorProto::DOUBLE);
  Node("Mul", {"x", "number"});
  ExpectRefused("E1301", "how many rows are chosen");
}

TEST_F(SomeRows, WhetherThereAreAny) {
  Node("Shape", {"rows"}, {"shape"});
  Node("Gather", {"shape", "zero"}, {"count"});
  Node("Greater", {"count", "zero"}, {"any"});
  Node("Where", {"any", "x", "data"});
  ExpectRefused("E1301", "how many rows are chosen");
}

// Of the shape what does not count them is a number like any other.
TEST_F(SomeRows, NotHowLongEachIs) {
  Node("Shape", {"rows"}, {"shape"});
  Node("Gather", {"shape", "one"}, {"count"});
  SetInt(Node("Cast", {"count"}, {"number"}), "to", TensorProto::DOUBLE);
  Node("Mul", {"x", "number"});
  EXPECT_EQ(Evaluate()[0].AsDouble(1), At("x", 0, 1) * kWidth);
}

// Of a count not only whether it is all.
TEST_F(SomeRows, WhatFewerOfThemWouldChange) {
  Node("Shape", {"rows"}, {"shape"});
  Node("Gather", {"shape", "zero"}, {"count"});
  Node("Min", {"count", "two"}, {"least"});
  SetInt(Node("Cast", {"least"}, {"number"}), "to", TensorProto::DOUBLE);
  Node("Mul", {"x", "number"});
  ExpectRefused("E1301", "how many rows are chosen");
}

TEST_F(SomeRows, SoManyOfOthers) {
  Node("Shape", {"rows"}, {"shape"});
  Node("Gather", {"shape", "zero"}, {"count"});
  Node("Slice", {"x", "zero", "count", "zero"});
  ExpectRefused("E1301", "takes as many as rows are chosen");
}

// As many of them as there are, of other dims all.
TEST_F(SomeRows, AsManyAsThereAre) {
  Node("Shape", {"rows"}, {"shape"});
  Integers("begin", {0, 0});
  Integers("axes", {0, 1});
  Node("Slice", {"rows", "begin", "shape", "axes"}, {"same"});
  Node("ScatterND", {"data", "at", "same"});
  const HostTensor y = Evaluate()[0];
  for (int64_t i = 0; i < kTokens * kWidth; ++i) {
    const int64_t t = i / kWidth, d = i % kWidth;
    EXPECT_EQ(y.AsDouble(i), At(Chosen("m", t) ? "x" : "data", t, d)) << i;
  }
}

TEST_F(SomeRows, RoundsOfALoop) {
  Node("Size", {"at"}, {"count"});
  NodeProto& loop = Node("Loop", {"count", "", "x"});
  onnx::GraphProto body;
  for (const char* input : {"round", "goes", "carried"}) body.add_input()->set_name(input);
  for (const char* output : {"goes", "next"}) body.add_output()->set_name(output);
  NodeProto& exp = *body.add_node();
  exp.set_op_type("Exp");
  exp.add_input("carried");
  exp.add_output("next");
  onnx::AttributeProto& attr = *loop.add_attribute();
  attr.set_name("body");
  attr.set_type(onnx::AttributeProto::GRAPH);
  *attr.mutable_g() = body;
  ExpectRefused("E1301", "computes with how many rows are chosen");
}

TEST_F(SomeRows, AsManyByAsMany) {
  Node("Shape", {"rows"}, {"shape"});
  Node("Gather", {"shape", "zero"}, {"count"});
  SetInt(Node("Concat", {"count", "count"}, {"square"}), "axis", 0);
  Node("ConstantOfShape", {"square"});
  ExpectRefused("E1301", "takes as many as rows are chosen");
}

TEST_F(SomeRows, HowManyAsOutput) {
  Node("Size", {"rows"});
  ExpectRefused("E1301", "output 'y' says how many rows are chosen when it runs");
}

// The second row that is chosen is not the row of the second place.
TEST_F(SomeRows, WhatIsOtherForEachPlace) {
  Node("Trilu", {"rows"}, {"made"});
  Node("ScatterND", {"data", "at", "made"});
  ExpectRefused("E1301", "where over rows that are chosen");
}

TEST_F(SomeRows, ChosenOfChosen) {
  Input("square", {kTokens, kTokens});
  Node("Reshape", {"at", "minus_one"}, {"flat"});
  Node("GatherND", {"square", "at"}, {"some"});
  SetInt(Node("Gather", {"some", "flat"}, {"both"}), "axis", 1);
  Node("ReduceSum", {"both", "zero"});
  ExpectRefused("E1301", "Gather of chosen rows of others");
}

TEST_F(SomeRows, AsAFixedNumberOfLonger) {
  Input("square", {kTokens, kTokens});
  Node("GatherND", {"square", "at"}, {"some"});
  Integers("longer", {kTokens, -1});
  Node("Reshape", {"some", "longer"});
  ExpectRefused("E1301", "makes 5 of rows that are chosen");
}

TEST_F(SomeRows, ToPlacesOfOthers) {
  Node("Shape", {"rows"}, {"shape"});
  Node("Slice", {"shape", "zero", "one"}, {"count"});
  Node("ConstantOfShape", {"count"}, {"zeros"});
  Node("Unsqueeze", {"zero", "one"}, {"first"});
  SetInt(Node("Cast", {"one"}, {"update"}), "to", TensorProto::FLOAT);
  Node("ScatterND", {"zeros", "first", "update"}, {"set"});
  Node("ReduceSum", {"set"});
  ExpectRefused("E1301", "chosen rows to places that are not theirs");
}

// The rows that are not chosen are computed, too: of them nothing is no number, nor fails.
TEST_F(SomeRows, NothingOfTheOthers) {
  Node("Unsqueeze", {"m", "one"}, {"column"});
  Node("Mul", {"x", "x"}, {"square"});
  Node("Mul", {"square", "column"}, {"signed"});
  Node("GatherND", {"signed", "at"}, {"positive"});
  Node("GatherND", {"column", "at"}, {"weight"});
  Node("Log", {"positive"}, {"log"});
  Node("Mul", {"log", "weight"}, {"term"});
  SetString(Node("ScatterND", {"data", "at", "term"}), "reduction", "add");
  model_.Opset("", 18);
  const HostTensor y = Evaluate()[0];
  for (int64_t i = 0; i < kTokens * kWidth; ++i) {
    const int64_t t = i / kWidth, d = i % kWidth;
    const double x = At("x", t, d), m = inputs_.at("m").AsDouble(t);
    const double term = Chosen("m", t) ? m * std::log(x * x * m) : 0;
    EXPECT_NEAR(y.AsDouble(i), At("data", t, d) + term, 1e-12) << i;
  }
}

// data is added to as it is, and not in place of it.
TEST_F(SomeRows, NotWhatWasThereOfAReduction) {
  Node("GatherND", {"data", "at"}, {"there"});
  Node("Add", {"there", "rows"}, {"sum"});
  SetString(Node("ScatterND", {"data", "at", "sum"}), "reduction", "add");
  model_.Opset("", 18);
  const HostTensor y = Evaluate()[0];
  for (int64_t i = 0; i < kTokens * kWidth; ++i) {
    const int64_t t = i / kWidth, d = i % kWidth;
    const double term = Chosen("m", t) ? At("data", t, d) + At("x", t, d) : 0;
    EXPECT_NEAR(y.AsDouble(i), At("data", t, d) + term, 1e-12) << i;
  }
}

// Of integers what no other is beyond changes nothing.
TEST_F(SomeRows, LargestAndSmallestOfIntegers) {
  for (const auto type : {TensorProto::INT32, TensorProto::INT64}) {
    for (const std::string reduction : {"max", "min"}) {
      Restart(18);
      SetUp();
      const int64_t n =
          (reduction == "max" ? -1 : 1) * (type == TensorProto::INT64 ? 5'000'000'000 : 5);
      Integers("number", {n});
      Integers("all_of_it", {kTokens, kWidth});
      SetInt(Node("Cast", {"number"}, {"typed"}), "to", type);
      Node("Expand", {"typed", "all_of_it"}, {"all"});
      Node("GatherND", {"all", "at"}, {"some"});
      SetString(Node("ScatterND", {"all", "at", "some"}), "reduction", reduction);
      const HostTensor y = Evaluate()[0];
      for (int64_t i = 0; i < kTokens * kWidth; ++i) EXPECT_EQ(y.AsInt(i), n) << i;
    }
  }
}

TEST_F(SomeRows, AsOutput) {
  Node("Exp", {"rows"});
  ExpectRefused("E1301", "output 'y' has as many rows as are chosen when it runs");
}

TEST_F(SomeRows, SomeOfThem) {
  Node("Slice", {"rows", "zero", "two", "zero"});
  ExpectRefused("E1301", "rows that are chosen only when the model runs");
}

TEST_F(SomeRows, ThoseOfTwoMasks) {
  Input("n", {kTokens}, 7);
  Node("Greater", {"n", "none"}, {"other"});
  Places("other", "others");
  Node("GatherND", {"x", "others"}, {"other_rows"});
  Node("Add", {"rows", "other_rows"}, {"sum"});
  Node("ScatterND", {"data", "at", "sum"});
  ExpectRefused("E1301", "add over rows that are chosen");
}

TEST_F(SomeRows, InOtherPlaces) {
  Input("n", {kTokens}, 7);
  Node("Greater", {"n", "none"}, {"other"});
  Places("other", "others");
  Node("ScatterND", {"data", "others", "rows"});
  ExpectRefused("E1301", "ScatterND of other rows than those that are chosen");
}

// As an exporter unrolls a loop over the experts that have any tokens.
TEST_F(SomeRows, EachOfAll) {
  Integers("ones", {1, 1, 1, 1, 1});
  NodeProto& split = Node("Split", {"at", "ones"}, {"a", "b", "c", "d", "e"});
  SetInt(split, "axis", 0);
  SetInt(Node("Concat", {"e", "d", "c", "b", "a"}, {"backwards"}), "axis", 0);
  Node("GatherND", {"x", "backwards"});
  const HostTensor y = Evaluate()[0];
  ASSERT_EQ(y.shape(), (Shape{kTokens, kWidth}));
  for (int64_t i = 0; i < kTokens * kWidth; ++i) {
    EXPECT_EQ(y.AsDouble(i), At("x", kTokens - 1 - i / kWidth, i % kWidth)) << i;
  }
}

TEST_F(SomeRows, EachOfThoseOfTheExport) {
  Integers("sizes", {1, 2});
  SetInt(Node("Split", {"at", "sizes"}, {"a", "b"}), "axis", 0);
  Node("GatherND", {"x", "b"});
  ExpectRefused("E1301", "splits what data chooses of 5 into 3, as many as were chosen");
}

// Where all are chosen, what stands for places still holds none.
TEST_F(SomeRows, EachOfAllButWhatHoldsNoPlaces) {
  Integers("sizes", {2, 3});
  SetInt(Node("Split", {"at", "sizes"}, {"a", "b"}), "axis", 0);
  Integers("spread", {kTokens, kWidth});
  Node("Unsqueeze", {"mask", "one"}, {"column"});
  Node("Expand", {"column", "spread"}, {"mask_of_all"});
  Places("mask_of_all", "all");
  Node("GatherND", {"x", "all"});
  ExpectRefused("E1301", "rows that are chosen");
}

TEST_F(SomeRows, TheFirstOfThem) {
  Node("Gather", {"at", "zero"}, {"first"});
  Node("GatherND", {"data", "first"});
  ExpectRefused("E1301", "gather over rows that are chosen");
}

}  // namespace
}  // namespace shardc::import_testing
