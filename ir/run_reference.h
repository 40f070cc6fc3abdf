// What an op makes of whole tensors: constant folding, and the oracle of tests.
#pragma once

#include <span>
#include <vector>

#include "ir/host_tensor.h"
#include "ir/op_def.h"

namespace shardc {

// By OpDef::reference, which the op must have; `results` are the types that it infers.
std::vector<HostTensor> RunReference(const OpDef& def, const Attributes& attrs,
                                     std::span<const HostTensor* const> operands,
                                     std::span<const TensorType> results);

}  // namespace shardc
