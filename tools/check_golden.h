// Compares results with given ones.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ir/host_tensor.h"

namespace shardc {

struct Mismatch {
  std::string name;
  double error = 0;  // |got - expected| - (atol + rtol * |expected|) at its worst, > 0 when it fails
  int64_t at = 0;    // element
  double got = 0, expected = 0;
};

// Element by element as numpy.allclose: |got - expected| <= atol + rtol * |expected|. A NaN never agrees.
Mismatch Compare(const std::string& name, const HostTensor& got, const HostTensor& expected,
                 double rtol, double atol);

}  // namespace shardc
