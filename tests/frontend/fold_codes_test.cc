// Weights that nodes compute from small integers; the numbers by hand.
#include "tests/frontend/converters_testing.h"

namespace shardc::import_testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FoldCodes : public ConverterTest {
 protected:
  FoldCodes() { Begin(); }

  void Begin() { model_.Input("x", {"2", "2"}); }

  void Cast(const std::string& from, const std::string& to, int type = TensorProto::FLOAT) {
    SetInt(Node("Cast", {from}, {to}), "to", type);
  }
};

// As modules do that dequantize by themselves.
TEST_F(FoldCodes, OfCastsDifferencesAndProducts) {
  Codes("w", {2, 2}, {1, 2, 3, 4});
  Codes("zero", {2}, {1, 2});
  model_.Floats("scale", {2}, {0.5F, 2.0F});
  Cast("w", "integers", TensorProto::INT32);
  Cast("zero", "zeros", TensorProto::INT32);
  Node("Sub", {"integers", "zeros"}, {"less"});
  Cast("less", "floats");
  Node("Mul", {"floats", "scale"}, {"scaled"});
  Node("Transpose", {"scaled"}, {"turned"});
  Node("MatMul", {"x", "turned"});
  const Graph graph = Imported({"y"});
  EXPECT_EQ(graph.Params().size(), 1U);
  EXPECT_THAT(Elements(graph, "w_floats"), ElementsAre(0, 0, 1, 4));
  EXPECT_THAT(graph.notes,
              ElementsAre(HasSubstr("1 tensor of floats that nodes compute of small "
                                    "integers is taken for the file's own: 'w_floats'")));
}

TEST_F(FoldCodes, OfComputedScales) {
  Codes("w", {2, 2}, {1, 2, 3, 4});
  model_.Floats("scale", {}, {0.5F});
  model_.Floats("factor", {}, {4.0F});
  Node("Mul", {"scale", "factor"}, {"product"});
  Node("DequantizeLinear", {"w", "product"}, {"floats"});
  Node("MatMul", {"x", "floats"});
  EXPECT_THAT(Elements(Imported({"y"}), "w_floats"), ElementsAre(2, 4, 6, 8));
}

// Two weights of four bits lie in each integer of 32.
TEST_F(FoldCodes, OfPackedIntegers) {
  Restart(18);
  Begin();
  Codes("w", {2, 2}, {0x21, 0x43, 0x65, 0x07}, TensorProto::INT32);
  Codes("mask", {}, {15}, TensorProto::INT32);
  Node("BitwiseAnd", {"w", "mask"}, {"low"});
  Cast("low", "floats");
  Node("MatMul", {"x", "floats"});
  EXPECT_THAT(Elements(Imported({"y"}), "w_floats"), ElementsAre(1, 3, 5, 7));
}

// A codebook of numbers.
TEST_F(FoldCodes, OfNumbersThatCodesStandFor) {
  Codes("w", {2, 2}, {1, 2, 0, 2});
  model_.Floats("book", {3}, {0.5F, 2.0F, 8.0F});
  model_.Floats("scale", {2}, {1.0F, 3.0F});
  Cast("w", "indices", TensorProto::INT64);
  Node("Gather", {"book", "indices"}, {"floats"});
  Node("Mul", {"floats", "scale"}, {"scaled"});
  Node("MatMul", {"x", "scaled"});
  const Graph graph = Imported({"y"});
  EXPECT_THAT(Elements(graph, "w_floats"), ElementsAre(2, 24, 0.5, 24));
  EXPECT_EQ(graph.Params().size(), 1U);
}

