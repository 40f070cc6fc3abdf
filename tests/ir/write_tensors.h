// Files that the command reads, for tests that run it.
#pragma once

#include <map>
#include <string>

#include "ir/host_tensor.h"

namespace shardc::testing {

// As NumPy writes it; not bf16, which it lacks.
void WriteNpy(const std::string& path, const HostTensor& value);
void WriteSafetensors(const std::string& path, const std::map<std::string, HostTensor>& tensors);

}  // namespace shardc::testing
