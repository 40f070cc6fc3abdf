#include "frontend/onnx/element_functions.h"

#include <algorithm>
#include <cmath>

namespace shardc::onnx_import {
namespace {

Value* OneMinus(Builder& b, Value* x) { return b.Sub(b.Scalar(x->type.dtype, 1), x); }

Value* Exp(Builder& b, Value* x) { return b.Make("exp", {x}); }

double Softplus(double x) { return std::max(x, 0.) + std::log1p(std::exp(-std::abs(x))); }

// Reads x once: a vector that is read at several places may become several (SplitSharedVectors).
Value* MakeSoftplus(Builder& b, Value* x) {
  Value* minus = b.Neg(x);
  Value* e = Exp(b, b.Neg(b.Make("abs", {minus})));
  return b.Add(b.Sub(b.Make("max", {minus, b.Scalar(x->type.dtype, 0)}), minus),
               b.Make("log1p", {e}));
}

}  // namespace

std::span<const ElementFunction> ElementFunctions() {
  static constexpr ElementFunction kAll[] = {
      {"sub", [](double x) { return 1 - x; }, OneMinus},
      {"rsub", [](double x) { return 1 - x; }, OneMinus},
      {"exp", [](double x) { return std::exp(x); }, Exp},
      {"exp", [](double x) { return -std::exp(x); },
       [](Builder& b, Value* x) { return b.Neg(Exp(b, x)); }},
      {"softplus", Softplus, MakeSoftplus},
      {"tanh", [](double x) { return std::tanh(x); },
       [](Builder& b, Value* x) { return b.Make("tanh", {x}); }},
      {"sigmoid", [](double x) { return 1 / (1 + std::exp(-x)); },
       [](Builder& b, Value* x) { return b.Make("sigmoid", {x}); }},
  };
  return kAll;
}

}  // namespace shardc::onnx_import
