// What the model's file holds and a plan keeps as it was: batch norms' running means, tables. A
// file of the model's tensors that is loaded later has to have the same.
#pragma once

#include <map>
#include <string>

#include "ir/checksum.h"
#include "ir/host_tensor.h"

namespace shardc {

struct FixedTensor {
  DType dtype = DType::kF32;
  std::string checksum;  // of its bytes
  bool operator==(const FixedTensor&) const = default;
};

using FixedTensors = std::map<std::string, FixedTensor>;  // by name

inline FixedTensor FixedTensorOf(const HostTensor& t) {
  Checksum sum;
  sum.Update({t.raw(), static_cast<size_t>(t.bytes())});
  return {t.dtype(), sum.Hex()};
}

}  // namespace shardc
