// RNN, GRU and LSTM: what the node tests of tests/conformance do not reach.
#include <string>
#include <vector>

#include "tests/frontend/converters_testing.h"

namespace shardc::import_testing {
namespace {

class RecurrentConverters : public ConverterTest {};

void SetFloats(NodeProto& node, const std::string& name, const std::vector<float>& values) {
  auto* a = node.add_attribute();
  a->set_name(name);
  a->set_type(onnx::AttributeProto::FLOATS);
  for (float v : values) a->add_floats(v);
}

void SetActivations(NodeProto& node, const std::vector<std::string>& names,
                    const std::vector<float>& alphas, const std::vector<float>& betas) {
  auto* a = node.add_attribute();
  a->set_name("activations");
  a->set_type(onnx::AttributeProto::STRINGS);
  for (const std::string& name : names) a->add_strings(name);
  SetFloats(node, "activation_alpha", alphas);
  SetFloats(node, "activation_beta", betas);
}

TEST_F(RecurrentConverters, RecurrentNodesThatDoNotFitAreRefused) {
  auto node = [&](const std::string& op, const Shape& x, const Shape& r) -> NodeProto& {
    Restart();
    Input("x", x);
    Input("w", {1, 4, 3});
    Input("r", r);
    return Node(op, {"x", "w", "r"});
  };
  SetString(node("RNN", {2, 5, 3}, {1, 4, 4}), "direction", "sideways");
  ExpectRefused("E1303", "there is no direction \"sideways\"");
  node("RNN", {5, 3}, {1, 4, 4});
  ExpectRefused("E1303", "the input and the weights of RNN need three dims");
  node("RNN", {2, 5, 3}, {1, 4, 4}).set_input(1, "");
  ExpectRefused("E1302", "has no input 1");
  node("RNN", {1025, 5, 3}, {1, 4, 4});
  ExpectRefused("E1301", "RNN of 1025 steps is not supported");
  SetInt(node("RNN", {2, 5, 3}, {1, 4, 4}), "hidden_size", 3);
  ExpectRefused("E1303", "the hidden_size of RNN is not that of its weights");
  node("GRU", {2, 5, 3}, {1, 4, 4});
  ExpectRefused("E1303", "input 1 of GRU has shape [1, 4, 3] instead of [1, 12, 3]");
  SetFloat(node("RNN", {2, 5, 3}, {1, 4, 4}), "clip", -1);
  ExpectRefused("E1303", "the clip of RNN is not positive");
  auto activation = [&](const std::vector<std::string>& names,
                        const std::vector<float>& alphas = {}) {
    SetActivations(node("RNN", {2, 5, 3}, {1, 4, 4}), names, alphas, {});
  };
  activation({"Tanh", "Tanh"});
  ExpectRefused("E1303", "RNN needs 1 activations and has 2");
  activation({"Gelu"});
  ExpectRefused("E1303", "RNN has no activation \"Gelu\"");
  activation({"Elu"}, {1, 2});
  ExpectRefused("E1303", "activation_alpha of RNN has 2 values for 1 activations that have one");
  activation({"Affine"}, {1});
  ExpectRefused("E1303", "RNN needs an activation_beta for affine");
}

void ExpectNear(const HostTensor& t, const std::vector<double>& expected) {
  ASSERT_EQ(t.num_elements(), std::ssize(expected));
  for (int64_t i = 0; i < t.num_elements(); ++i) {
    EXPECT_NEAR(t.AsDouble(i), expected[i], 1e-6) << i;
  }
}

// The numbers are ONNX Runtime's.
TEST_F(RecurrentConverters, ActivationsOfWhatIsClipped) {
  struct Case {
    const char* name;
    std::vector<float> alpha, beta;
    std::vector<double> expected;
  };
  const Case cases[] = {
      {"Relu", {}, {}, {0, 0, 0.5, 1.5}},
      {"Tanh", {}, {}, {-0.9051483, -0.4621171, 0.4621172, 0.9051483}},
      {"Sigmoid", {}, {}, {0.1824255, 0.3775407, 0.6224594, 0.8175744}},
      {"Affine", {2}, {0.5}, {-2.5, -0.5, 1.5, 3.5}},
      {"LeakyRelu", {}, {}, {-0.015, -0.005, 0.5, 1.5}},
      {"LeakyRelu", {0.25}, {}, {-0.375, -0.125, 0.5, 1.5}},
      {"ThresholdedRelu", {0.25}, {}, {0, 0, 0.5, 1.5}},
      {"ScaledTanh", {1.5}, {0.5}, {-0.9527235, -0.367378, 0.3673781, 0.9527233}},
      {"HardSigmoid", {}, {}, {0.2, 0.4, 0.6, 0.8}},
      {"HardSigmoid", {0.5}, {0.25}, {0, 0, 0.5, 1}},
      {"Elu", {}, {}, {-0.7768698, -0.3934693, 0.5, 1.5}},
      {"Elu", {0.5}, {}, {-0.3884349, -0.1967347, 0.5, 1.5}},
      {"Softsign", {}, {}, {-0.6, -0.3333333, 0.3333333, 0.6}},
      {"Softplus", {}, {}, {0.2014133, 0.474077, 0.974077, 1.701413}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    Restart();
    Input("x", {1, 4, 1});
    Input("w", {1, 1, 1});
    Input("r", {1, 1, 1});
    inputs_["x"] = HostTensor::Of<double>({1, 4, 1}, {-2, -0.5, 0.5, 2});
    inputs_["w"] = HostTensor::Of<double>({1, 1, 1}, {1});
    NodeProto& node = Node("RNN", {"x", "w", "r"});
    SetActivations(node, {c.name}, c.alpha, c.beta);
    SetFloat(node, "clip", 1.5);
    ExpectNear(Evaluate()[0], c.expected);
  }
}

// The numbers are ONNX Runtime's.
TEST_F(RecurrentConverters, AnLstmThatForgetsWhatItReads) {
  Input("x", {2, 1, 2}, 1);
  Input("w", {2, 8, 2}, 2);
  Input("r", {2, 8, 2}, 3);
  Input("b", {2, 16}, 4);
  NodeProto& node = Node("LSTM", {"x", "w", "r", "b"}, {"y", "h", "c"});
  SetInt(node, "input_forget", 1);
  SetString(node, "direction", "bidirectional");
  SetFloat(node, "clip", 0.03125);
  SetActivations(node, {"HardSigmoid", "Affine", "Tanh", "Sigmoid", "LeakyRelu", "Elu"},
                 {0.3f, 2, 0.25f, 0.5f}, {0.5, 0.125});
  auto out = Evaluate({"y", "h", "c"});
  ExpectNear(out[0], {0.04672677, 0.01561461, 0.01165487, 0.006879091, 0.03940915, 0.023861,
                      0.007810593, -0.0009444657});
  ExpectNear(out[1], {0.03940915, 0.023861, 0.01165487, 0.006879091});
  ExpectNear(out[2], {0.07752258, 0.046878, 0.02367971, 0.01397655});
}

}  // namespace
}  // namespace shardc::import_testing
