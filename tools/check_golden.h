// Compares results with given ones.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ir/host_tensor.h"

namespace shardc {

struct Mismatch {
  std::string name;
  // |got - expected| - (atol + rtol * |expected|) at its worst: > 0 when it fails.
  double error = 0;
  int64_t at = 0;  // element
  double got = 0, expected = 0;
};

// Element by element as numpy.allclose: |got - expected| <= atol + rtol * |expected|. A NaN never
// agrees.
Mismatch Compare(const std::string& name, const HostTensor& got, const HostTensor& expected,
                 double rtol, double atol);

// Compares every tensor that both the results and the safetensors file at `path` have, whatever
// their dtypes. `get` gives a result by name. Says on stderr what was compared and which tensors of
// the file are not among the results; of those in `made` it names the result that was made of them.
// Throws Diagnostic E4004 (exit 7) naming the worst tensor and element when one differs, or has
// another shape; E4009 when there is nothing to compare; E5103 when a result is there in a dtype
// that is not read.
void CheckGolden(const std::vector<std::string>& results,
                 const std::function<HostTensor(const std::string&)>& get,
                 const std::map<std::string, std::string>& made, const std::string& path,
                 double rtol, double atol);

}  // namespace shardc
