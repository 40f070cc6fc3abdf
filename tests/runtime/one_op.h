// One op on tensors of its own, by the kernels of the runtime.
#pragma once

#include <vector>

#include "ir/program.h"
#include "tests/ir/op_samples.h"

namespace shardc::testing {

// A buffer for each operand and result.
class OneOp {
 public:
  explicit OneOp(const OpSample& sample);

  // Of the operands, then of the results.
  const std::vector<TensorType>& types() const { return types_; }
  size_t num_operands() const { return operands_.size(); }

  // Result `result` in the memory of operand `operand` (-1: all apart). Empty: there is no kernel.
  std::vector<HostTensor> Run(bool reference, int operand = -1, int result = -1) const;

  // What its fast kernel holds when it is made first on a thread; -1: there is none.
  int64_t HeldBytes() const;
  const Op& op() const { return *graph_.op; }

 private:
  SampleGraph graph_;
  std::vector<HostTensor> operands_;
  std::vector<TensorType> types_;
  Program program_;
  Instruction instruction_;
};

}  // namespace shardc::testing
