// Activations: of nodes of their own, and those that recurrent and fused nodes name.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "frontend/onnx/convert_util.h"

namespace shardc::onnx_import {

// As the ONNX ops of these names.
Value* LeakyReluOf(NodeContext& c, Value* x, double alpha);
Value* ThresholdedReluOf(NodeContext& c, Value* x, double alpha);
Value* SoftplusOf(NodeContext& c, Value* x);
Value* SoftsignOf(NodeContext& c, Value* x);
Value* HardSigmoidOf(NodeContext& c, Value* x, double alpha, double beta);
Value* GeluOf(NodeContext& c, Value* x, const std::string& approximate);
// x where it is positive, else scale * (exp(x / width) - 1).
Value* ExponentialUnit(NodeContext& c, Value* x, double scale, double width);

inline constexpr double kGiven = std::numeric_limits<double>::quiet_NaN();

// What the parameters of an activation are where a node gives none, nothing where it has no such
// parameter. kGiven: the node must give it, for ONNX does not say, or ONNX Runtime takes another (0
// for the threshold).
struct Activation {
  std::string_view name;  // in lower case
  std::optional<double> alpha, beta;
  Value* (*apply)(NodeContext& c, Value* x, double alpha, double beta);
};

// That of a name in any case; null where there is none.
const Activation* FindActivation(std::string_view name);

}  // namespace shardc::onnx_import
