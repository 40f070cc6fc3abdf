// What the outputs of a plan tell of the last step.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ir/manifest.h"
#include "runtime/session.h"
#include "tools/run_report.h"

namespace shardc {

class RunValues {
 public:
  // Both must outlive this.
  RunValues(const Session& session, const Manifest& manifest)
      : session_(session), manifest_(manifest) {}

  // Whether the plan updates parameters.
  bool Trains() const;
  StepValues OfStep() const;
  // Of a plan that trains: that of all gradients, before they are clipped.
  std::optional<double> UpdateNorm() const;
  // What the plan multiplies its loss by, where gradients pass f16.
  std::optional<double> LossScale() const;
  // All outputs that are scalars, but for gradients.
  std::vector<std::pair<std::string, double>> Scalars() const;

 private:
  std::optional<double> Scalar(const std::string& output) const;
  std::optional<double> GradientNorm() const;

  const Session& session_;
  const Manifest& manifest_;
};

}  // namespace shardc
