// A small program of elementwise operations, run block by block while the values are in the cache.
#ifndef RUNTIME_CPU_KERNELS_FUSED_ELEMENTWISE_H_
#define RUNTIME_CPU_KERNELS_FUSED_ELEMENTWISE_H_

#include <cstdint>

#include "runtime/cpu/kernels/elementwise.h"

namespace shardc::cpu {

struct FusedStep {
  enum Kind : uint8_t { kUnary, kGrad, kBinary, kCompare, kSelect };
  Kind kind = kUnary;
  UnaryOp unary = UnaryOp::kNeg;
  UnaryGradOp grad = UnaryGradOp::kRelu;
  BinaryOp binary = BinaryOp::kAdd;
  CompareOp compare = CompareOp::kEqual;  // gives 1 or 0
  // Numbers of values; of a gradient dy and what was saved; of kSelect a where c is not 0, else b.
  int a = 0, b = 0, c = 0;
};

enum class FusedType : uint8_t { kF32, kBf16, kBool };  // kBool: a byte, 1 or 0

struct FusedInput {
  const void* data = nullptr;
  FusedType type = FusedType::kF32;
  int64_t strides[6] = {};  // elements, per dim of FusedArgs; 0 broadcasts
};

struct FusedResult {
  int value = 0;
  void* data = nullptr;  // dense; may be an input of the same type that is dense too
  FusedType type = FusedType::kF32;
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
