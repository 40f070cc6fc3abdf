#include "tools/run_values.h"

#include <algorithm>
#include <cmath>

#include "ir/contains.h"
#include "ir/graph.h"

namespace shardc {

bool RunValues::Trains() const {
  return std::ranges::any_of(manifest_.states, [](const ManifestState& s) { return !s.is_param; });
}

StepValues RunValues::OfStep() const {
  return {Scalar("loss"), GradientNorm(), Scalar("learning_rate"), LossScale()};
}

std::optional<double> RunValues::UpdateNorm() const {
  return Trains() ? Scalar("grad_norm") : std::nullopt;
}

// The plan's own; the model may have an output of this name.
std::optional<double> RunValues::LossScale() const {
  const bool scales = std::ranges::any_of(manifest_.states, [](const ManifestState& s) {
    return s.name == "optimizer.loss_scale" && !s.is_param;
  });
  return scales ? Scalar("loss_scale") : std::nullopt;
}

std::vector<std::pair<std::string, double>> RunValues::Scalars() const {
  std::vector<std::pair<std::string, double>> scalars;
  for (const std::string& name : session_.OutputNames()) {
    if (!session_.OutputType(name).shape.empty() || !ParamOfGradient(name).empty()) continue;
    scalars.emplace_back(name, session_.Output(name).AsDouble(0));
  }
  return scalars;
}

std::optional<double> RunValues::Scalar(const std::string& output) const {
  if (!Contains(session_.OutputNames(), output)) return std::nullopt;
  // A model's own output of the name may be any tensor.
  if (session_.OutputType(output).num_elements() != 1) return std::nullopt;
  return session_.Output(output).AsDouble(0);
}

// A plan with gradients and no optimizer has no such output.
std::optional<double> RunValues::GradientNorm() const {
  if (auto norm = Scalar("grad_norm")) return norm;
  std::optional<double> squares;
  for (const std::string& name : session_.OutputNames()) {
    if (ParamOfGradient(name).empty()) continue;
    HostTensor grad = session_.Output(name);
    squares = squares.value_or(0);
    for (int64_t i = 0; i < grad.num_elements(); ++i) *squares += std::pow(grad.AsDouble(i), 2);
  }
  return squares ? std::optional(std::sqrt(*squares)) : std::nullopt;
}

}  // namespace shardc
