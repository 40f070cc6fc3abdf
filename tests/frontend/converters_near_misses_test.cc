// Nodes for which there is a shorter form but for one thing.
#include <string>
#include <vector>

#include "tests/frontend/converters_testing.h"

namespace shardc::import_testing {
namespace {

class ConvertersNearMisses : public ConverterTest {
 protected:
  void Number(const std::string& name, int type, double value) {
    TensorProto* t = model_.graph.add_initializer();
    t->set_name(name);
    t->set_data_type(type);
    if (type == TensorProto::FLOAT || type == TensorProto::DOUBLE) {
      type == TensorProto::FLOAT ? t->add_float_data(static_cast<float>(value))
                                 : t->add_double_data(value);
    } else {
      t->add_int32_data(static_cast<int>(value));
    }
  }
};

TEST_F(ConvertersNearMisses, ADropoutThatIsToldNotToTrainDropsNothing) {
  Input("x", {64});
  Number("ratio", TensorProto::DOUBLE, 0.5);
  Number("training", TensorProto::BOOL, 0);
  Node("Dropout", {"x", "ratio", "training"});
  EXPECT_EQ(Evaluate()[0], Numbers({64}));
}

// Side by side they would lie but for what is left out within them.
TEST_F(ConvertersNearMisses, DilatedWindowsWhoseStrideIsTheirSize) {
  for (bool conv : {false, true}) {
    Restart(19);
    Input("x", {1, 1, 6});
    inputs_["x"] = HostTensor::Of<double>({1, 1, 6}, {1, 5, 2, 8, 3, 9});
    if (conv) Input("w", {1, 1, 2});
    inputs_["w"] = HostTensor::Of<double>({1, 1, 2}, {1, 10});
    NodeProto& node = Node(conv ? "Conv" : "MaxPool", conv ? Strings{"x", "w"} : Strings{"x"});
    SetInts(node, "kernel_shape", {2});
    SetInts(node, "strides", {2});
    SetInts(node, "dilations", {2});
    const auto expected = conv ? std::vector<double>{21, 32} : std::vector<double>{2, 3};
    EXPECT_EQ(Evaluate()[0], HostTensor::Of<double>({1, 1, 2}, expected)) << conv;
  }
}

TEST_F(ConvertersNearMisses, CodesThatAreReadWithAnotherZeroPoint) {
  model_.proto.mutable_opset_import(0)->set_version(19);
  model_.Input("x", {"2"}, TensorProto::FLOAT);
  inputs_["x"] = HostTensor::Of<float>({2}, {1, -2});
  Number("scale", TensorProto::FLOAT, 0.5);
  Number("zero", TensorProto::UINT8, 10);
  Number("other", TensorProto::UINT8, 5);
  Node("QuantizeLinear", {"x", "scale", "zero"}, {"codes"});
  Node("DequantizeLinear", {"codes", "scale", "other"});
  EXPECT_EQ(Evaluate()[0], HostTensor::Of<float>({2}, {3.5, 0.5}));
}

TEST_F(ConvertersNearMisses, PlacesThatFillABoxInAnotherOrder) {
  Input("x", {2, 2});
  Input("u", {4}, 9);
  model_.Ints("at", {4, 2}, {0, 0, 1, 0, 0, 1, 1, 1});
  Node("ScatterND", {"x", "at", "u"});
  const HostTensor y = Evaluate()[0], &u = inputs_["u"];
  EXPECT_EQ(y, HostTensor::Of<double>(
                   {2, 2}, {u.AsDouble(0), u.AsDouble(2), u.AsDouble(1), u.AsDouble(3)}));
}

TEST_F(ConvertersNearMisses, PositionsThatBeginLikeATransposition) {
  Input("x", {4});
  Integers("at", {0, 2, 3, 1});
  Node("Gather", {"x", "at"});
  const HostTensor y = Evaluate()[0], &x = inputs_["x"];
  EXPECT_EQ(
      y, HostTensor::Of<double>({4}, {x.AsDouble(0), x.AsDouble(2), x.AsDouble(3), x.AsDouble(1)}));
}

// A shorter mask hides the keys behind it; but one column is for every key.
TEST_F(ConvertersNearMisses, AMaskOfOneColumn) {
  model_.proto.mutable_opset_import(0)->set_version(23);
  for (const char* name : {"q", "k", "v"}) Input(name, {1, 2, 3, 4}, name[0]);
  Input("mask", {3, 1});
  Node("Attention", {"q", "k", "v", "mask"}, {"y"});
  Node("Attention", {"q", "k", "v"}, {"z"});
  const auto out = Evaluate({"y", "z"});
  for (int64_t i = 0; i < out[0].num_elements(); ++i) {
    EXPECT_NEAR(out[0].AsDouble(i), out[1].AsDouble(i), 1e-12) << i;
  }
}

// The numbers are those of ONNX Runtime 1.32; later it has modes, of which the defaults are others.
TEST_F(ConvertersNearMisses, AResizeThatHasNoModesYet) {
  Restart(10);
  Input("x", {1, 1, 4});
  TensorProto* scales = model_.graph.add_initializer();
  scales->set_name("scales");
  scales->set_data_type(TensorProto::FLOAT);
  scales->add_dims(3);
  for (float scale : {1.0f, 1.0f, 0.75f}) scales->add_float_data(scale);
  Node("Resize", {"x", "scales"});
  const HostTensor y = Evaluate()[0], &x = inputs_["x"];
  EXPECT_EQ(y, HostTensor::Of<double>({1, 1, 3}, {x.AsDouble(0), x.AsDouble(2), x.AsDouble(3)}));
}

}  // namespace
}  // namespace shardc::import_testing
