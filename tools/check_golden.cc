#include "tools/check_golden.h"

#include <cmath>

namespace shardc {

Mismatch Compare(const std::string& name, const HostTensor& got, const HostTensor& expected,
                 double rtol, double atol) {
  Mismatch worst{name, -INFINITY, 0, 0, 0};
  for (int64_t i = 0; i < expected.num_elements(); ++i) {
    double g = got.AsDouble(i), e = expected.AsDouble(i);
    double excess = g == e ? -INFINITY : std::abs(g - e) - (atol + rtol * std::abs(e));
    if (std::isnan(excess)) excess = INFINITY;
    if (excess > worst.error || i == 0) worst = {name, excess, i, g, e};
  }
  return worst;
}

}  // namespace shardc
