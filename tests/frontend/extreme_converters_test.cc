// Attributes and operands of any numbers and shapes: refused, or meant as they stand; never what an
// overflow or a dim that is not there makes of them.
#include <limits>

#include "tests/frontend/converters_testing.h"

namespace shardc::import_testing {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

class ExtremeConverters : public ConverterTest {
 protected:
  NodeProto& Microsoft(const std::string& op, const std::vector<std::string>& inputs) {
    model_.Opset("com.microsoft", 1);
    NodeProto& node = Node(op, inputs);
    node.set_domain("com.microsoft");
    return node;
  }
  // An input that is one number.
  void Scalar(const std::string& name) {
    Input(name, {});
    model_.graph.mutable_input()->rbegin()->mutable_type()->mutable_tensor_type()->mutable_shape();
  }
  // y is of integers.
  void ExpectIntegers(const Ints& expected) {
    EXPECT_EQ(Evaluate()[0],
              HostTensor::Of<int64_t>({static_cast<int64_t>(expected.size())}, expected));
  }
};

TEST_F(ExtremeConverters, RangeOfIntegersIsExact) {
  const int64_t big = (int64_t{1} << 53) + 1;  // which is no double
  struct Case {
    int64_t start, limit, delta;
    Ints expected;
  };
  const Case cases[] = {{big, big + 2, 1, {big, big + 1}},
                        {kMax - 1, kMax, kMax, {kMax - 1}},
                        {kMax, kMin, kMin, {kMax, -1}},
                        {kMin, kMax, kMax, {kMin, -1, kMax - 1}},
                        {3, -4, -3, {3, 0, -3}},
                        {3, 3, 1, {}},
                        {3, 4, -1, {}}};
  for (const Case& c : cases) {
    SCOPED_TRACE(StrCat(c.start, " to ", c.limit, " by ", c.delta));
    Restart();
    Integers("start", {c.start}, true);
    Integers("limit", {c.limit}, true);
    Integers("delta", {c.delta}, true);
    Node("Range", {"start", "limit", "delta"});
    ExpectIntegers(c.expected);
  }
}

TEST_F(ExtremeConverters, RangeOfTooManyIsRefused) {
  Integers("start", {kMin}, true);
  Integers("limit", {kMax}, true);
  Integers("delta", {1}, true);
  Node("Range", {"start", "limit", "delta"});
  ExpectRefused("E1303", "Range has");
}

TEST_F(ExtremeConverters, PadsOfAnySize) {
  for (const auto& [before, after] : {std::pair{int64_t{0}, kMax}, {kMin, kMin}, {kMax, kMax}}) {
    for (const char* mode : {"constant", "edge", "reflect", "wrap"}) {
      SCOPED_TRACE(StrCat(mode, " ", before, " ", after));
      Restart();
      Input("x", {5});
      Integers("pads", {before, after});
      SetString(Node("Pad", {"x", "pads"}), "mode", mode);
      ExpectRefused("E1303", "does not fit a dim of size 5");
    }
  }
}

TEST_F(ExtremeConverters, PadsThatWouldBeWrittenOutAreBounded) {
  Input("x", {5});
  Integers("pads", {0, int64_t{1} << 40});
  SetString(Node("Pad", {"x", "pads"}), "mode", "edge");
  ExpectRefused("E1301", "in mode edge is not supported");
}

// The number is kept as a double.
TEST_F(ExtremeConverters, PadsWithANumberThatIsNotExactAreRefused) {
  for (const auto& [number, exact] : {std::pair{kMax, false}, {kMin, true}}) {
    Restart();
    Integers("x", {1, 2});
    Integers("pads", {0, 1});
    Integers("number", {number}, true);
    Node("Pad", {"x", "pads", "number"});
    if (exact) {
      EXPECT_EQ(Evaluate()[0], HostTensor::Of<int64_t>({3}, {1, 2, kMin}));
    } else {
      ExpectRefused("E1306", "which is no double");
    }
  }
}

TEST_F(ExtremeConverters, TileOfTooMany) {
  Input("x", {4});
  Integers("repeats", {int64_t{1} << 62});
  Node("Tile", {"x", "repeats"});
  ExpectRefused("E1303", "repeated");
}

TEST_F(ExtremeConverters, EyeBeyondTheMatrixIsEmpty) {
  for (int64_t k : {kMin, kMax}) {
    Restart();
    Input("x", {2, 2});
    SetInt(Node("EyeLike", {"x"}), "k", k);
    EXPECT_EQ(Evaluate()[0], HostTensor(DType::kF64, {2, 2}));
  }
}

TEST_F(ExtremeConverters, OneHotOfAnyDepth) {
  model_.Input("x", {"3"}, TensorProto::INT64);
  Integers("depth", {int64_t{1} << 61}, true);
  Integers("values", {0, 1});
  Node("OneHot", {"x", "depth", "values"});
  ExpectRefused("E1303", "depth");
}

TEST_F(ExtremeConverters, OneHotOfOneValue) {
  model_.Input("x", {"3"}, TensorProto::INT64);
  Integers("depth", {4}, true);
  Integers("values", {1}, true);
  Node("OneHot", {"x", "depth", "values"});
  ExpectRefused("E1303", "shape [] has no dim 0");
}

TEST_F(ExtremeConverters, SplitIntoAnotherNumberOfOutputs) {
  for (int64_t size : {0, 5}) {
    for (int64_t count : {int64_t{2}, kMax, kMin}) {
      Restart(18);
      Input("x", {size});
      SetInt(Node("Split", {"x"}), "num_outputs", count);
      ExpectRefused("E1303", "but 1 outputs");
    }
  }
}

TEST_F(ExtremeConverters, SplitThatLeavesARestIsRefused) {
  Input("x", {5});
  Integers("sizes", {0, 2});
  Node("Split", {"x", "sizes"}, {"y", "z"});
  ExpectRefused("E1303", "do not fit");
}

TEST_F(ExtremeConverters, ConstantsThatAreScatteredDoNotOverflow) {
  for (const char* reduction : {"add", "mul"}) {
    Restart(18);
    Integers("data", {kMax, 1});
    Integers("at", {0});
    Integers("updates", {kMax});
    SetString(Node("ScatterElements", {"data", "at", "updates"}), "reduction", reduction);
    ExpectRefused("E1306", "overflows");
  }
}

TEST_F(ExtremeConverters, DftOfAnyLength) {
  Restart(20);
  Input("x", {1, 0, 1});
  Integers("length", {int64_t{1} << 62}, true);
  Integers("axis", {1}, true);
  Node("DFT", {"x", "length", "axis"});
  ExpectRefused("E1301", "too long");
}

TEST_F(ExtremeConverters, AnAxisOfManyIsGivenTwice) {
  Input("x", {4});
  Integers("axes", {1, 2, 3, 1});
  Node("Unsqueeze", {"x", "axes"});
  ExpectRefused("E1303", "axis 1 is given twice");
}

// Heads, and widths of q, k and v, whose sum overflows to what would fit, or to nothing.
TEST_F(ExtremeConverters, HeadsAndSizesOfAnyNumber) {
  Input("x", {1, 4, 24});
  Integers("last", {3});
  Integers("total", {4});
  NodeProto& grouped = Microsoft("GroupQueryAttention", {"x", "", "", "", "", "last", "total"});
  SetInt(grouped, "num_heads", 2);
  SetInt(grouped, "kv_num_heads", kMax);
  ExpectRefused("E1303", "are no q, k and v");

  Restart();
  Input("x", {1, 4, 8});
  Input("w", {8, 24});
  SetInts(Microsoft("Attention", {"x", "w"}), "qkv_hidden_sizes", {kMax, kMax, 26});
  ExpectRefused("E1303", "are no q, k and v");
}

TEST_F(ExtremeConverters, NumbersWhereTablesAreMeant) {
  Input("x", {1, 4, 8});
  Integers("at", {0});
  Scalar("cos");
  Scalar("sin");
  Microsoft("RotaryEmbedding", {"x", "at", "cos", "sin"});
  ExpectRefused("E1303", "have to be tables");

  Restart();
  Scalar("x");
  Scalar("b");
  Microsoft("BiasSplitGelu", {"x", "b"});
  ExpectRefused("E1303", "even last dim");

  Restart();
  model_.Input("ids", {"2", "4"}, TensorProto::INT32);
  Input("words", {8, 4});
  Scalar("positions");
  Input("weight", {4});
  Input("bias", {4});
  Microsoft("EmbedLayerNormalization", {"ids", "", "words", "positions", "", "weight", "bias"});
  ExpectRefused("E1303", "the positions have to be a table");
}

// Longer than any stack is deep.
TEST_F(ExtremeConverters, ChainsOfAnyLengthFromAParameter) {
  constexpr int kLength = 100'000;
  Input("x", {4});
  TensorProto* w = model_.graph.add_initializer();
  w->set_name("v0");
  w->set_data_type(TensorProto::DOUBLE);
  w->add_dims(4);
  for (int i = 0; i < 4; ++i) w->add_double_data(i);
  for (int i = 0; i < kLength; ++i) {
    Node("Identity", {StrCat("v", i)}, {StrCat("v", i + 1)});
  }
  Node("Add", {"x", StrCat("v", kLength)});
  const Graph graph = Imported({"y"});
  ASSERT_EQ(graph.Params().size(), 1u);
  EXPECT_EQ(graph.Params()[0]->attrs.String("name"), "v0");
}

}  // namespace
}  // namespace shardc::import_testing
