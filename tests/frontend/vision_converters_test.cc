// Pools, BatchNormalization, Resize, ConvTranspose, DepthToSpace and SpaceToDepth: what the node
// tests of tests/conformance do not reach. Gradients of pools: node_gradients_test.cc.
#include <cstdint>
#include <limits>
#include <string>

#include "tests/frontend/converters_testing.h"

namespace shardc::import_testing {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

class VisionConverters : public ConverterTest {};

TEST_F(VisionConverters, BatchNormalizationOfHalvesHasStatisticsOfF32) {
  model_.Input("x", {"1", "2"}, TensorProto::FLOAT16);
  auto halves = [](const Shape& shape, double a, double b) {
    HostTensor t(DType::kF16, shape);
    t.SetDouble(0, a), t.SetDouble(1, b);
    return t;
  };
  inputs_["x"] = halves({1, 2}, 3, -1);
  for (const char* name : {"s", "b"}) {
    model_.Input(name, {"2"}, TensorProto::FLOAT16);
    inputs_[name] = halves({2}, 2, 1);
  }
  for (const char* name : {"m", "v"}) {
    model_.Input(name, {"2"}, TensorProto::FLOAT);
    inputs_[name] = HostTensor::Of<float>({2}, {1, 4});
  }
  SetFloat(Node("BatchNormalization", {"x", "s", "b", "m", "v"}), "epsilon", 0);
  EXPECT_EQ(Evaluate()[0], halves({1, 2}, 6, -1.5));
}

// Whatever pads says beside it: ONNX Runtime 1.32 gives this shape.
TEST_F(VisionConverters, WindowsThatAreValidArePaddedByNothing) {
  Input("x", {1, 1, 5});
  NodeProto& pool = Node("MaxPool", {"x"});
  SetString(pool, "auto_pad", "VALID");
  SetInts(pool, "kernel_shape", {3});
  SetInts(pool, "pads", {1, 1});
  EXPECT_EQ(Evaluate()[0].shape(), (Shape{1, 1, 3}));
}

// A stride beyond the dim is one window, as of the pools of a small clip.
TEST_F(VisionConverters, AWindowMayHaveAStrideBeyondItsInput) {
  for (const char* op : {"MaxPool", "AveragePool", "Conv"}) {
    Restart(19);
    Input("x", {1, 1, 2, 4});
    inputs_["x"] = HostTensor::Of<double>({1, 1, 2, 4}, {1, 2, 3, 4, 5, 6, 7, 8});
    const bool conv = std::string(op) == "Conv";
    if (conv) Input("w", {1, 1, 1, 1});
    inputs_["w"] = HostTensor::Of<double>({1, 1, 1, 1}, {1});
    NodeProto& node = Node(op, conv ? Strings{"x", "w"} : Strings{"x"});
    SetInts(node, "kernel_shape", {1, 1});
    SetInts(node, "strides", {3, 3});
    if (!conv) SetInts(node, "dilations", {5, 5});
    EXPECT_EQ(Evaluate()[0], HostTensor::Of<double>({1, 1, 1, 2}, {1, 4})) << op;
  }
}

TEST_F(VisionConverters, PoolsThatFitNothingAreRefused) {
  Input("x", {1, 2, 5});
  Node("MaxPool", {"x"});
  ExpectRefused("E1303", "the kernel_shape of MaxPool does not fit");
  Restart();
  Input("x", {1, 2, 5});
  SetInts(Node("AveragePool", {"x"}), "kernel_shape", {7});
  ExpectRefused("E1303", "the kernel of AveragePool is larger than its input");
  Restart();
  Input("x", {2, 5});
  Node("GlobalAveragePool", {"x"});
  ExpectRefused("E1303", "floats with a batch, channels and spatial dims");
  Restart();
  Input("x", {1, 1, 1000});
  SetInts(Node("MaxPool", {"x"}), "kernel_shape", {300});
  ExpectRefused("E1301", "windows of 300 that overlap");
  Restart();
  for (const char* name : {"x", "s", "b", "m", "v"})
    Input(name, name[0] == 'x' ? Shape{2, 3} : Shape{2});
  Node("BatchNormalization", {"x", "s", "b", "m", "v"});
  ExpectRefused("E1303", "there are 3 channels");
}

TEST_F(VisionConverters, ResizesThatAreRefused) {
  auto resize = [&](const std::string& name, const std::string& value, const Ints& sizes) {
    Restart(18);
    Input("x", {1, 1, 4});
    Integers("sizes", sizes);
    NodeProto& node = Node("Resize", {"x", "", "", "sizes"});
    if (!name.empty()) SetString(node, name, value);
  };
  resize("coordinate_transformation_mode", "tf_crop_and_resize", {1, 1, 8});
  ExpectRefused("E1301", "the coordinates \"tf_crop_and_resize\"");
  resize("mode", "sharp", {1, 1, 8});
  ExpectRefused("E1303", "there is no mode \"sharp\"");
  resize("nearest_mode", "far", {1, 1, 8});
  ExpectRefused("E1303", "there is no nearest_mode \"far\"");
  resize("keep_aspect_ratio_policy", "some", {1, 1, 8});
  ExpectRefused("E1303", "there is no keep_aspect_ratio_policy \"some\"");
  resize("", "", {1, 8});
  ExpectRefused("E1303", "2 sizes or scales for 3 dims");
  resize("", "", {1, 1, 0});
  ExpectRefused("E1303", "a dim of size 0");
  resize("", "", {1, 1, int64_t{1} << 40});
  ExpectRefused("E1303", "a dim of size 1099511627776");
  resize("keep_aspect_ratio_policy", "not_smaller", {1, 1, kMax / 2});
  ExpectRefused("E1303", "a dim of size");
  Restart(18);
  Input("x", {1, 1, 4});
  model_.Floats("scales", {3}, {1, 1, 0.1f});
  Node("Resize", {"x", "", "scales"});
  ExpectRefused("E1303", "a dim of 4 cannot be scaled");
  for (const std::string how : {"nearest", "linear"}) {
    Restart(18);
    Input("x", {2, 0});
    Integers("sizes", {2, 3});
    SetString(Node("Resize", {"x", "", "", "sizes"}), "mode", how);
    ExpectRefused("E1303", "a dim without elements cannot be resized");
  }
}

// The numbers are ONNX Runtime 1.32's.
TEST_F(VisionConverters, ChannelsBecomePlacesAndBack) {
  Input("x", {1, 8, 1, 2});
  inputs_["x"] =
      HostTensor::Of<double>({1, 8, 1, 2}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
  for (const char* mode : {"DCR", "CRD"}) {
    NodeProto& node = Node("DepthToSpace", {"x"}, {mode});
    SetInt(node, "blocksize", 2);
    SetString(node, "mode", mode);
  }
  SetInt(Node("SpaceToDepth", {"DCR"}, {"back"}), "blocksize", 2);
  auto out = Evaluate({"DCR", "CRD", "back"});
  EXPECT_EQ(out[0], HostTensor::Of<double>({1, 2, 2, 4}, {0, 4, 1, 5, 8, 12, 9, 13,  //
                                                          2, 6, 3, 7, 10, 14, 11, 15}));
  EXPECT_EQ(out[1], HostTensor::Of<double>({1, 2, 2, 4}, {0, 2, 1, 3, 4, 6, 5, 7,  //
                                                          8, 10, 9, 11, 12, 14, 13, 15}));
  EXPECT_EQ(out[2], inputs_["x"]);
}

TEST_F(VisionConverters, TransposedConvsThatDoNotFitAreRefused) {
  auto node = [&](const Shape& x, const Shape& w) -> NodeProto& {
    Restart();
    Input("x", x);
    Input("w", w);
    Input("b", {3});
    return Node("ConvTranspose", {"x", "w", "b"});
  };
  node({1, 6, 4}, {3, 2, 1});
  ExpectRefused("E1303",
                "the weight of ConvTranspose takes 3 channels in 1 group, its input has 6");
  SetInt(node({1, 6, 4}, {6, 2, 1}), "group", 4);
  ExpectRefused("E1303", "takes 6 channels in 4 groups");
  node({1, 6, 4}, {6, 2, 1});
  ExpectRefused("E1303", "the bias of ConvTranspose has shape [3], its result 2 channels");
  SetInts(node({1, 6, 4}, {6, 3, 3}), "pads", {3, 3});
  ExpectRefused("E1303", "the pads of ConvTranspose leave nothing of its result");
  SetInts(node({1, 6, 4}, {6, 3, 3}), "output_padding", {-1});
  ExpectRefused("E1303", "the input and output_padding of ConvTranspose do not fit");
  SetInts(node({1, 6, 4}, {6, 3, 3}), "output_shape", {int64_t{1} << 40});
  ExpectRefused("E1303", "there is no output_shape of 1099511627776");
  SetInts(node({1, 6, 4}, {6, 3, 3}), "output_shape", {-kMax});
  ExpectRefused("E1303", "there is no output_shape of -9223372036854775807");
}

}  // namespace
}  // namespace shardc::import_testing