// Positions or buckets of distances as small integers: their table is what is trained.
TEST_F(FoldCodes, RowsThatIntegersChooseStayThoseOfATable) {
  Codes("positions", {2}, {2, 1}, TensorProto::INT16);
  model_.Floats("table", {3, 2}, {1, 2, 3, 4, 5, 6});
  model_.Floats("factor", {}, {0.5F});
  Cast("positions", "rows", TensorProto::INT64);
  Node("Gather", {"table", "rows"}, {"chosen"});
  Node("Mul", {"chosen", "factor"}, {"scaled"});
  Node("Add", {"x", "scaled"});
  const Graph graph = Imported({"y"});
  EXPECT_THAT(Elements(graph, "table"), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(graph.Params().size(), 1U);
}

TEST_F(FoldCodes, PlacesInATableAreNoWeightThatIsNotTrained) {
  Codes("buckets", {2, 2}, {0, 1, 2, 0});
  model_.Floats("table", {3, 2}, {1, 2, 3, 4, 5, 6});
  Cast("buckets", "rows", TensorProto::INT64);
  Node("Gather", {"table", "rows"}, {"chosen"});
  Node("Add", {"x", "chosen"});
  EXPECT_TRUE(Imported({"y"}).notes.empty());
}

TEST_F(FoldCodes, ALookupWithoutATableIsRefused) {
  Codes("rows", {2}, {1, 0});
  Node("Gather", {"", "rows"}, {"chosen"});
  Node("Add", {"x", "chosen"});
  ExpectRefused("E1301", "");
}

// A number for each group of channels.
TEST_F(FoldCodes, NumbersOfAVectorThatIntegersChooseStayThose) {
  Codes("groups", {2}, {2, 1});
  model_.Floats("gates", {3}, {1, 2, 3});
  model_.Floats("one", {}, {1});
  Cast("groups", "indices", TensorProto::INT64);
  Node("Gather", {"gates", "indices"}, {"chosen"});
  Node("Add", {"chosen", "one"}, {"factors"});
  Node("Mul", {"x", "factors"});
  const Graph graph = Imported({"y"});
  EXPECT_TRUE(graph.Params().empty());
  EXPECT_THAT(graph.notes, ElementsAre(HasSubstr("not trained: 'gates'")));
}

// Which of a weight's elements are kept, say.
TEST_F(FoldCodes, WhatScalesAWeightIsNone) {
  Codes("kept", {2, 2}, {1, 0, 1, 1});
  model_.Floats("w", {2, 2}, {1, 2, 3, 4});
  Cast("kept", "floats");
  Node("Mul", {"floats", "w"}, {"pruned"});
  Node("MatMul", {"x", "pruned"});
  const Graph graph = Imported({"y"});
  EXPECT_THAT(Elements(graph, "w"), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(graph.Params().size(), 1U);
}

// What is next to what, of which sums are made.
TEST_F(FoldCodes, AMaskIsNoWeight) {
  Codes("next_to", {2, 2}, {0, 1, 1, 1});
  Cast("next_to", "floats");
  Node("MatMul", {"x", "floats"});
  const Graph graph = Imported({"y"});
  EXPECT_TRUE(graph.Params().empty());
  EXPECT_TRUE(graph.notes.empty());
}

TEST_F(FoldCodes, AnAdapterStaysBesideTheWeight) {
  Codes("w", {2, 2}, {1, 2, 3, 4});
  model_.Floats("scale", {2}, {0.5F, 2.0F});
  model_.Floats("a", {2, 1}, {1, 2});
  model_.Floats("b", {1, 2}, {3, 4});
  Cast("w", "floats");
  Node("Mul", {"floats", "scale"}, {"scaled"});
  Node("MatMul", {"a", "b"}, {"adapter"});
  Node("Add", {"scaled", "adapter"}, {"adapted"});
  Node("MatMul", {"x", "adapted"});
  const Graph graph = Imported({"y"});
  EXPECT_EQ(graph.Params().size(), 3U);
  EXPECT_THAT(Elements(graph, "w_floats"), ElementsAre(0.5, 4, 1.5, 8));
}

TEST_F(FoldCodes, WeightsOfTheSameCodesAreTold) {
  Codes("w", {2, 2}, {1, 2, 3, 4});
  model_.Floats("scale", {}, {0.5F});
  model_.Floats("scale_1", {}, {2.0F});
  Cast("w", "floats");
  Node("Mul", {"floats", "scale"}, {"one"});
  Node("Mul", {"floats", "scale_1"}, {"other"});
  Node("MatMul", {"x", "one"}, {"h"});
  Node("MatMul", {"h", "other"});
  const Graph graph = Imported({"y"});
  EXPECT_EQ(graph.Params().size(), 2U);
  EXPECT_THAT(graph.notes, Contains(HasSubstr("'w_floats' and 'w_floats_1' are made of the same")));
}

// Rows that the model's inputs choose are no constants.
TEST_F(FoldCodes, CodesOfWhichNoWeightIsMadeAreTold) {
  model_.Input("rows", {"2"}, TensorProto::INT64);
  Codes("table", {3, 2}, {1, 2, 3, 4, 5, 6});
  model_.Floats("scale", {2}, {0.5F, 2.0F});
  Node("Gather", {"table", "rows"}, {"codes"});
  Cast("codes", "floats");
  Node("Mul", {"floats", "scale"}, {"scaled"});
  Node("Add", {"x", "scaled"});
  EXPECT_THAT(Imported({"y"}).notes, Contains(HasSubstr("not trained: 'table'")));
}

}  // namespace
}  // namespace shardc::import_testing
