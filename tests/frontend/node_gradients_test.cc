// Gradients that are a choice: of equal elements PyTorch gives that of a maximum to the first, and
// to none that of a norm. The numbers are those of PyTorch 2.9 in f64, for the loss sum((i + 1) *
// y[i]).
#include <cmath>
#include <limits>
#include <numeric>

#include "ir/builder.h"
#include "passes/differentiate.h"
#include "tests/frontend/converters_testing.h"

namespace shardc::import_testing {
namespace {

class NodeGradients : public ConverterTest {
 protected:
  // The gradient of the model's only input.
  std::vector<double> Gradient(const HostTensor& x) {
    inputs_["x"] = x;
    Graph graph = Imported({"y"});
    Value* y = graph.FindOutput("y");
    Builder b(graph);
    HostTensor weights(DType::kF64, y->type.shape);
    for (int64_t i = 0; i < weights.num_elements(); ++i)
      weights.SetDouble(i, static_cast<double>(i + 1));
    Value* weighted = b.Make("mul", {y, b.Constant(std::move(weights))});
    Ints axes(y->type.shape.size());
    std::iota(axes.begin(), axes.end(), 0);
    Value* loss = b.Make("reduce_sum", {weighted}, {{"axes", axes}, {"keepdims", false}});
    const std::vector<Value*> inputs = {graph.FindInput("x")};
    Value* dx = Differentiate(graph, loss, inputs)[0];
    shardc::testing::Values given;
    given[inputs[0]] = x;
    const HostTensor got = shardc::testing::Interpret(graph, given).at(dx);
    std::vector<double> out;
    for (int64_t i = 0; i < got.num_elements(); ++i) out.push_back(got.AsDouble(i));
    return out;
  }
};

TEST_F(NodeGradients, OfANormAtZero) {
  Input("x", {2, 2});
  SetInts(Node("ReduceL2", {"x"}), "axes", {1});
  EXPECT_THAT(Gradient(HostTensor::Of<double>({2, 2}, {0, 0, 3, 4})),
              ::testing::Pointwise(::testing::DoubleNear(1e-12), {0., 0., 1.2, 1.6}));
}

// The statistics depend on x, too; those that the module keeps do not matter.
TEST_F(NodeGradients, OfABatchNormInTraining) {
  for (const auto& [name, numbers] :
       {std::pair("scale", Ints{1, 2}), {"shift", {3, -1}}, {"kept", {7, 9}}}) {
    model_.Ints(std::string("i_") + name, {2}, numbers);
    SetInt(model_.Node("Cast", {std::string("i_") + name}, {name}), "to",
           onnx::TensorProto::DOUBLE);
  }
  Input("x", {3, 2});
  SetInt(Node("BatchNormalization", {"x", "scale", "shift", "kept", "kept"}), "training_mode", 1);
  EXPECT_THAT(Gradient(HostTensor::Of<double>({3, 2}, {1, -2, 0.5, 4, 3, 1})),
              ::testing::Pointwise(::testing::DoubleNear(1e-6),
                                   {-1.3225990089, -0.8164972613, 1.0580665103, -0.8164945397,
                                    0.2645324986, 1.6329918010}));
}

// Where the rounded number is in range; fake_quantize_per_tensor_affine's.
TEST_F(NodeGradients, OfWhatIsRounded) {
  model_.Floats("scale32", {1}, {0.5F});
  SetInt(model_.Node("Cast", {"scale32"}, {"scale"}), "to", onnx::TensorProto::DOUBLE);
  onnx::TensorProto& zero = model_.Ints("zero", {1}, {});
  zero.set_data_type(onnx::TensorProto::INT8);
  zero.add_int32_data(1);
  Input("x", {10});
  Node("QuantizeLinear", {"x", "scale", "zero"}, {"codes"});
  Node("DequantizeLinear", {"codes", "scale", "zero"});
  EXPECT_THAT(Gradient(HostTensor::Of<double>(
                  {10}, {-70, -64.4, -64.6, -0.3, 0.3, 0.26, 62.9, 63.3, 63.6, 90})),
              ::testing::ElementsAre(0, 2, 3, 4, 5, 6, 7, 0, 0, 0));
}

// Where new weights are, and padding.
TEST_F(NodeGradients, OfActivationsAtZero) {
  const std::vector<std::pair<std::string, double>> slopes = {
      {"Softplus", 0.5},
      {"LeakyRelu", 0.01},
      {"Elu", 1},
      {"Celu", 1},
      {"Selu", 1.0507009873554805 * 1.6732632423543772},
      {"Relu", 0}};
  for (const auto& [op, slope] : slopes) {
    Restart();
    Input("x", {2});
    Node(op, {"x"});
    EXPECT_THAT(Gradient(HostTensor::Of<double>({2}, {0, 0})),
                ::testing::Pointwise(::testing::DoubleNear(1e-7), {slope, 2 * slope}))
        << op;
  }
}

TEST_F(NodeGradients, OfLimitsAtZero) {
  Input("x", {4});
  for (const auto& [name, number] : {std::pair("low", 0.), {"high", 6.}}) {
    onnx::TensorProto* limit = model_.graph.add_initializer();
    limit->set_name(name);
    limit->set_data_type(onnx::TensorProto::DOUBLE);
    limit->add_double_data(number);
  }
  Node("Clip", {"x", "low", "high"});
  EXPECT_EQ(Gradient(HostTensor::Of<double>({4}, {-1, 0, 5, 7})),
            (std::vector<double>{0, 0, 3, 0}));
}

HostTensor Ties() {
  return HostTensor::Of<double>({1, 1, 4, 5}, {0, 2, 2, 1, 0,  //
                                               2, 0, 1, 1, 0,  //
                                               0, 0, 3, 3, 0,  //
                                               1, 0, 3, 0, 0});
}

TEST_F(NodeGradients, GoToTheFirstOfEquals) {
  auto pool = [&](const Ints& kernel, const Ints& strides, const Ints& pads) {
    Restart();
    Input("x", {1, 1, 4, 5});
    NodeProto& node = Node("MaxPool", {"x"});
    SetInts(node, "kernel_shape", kernel);
    SetInts(node, "strides", strides);
    SetInts(node, "pads", pads);
    return Gradient(Ties());
  };
  using Doubles = std::vector<double>;
  EXPECT_EQ(pool({2, 2}, {2, 2}, {0, 0, 0, 0}),
            (Doubles{0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 3, 0, 0, 0, 0}));
  EXPECT_EQ(pool({3, 3}, {1, 1}, {1, 1, 1, 1}),
            (Doubles{0, 12, 4, 5, 0, 11, 0, 0, 0, 0, 0, 0, 117, 45, 0, 16, 0, 0, 0, 0}));
  EXPECT_EQ(pool({1, 5}, {1, 5}, {0, 0, 0, 0}),
            (Doubles{0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 4, 0, 0}));
  Restart();
  Input("x", {1, 1, 4, 5});
  Node("GlobalMaxPool", {"x"});
  EXPECT_EQ(Gradient(Ties()),
            (Doubles{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}));
}

TEST_F(NodeGradients, OfLongWindowsSideBySide) {
  Input("x", {1, 1, 20});
  NodeProto& node = Node("MaxPool", {"x"});
  SetInts(node, "kernel_shape", {10});
  SetInts(node, "strides", {10});
  HostTensor x(DType::kF64, {1, 1, 20});
  for (int64_t i = 0; i < 20; ++i) x.SetDouble(i, i == 3 || i == 5 ? 2 : i == 12 || i == 17);
  std::vector<double> expected(20, 0);
  expected[3] = 1, expected[12] = 2;
  EXPECT_EQ(Gradient(x), expected);
}

// Beside numbers, in front of them and behind.
TEST_F(NodeGradients, NanIsTheLargest) {
  Input("x", {1, 1, 8});
  NodeProto& node = Node("MaxPool", {"x"});
  SetInts(node, "kernel_shape", {2});
  SetInts(node, "strides", {2});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  inputs_["x"] = HostTensor::Of<double>({1, 1, 8}, {0, 1, nan, 2, 3, nan, 4, 5});
  const HostTensor y = Evaluate()[0];
  EXPECT_EQ(y.AsDouble(0), 1);
  EXPECT_TRUE(std::isnan(y.AsDouble(1)));
  EXPECT_TRUE(std::isnan(y.AsDouble(2)));
  EXPECT_EQ(y.AsDouble(3), 5);
}

}  // namespace
}  // namespace shardc::import_testing
