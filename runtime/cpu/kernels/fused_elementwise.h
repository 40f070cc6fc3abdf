// A small program of elementwise operations, run block by block while the values are in the cache.
#ifndef RUNTIME_CPU_KERNELS_FUSED_ELEMENTWISE_H_
#define RUNTIME_CPU_KERNELS_FUSED_ELEMENTWISE_H_

#include <cstdint>

#include "runtime/cpu/kernels/elementwise.h"

namespace shardc::cpu {

struct FusedStep {
  enum Kind : uint8_t { kUnary, kGrad, kBinary };
  Kind kind = kUnary;
  UnaryOp unary = UnaryOp::kNeg;
  UnaryGradOp grad = UnaryGradOp::kRelu;
  BinaryOp binary = BinaryOp::kAdd;
  int a = 0, b = 0;  // numbers of values; of a gradient dy and what was saved
};

struct FusedInput {
  const void* data = nullptr;
  bool bf16 = false;        // else f32
  int64_t strides[6] = {};  // elements, per dim of FusedArgs; 0 broadcasts
};

struct FusedResult {
  int value = 0;
  void* data = nullptr;  // dense; may be an input of the same type that is dense too
  bool bf16 = false;
};

// Values are numbered: first the inputs, then one per step. Computed in f32.
struct FusedArgs {
  static constexpr int kMaxDims = 6, kMaxInputs = 12, kMaxSteps = 24, kMaxResults = 6;
  int rank = 0;
  int64_t dims[kMaxDims] = {};
  int num_inputs = 0, num_steps = 0, num_results = 0;
  FusedInput inputs[kMaxInputs];
  FusedStep steps[kMaxSteps];
  FusedResult results[kMaxResults];
};

struct FusedElementwiseKernels {
  void (*run)(const FusedArgs&, int threads);
};

}  // namespace shardc::cpu

#endif  // RUNTIME_CPU_KERNELS_FUSED_ELEMENTWISE_H_
