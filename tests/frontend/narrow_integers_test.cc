// Integers of types that are held in wider ones: what leaves their range wraps. The numbers are
// those of ONNX Runtime 1.32.
#include "tests/frontend/converters_testing.h"

namespace shardc::import_testing {
namespace {

class NarrowIntegers : public ConverterTest {
 protected:
  void Constant(const std::string& name, int type, const Ints& values) {
    TensorProto* t = model_.graph.add_initializer();
    t->set_name(name);
    t->set_data_type(type);
    t->add_dims(static_cast<int64_t>(values.size()));
    const bool wide = type == TensorProto::UINT32 || type == TensorProto::UINT64;
    for (int64_t v : values) {
      if (wide) {
        t->add_uint64_data(static_cast<uint64_t>(v));
      } else {
        t->add_int32_data(static_cast<int32_t>(v));
      }
    }
  }
  Ints Result() {
    HostTensor y = Evaluate()[0];
    Ints values;
    for (int64_t i = 0; i < y.num_elements(); ++i) values.push_back(y.AsInt(i));
    return values;
  }
  // Of constants a and b.
  Ints Computed(const std::string& op, int type, const Ints& a, const Ints& b) {
    Restart();
    Constant("a", type, a);
    Constant("b", type, b);
    Node(op, {"a", "b"});
    return Result();
  }
};

TEST_F(NarrowIntegers, ArithmeticOfConstantsWraps) {
  EXPECT_EQ(Computed("Add", TensorProto::UINT8, {200, 7}, {100, 1}), (Ints{44, 8}));
  EXPECT_EQ(Computed("Sub", TensorProto::UINT8, {3, 7}, {5, 1}), (Ints{254, 6}));
  EXPECT_EQ(Computed("Mul", TensorProto::INT8, {100, -128}, {3, -1}), (Ints{44, -128}));
  EXPECT_EQ(Computed("Div", TensorProto::INT8, {-128}, {2}), Ints{-64});
  EXPECT_EQ(Computed("Add", TensorProto::INT16, {32767}, {1}), Ints{-32768});
  EXPECT_EQ(Computed("Sub", TensorProto::UINT32, {1}, {2}), Ints{4294967295});
}

// The type goes with what is only arranged, and stays behind where it is cast away.
TEST_F(NarrowIntegers, TypesFollowTheValues) {
  Constant("a", TensorProto::UINT8, {200, 7});
  Integers("first", {0});
  Node("Gather", {"a", "first"}, {"some"});
  Node("Add", {"some", "some"}, {"sum"});
  SetInt(Node("Cast", {"sum"}, {"wide"}), "to", TensorProto::INT32);
  Node("Add", {"wide", "wide"}, {"more"});
  SetInt(Node("Cast", {"a"}, {"all"}), "to", TensorProto::INT32);
  Node("Mul", {"all", "more"});
  EXPECT_EQ(Result(), (Ints{57600, 2016}));
}

TEST_F(NarrowIntegers, Casts) {
  const std::vector<std::pair<int, Ints>> expected = {
      {TensorProto::INT8, {44, -1, 127, -128, 112}},
      {TensorProto::UINT8, {44, 255, 127, 128, 112}},
      {TensorProto::INT16, {300, -1, -129, 128, 4464}},
      {TensorProto::UINT16, {300, 65535, 65407, 128, 4464}},
      {TensorProto::UINT32, {300, 4294967295, 4294967167, 128, 70000}}};
  for (const auto& [type, values] : expected) {
    for (bool constant : {true, false}) {
      Restart();
      const Ints given = {300, -1, -129, 128, 70000};
      if (constant) {
        Integers("x", given);
      } else {
        model_.Input("x", {"5"}, TensorProto::INT64);
        inputs_["x"] = HostTensor::Of<int64_t>({5}, given);
      }
      SetInt(Node("Cast", {"x"}), "to", type);
      EXPECT_EQ(Result(), values) << type << constant;
    }
  }
}

TEST_F(NarrowIntegers, CastsOfFloats) {
  for (const auto& [type, values] :
       std::vector<std::pair<int, Ints>>{{TensorProto::INT8, {3, -3, -1, -56, 127}},
                                         {TensorProto::UINT8, {3, 253, 255, 200, 127}}}) {
    Restart();
    Input("x", {5});
    inputs_["x"] = HostTensor::Of<double>({5}, {3.9, -3.9, -1, 200, 127});
    Constant("like", type, {1});
    SetInt(Node("Cast", {"x"}), "to", type);
    Node("CastLike", {"x", "like"}, {"z"});
    auto out = Evaluate({"y", "z"});
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(out[0].AsInt(static_cast<int64_t>(i)), values[i]) << type << i;
    }
    EXPECT_EQ(out[0], out[1]);
  }
}

TEST_F(NarrowIntegers, WhatNoHolderHasIsRefused) {
  Constant("a", TensorProto::UINT64, {1});
  Constant("b", TensorProto::UINT64, {2});
  Node("Sub", {"a", "b"});
  ExpectRefused("E1306", "makes the uint64 -1");
  Restart();
  Input("x", {3});
  SetInt(Node("Cast", {"x"}), "to", TensorProto::UINT64);
  ExpectRefused("E1301", "uint64 that is computed from input data");
}

}  // namespace
}  // namespace shardc::import_testing
