// What a step of a ScalarProgram does to the elements that a thread has, by Math (math.h).
#pragma once

#include "ir/scalar_program.h"
#include "runtime/cuda/kernels/platform.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {

template <typename Math, typename Fn, typename Lanes, typename... More>
__device__ __forceinline__ Lanes Map(Fn fn, const Lanes& x, const More&... more) {
  Lanes y;
  for (auto j = 0u; j < sizeof(y.v) / sizeof(y.v[0]); ++j) {
    y.v[j] = Compute<Math>(fn, x.v[j], more.v[j]...);
  }
  return y;
}

template <typename Fn, typename Lanes>
__device__ __forceinline__ Lanes Compare(Fn fn, const Lanes& a, const Lanes& b) {
  Lanes y;
  for (auto j = 0u; j < sizeof(y.v) / sizeof(y.v[0]); ++j) y.v[j] = fn(a.v[j], b.v[j]) ? 1 : 0;
  return y;
}

// op(a). An op of more operands, or none, leaves it.
template <typename Math, typename Lanes>
__device__ __forceinline__ Lanes Apply(ScalarOp op, const Lanes& a) {
  switch (op) {
    case ScalarOp::kNeg:
      return Map<Math>(NegFn(), a);
    case ScalarOp::kAbs:
      return Map<Math>(AbsFn(), a);
    case ScalarOp::kSqrt:
      return Map<Math>(SqrtFn(), a);
    case ScalarOp::kRsqrt:
      return Map<Math>(RsqrtFn(), a);
    case ScalarOp::kReciprocal:
      return Map<Math>(ReciprocalFn(), a);
    case ScalarOp::kExp:
      return Map<Math>(ExpFn(), a);
    case ScalarOp::kLog:
      return Map<Math>(LogFn(), a);
    case ScalarOp::kLog1p:
      return Map<Math>(Log1pFn(), a);
    case ScalarOp::kSin:
      return Map<Math>(SinFn(), a);
    case ScalarOp::kCos:
      return Map<Math>(CosFn(), a);
    case ScalarOp::kTanh:
      return Map<Math>(TanhFn(), a);
    case ScalarOp::kErf:
      return Map<Math>(ErfFn(), a);
    case ScalarOp::kSigmoid:
      return Map<Math>(SigmoidFn(), a);
    case ScalarOp::kRelu:
      return Map<Math>(ReluFn(), a);
    case ScalarOp::kSilu:
      return Map<Math>(SiluFn(), a);
    case ScalarOp::kGeluTanh:
      return Map<Math>(GeluTanhFn(), a);
    case ScalarOp::kGeluErf:
      return Map<Math>(GeluErfFn(), a);
    default:
      return a;
  }
}

// op(a, b), or op(a, b, third()).
template <typename Math, typename Lanes, typename Third>
__device__ __forceinline__ Lanes Apply(ScalarOp op, const Lanes& a, const Lanes& b,
                                       const Third& third) {
  switch (op) {
    case ScalarOp::kAdd:
      return Map<Math>(AddFn(), a, b);
    case ScalarOp::kSub:
      return Map<Math>(SubFn(), a, b);
    case ScalarOp::kMul:
      return Map<Math>(MulFn(), a, b);
    case ScalarOp::kDiv:
      return Map<Math>(DivFn(), a, b);
    case ScalarOp::kPow:
      return Map<Math>(PowFn(), a, b);
    case ScalarOp::kMin:
      return Map<Math>(MinFn(), a, b);
    case ScalarOp::kMax:
      return Map<Math>(MaxFn(), a, b);
    case ScalarOp::kTanhGrad:
      return Map<Math>(TanhGradFn(), a, b);
    case ScalarOp::kSigmoidGrad:
      return Map<Math>(SigmoidGradFn(), a, b);
    case ScalarOp::kReluGrad:
      return Map<Math>(ReluGradFn(), a, b);
    case ScalarOp::kSiluGrad:
      return Map<Math>(SiluGradFn(), a, b);
    case ScalarOp::kGeluTanhGrad:
      return Map<Math>(GeluTanhGradFn(), a, b);
    case ScalarOp::kGeluErfGrad:
      return Map<Math>(GeluErfGradFn(), a, b);
    case ScalarOp::kEqual:
      return Compare(EqualFn(), a, b);
    case ScalarOp::kNotEqual:
      return Compare(NotEqualFn(), a, b);
    case ScalarOp::kLess:
      return Compare(LessFn(), a, b);
    case ScalarOp::kLessEqual:
      return Compare(LessEqualFn(), a, b);
    case ScalarOp::kGreater:
      return Compare(LessFn(), b, a);
    case ScalarOp::kGreaterEqual:
      return Compare(LessEqualFn(), b, a);
    case ScalarOp::kWhere: {
      Lanes y = third();
      for (auto j = 0u; j < sizeof(y.v) / sizeof(y.v[0]); ++j) {
        if (a.v[j] != 0) y.v[j] = b.v[j];
      }
      return y;
    }
    default:
      return a;
  }
}

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
