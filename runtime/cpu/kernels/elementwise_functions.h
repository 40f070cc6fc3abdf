// The elementwise operations as functions of vectors. Only for *_isa.cc files.
#ifndef RUNTIME_CPU_KERNELS_ELEMENTWISE_FUNCTIONS_H_
#define RUNTIME_CPU_KERNELS_ELEMENTWISE_FUNCTIONS_H_

#include "runtime/cpu/kernels/elementwise.h"
#include "runtime/cpu/kernels/vec_bf16.h"

namespace shardc::cpu::SHARDC_ISA {

template <typename Fn>
SHARDC_INLINE Vec EachLane(Vec v, const Fn& fn) {
  for (int i = 0; i < kLanes; ++i) v[i] = fn(v[i]);
  return v;
}

// Calls use(fn) with fn: Vec -> Vec.
template <typename Use>
SHARDC_INLINE void WithUnary(UnaryOp op, const Use& use) {
  switch (op) {
    case UnaryOp::kNeg:
      return use([](Vec v) { return -v; });
    case UnaryOp::kAbs:
      return use([](Vec v) { return Abs(v); });
    case UnaryOp::kSquare:
      return use([](Vec v) { return v * v; });
    case UnaryOp::kSqrt:
      return use([](Vec v) { return Sqrt(v); });
    case UnaryOp::kRsqrt:
      return use([](Vec v) { return 1.0f / Sqrt(v); });
    case UnaryOp::kReciprocal:
      return use([](Vec v) { return 1.0f / v; });
    case UnaryOp::kExp:
      return use([](Vec v) { return Exp(v); });
    case UnaryOp::kLog:
      return use([](Vec v) { return EachLane(v, [](float x) { return __builtin_logf(x); }); });
    case UnaryOp::kLog1p:
      return use([](Vec v) { return EachLane(v, [](float x) { return __builtin_log1pf(x); }); });
    case UnaryOp::kSin:
      return use([](Vec v) { return EachLane(v, [](float x) { return __builtin_sinf(x); }); });
    case UnaryOp::kCos:
      return use([](Vec v) { return EachLane(v, [](float x) { return __builtin_cosf(x); }); });
    case UnaryOp::kAsin:
      return use([](Vec v) { return EachLane(v, [](float x) { return __builtin_asinf(x); }); });
    case UnaryOp::kAcos:
      return use([](Vec v) { return EachLane(v, [](float x) { return __builtin_acosf(x); }); });
    case UnaryOp::kAtan:
      return use([](Vec v) { return EachLane(v, [](float x) { return __builtin_atanf(x); }); });
    case UnaryOp::kSinh:
      return use([](Vec v) { return EachLane(v, [](float x) { return __builtin_sinhf(x); }); });
    case UnaryOp::kCosh:
      return use([](Vec v) { return EachLane(v, [](float x) { return __builtin_coshf(x); }); });
    case UnaryOp::kAsinh:
      return use([](Vec v) { return EachLane(v, [](float x) { return __builtin_asinhf(x); }); });
    case UnaryOp::kAcosh:
      return use([](Vec v) { return EachLane(v, [](float x) { return __builtin_acoshf(x); }); });
    case UnaryOp::kAtanh:
      return use([](Vec v) { return EachLane(v, [](float x) { return __builtin_atanhf(x); }); });
    case UnaryOp::kTanh:
      return use([](Vec v) { return Tanh(v); });
    case UnaryOp::kErf:
      return use([](Vec v) { return Erf(v); });
    case UnaryOp::kSigmoid:
      return use([](Vec v) { return Sigmoid(v); });
    case UnaryOp::kRelu:
      return use([](Vec v) { return Max(Vec{}, v); });
    case UnaryOp::kSilu:
      return use([](Vec v) { return v / (1.0f + Exp(-v)); });
    case UnaryOp::kGeluTanh:
      return use([](Vec v) { return GeluTanh(v); });
    case UnaryOp::kGeluErf:
      return use([](Vec v) { return GeluErf(v); });
  }
}

// Calls use(slope): the gradient is dy * slope(saved).
template <typename Use>
SHARDC_INLINE void WithUnarySlope(UnaryGradOp op, const Use& use) {
  switch (op) {
    case UnaryGradOp::kTanhFromOutput:
      return use([](Vec y) { return 1.0f - y * y; });
    case UnaryGradOp::kSigmoidFromOutput:
      return use([](Vec y) { return y * (1.0f - y); });
    case UnaryGradOp::kRelu:
      return use([](Vec x) { return x > 0.0f ? Splat(1.0f) : Vec{}; });
    case UnaryGradOp::kSilu:
      return use([](Vec x) {
        const Vec s = Sigmoid(x);
        return s * (1.0f + x * (1.0f - s));
      });
    case UnaryGradOp::kGeluTanh:
      return use([](Vec x) { return GeluTanhGrad(x); });
    case UnaryGradOp::kGeluErf:
      return use([](Vec x) { return GeluErfGrad(x); });
  }
}

// Calls use(fn) with fn: Vec, Vec -> Vec.
template <typename Use>
SHARDC_INLINE void WithBinary(BinaryOp op, const Use& use) {
  switch (op) {
    case BinaryOp::kAdd:
      return use([](Vec a, Vec b) { return a + b; });
    case BinaryOp::kSub:
      return use([](Vec a, Vec b) { return a - b; });
    case BinaryOp::kMul:
      return use([](Vec a, Vec b) { return a * b; });
    case BinaryOp::kDiv:
      return use([](Vec a, Vec b) { return a / b; });
    case BinaryOp::kPow:
      return use([](Vec a, Vec b) {
        for (int i = 0; i < kLanes; ++i) a[i] = __builtin_powf(a[i], b[i]);
        return a;
      });
    case BinaryOp::kMin:
      return use([](Vec a, Vec b) { return a != a ? a : Min(a, b); });
    case BinaryOp::kMax:
      return use([](Vec a, Vec b) { return a != a ? a : Max(a, b); });
  }
}

}  // namespace shardc::cpu::SHARDC_ISA

#endif  // RUNTIME_CPU_KERNELS_ELEMENTWISE_FUNCTIONS_H_
