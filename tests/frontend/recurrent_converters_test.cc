// RNN, GRU and LSTM: what the node tests of tests/conformance do not reach.
#include <string>
#include <vector>

#include "tests/frontend/converters_testing.h"

namespace shardc::import_testing {
namespace {

class RecurrentConverters : public ConverterTest {};

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
  SetInt(node("LSTM", {2, 5, 3}, {1, 4, 1}), "input_forget", 1);
  ExpectRefused("E1301", "LSTM with input_forget is not supported");
  auto activation = [&](const std::vector<std::string>& names) {
    auto* a = node("RNN", {2, 5, 3}, {1, 4, 4}).add_attribute();
    a->set_name("activations");
    a->set_type(onnx::AttributeProto::STRINGS);
    for (const std::string& name : names) a->add_strings(name);
  };
  activation({"Tanh", "Tanh"});
  ExpectRefused("E1303", "RNN needs 1 activations and has 2");
  activation({"Affine"});
  ExpectRefused("E1301", "the activation \"Affine\" of RNN is not supported");
}

}  // namespace
}  // namespace shardc::import_testing
