#include "frontend/onnx/activations.h"

#include <algorithm>
#include <cctype>
#include <iterator>

namespace shardc::onnx_import {

Value* LeakyReluOf(NodeContext& c, Value* x, double alpha) {
  return Where(c, IsPositive(c, x), x, Times(c, x, alpha));
}

Value* ThresholdedReluOf(NodeContext& c, Value* x, double alpha) {
  return Where(c, c.Make("greater", {x, Like(c, x, alpha)}), x, Like(c, x, 0));
}

// max(x, 0) + log(1 + exp(-|x|)). At 0, where new weights and padding are, max has a gradient of a
// half, as this has; relu has none.
Value* SoftplusOf(NodeContext& c, Value* x) {
  Value* e = c.Make("exp", {c.Make("neg", {c.Make("abs", {x})})});
  return Add(c, c.Make("max", {x, Like(c, x, 0)}), c.Make("log1p", {e}));
}

Value* SoftsignOf(NodeContext& c, Value* x) { return Div(c, x, Plus(c, c.Make("abs", {x}), 1)); }

Value* HardSigmoidOf(NodeContext& c, Value* x, double alpha, double beta) {
  return Clamped(c, Plus(c, Times(c, x, alpha), beta), 0, 1);
}

Value* GeluOf(NodeContext& c, Value* x, const std::string& approximate) {
  return c.Make("gelu", {x}, {{"approximate", approximate}});
}

// exp sees no positive value: its overflow would make the gradient NaN.
Value* ExponentialUnit(NodeContext& c, Value* x, double scale, double width) {
  Value* positive = IsPositive(c, x);
  Value* low = Div(c, Where(c, positive, Like(c, x, 0), x), Like(c, x, width));
  return Where(c, positive, x, Times(c, Plus(c, c.Make("exp", {low}), -1), scale));
}

const Activation* FindActivation(std::string_view name) {
  static constexpr Activation kAll[] = {
      {"sigmoid", {}, {}, [](auto& c, Value* x, double, double) { return c.Make("sigmoid", {x}); }},
      {"tanh", {}, {}, [](auto& c, Value* x, double, double) { return c.Make("tanh", {x}); }},
      {"relu", {}, {}, [](auto& c, Value* x, double, double) { return c.Make("relu", {x}); }},
      {"softsign", {}, {}, [](auto& c, Value* x, double, double) { return SoftsignOf(c, x); }},
      {"softplus", {}, {}, [](auto& c, Value* x, double, double) { return SoftplusOf(c, x); }},
      {"leakyrelu",
       0.01f,
       {},
       [](auto& c, Value* x, double a, double) { return LeakyReluOf(c, x, a); }},
      {"thresholdedrelu",
       kGiven,
       {},
       [](auto& c, Value* x, double a, double) { return ThresholdedReluOf(c, x, a); }},
      {"elu",
       1,
       {},
       [](auto& c, Value* x, double a, double) { return ExponentialUnit(c, x, a, 1); }},
      {"hardsigmoid", 0.2f, 0.5, HardSigmoidOf},
      {"affine", kGiven, kGiven,
       [](auto& c, Value* x, double a, double b) { return Plus(c, Times(c, x, a), b); }},
      {"scaledtanh", kGiven, kGiven,
       [](auto& c, Value* x, double a, double b) {
         return Times(c, c.Make("tanh", {Times(c, x, b)}), a);
       }},
  };
  std::string lower(name);
  for (char& letter : lower) {
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  const auto* found = std::ranges::find(kAll, lower, &Activation::name);
  return found == std::end(kAll) ? nullptr : found;
}

}  // namespace shardc::onnx_import
