// Elementwise operations and their broadcast forms.
#ifndef RUNTIME_CPU_KERNELS_ELEMENTWISE_H_
#define RUNTIME_CPU_KERNELS_ELEMENTWISE_H_

#include <cstdint>

namespace shardc::cpu {

enum class UnaryOp {
  kNeg,
  kAbs,
  kSquare,
  kSqrt,
  kRsqrt,
  kReciprocal,
  kExp,
  kLog,
  kLog1p,
  kSin,
  kCos,
  kAsin,
  kAcos,
  kAtan,
  kSinh,
  kCosh,
  kAsinh,
  kAcosh,
  kAtanh,
  kTanh,
  kErf,
  kSigmoid,
  kRelu,
  kSilu,      // x sigmoid(x)
  kGeluTanh,  // 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
  kGeluErf,   // x Phi(x)
};

enum class UnaryGradOp {
  kTanhFromOutput,     // the saved tensor is y: dy (1 - y^2)
  kSigmoidFromOutput,  // the saved tensor is y: dy y (1 - y)
  kRelu,               // the saved tensor is x in this and the following
  kSilu,
  kGeluTanh,
  kGeluErf,
};

// kMin and kMax return NaN if either operand is NaN.
enum class BinaryOp { kAdd, kSub, kMul, kDiv, kPow, kMin, kMax };

enum class CompareOp { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual };

// What operand b of a binary operation on a[rows, cols] is. For kSame and kScalar only rows * cols
// matters.
enum class Broadcast {
  kSame,    // [rows, cols]
  kScalar,  // one element
  kRow,     // [cols], the same for every row
  kColumn,  // [rows], one element per row
};

template <typename T>
struct BinaryArgsOf {
  const T* a = nullptr;
  const T* b = nullptr;
  int64_t rows = 1;
  int64_t cols = 0;
  Broadcast broadcast = Broadcast::kSame;
  bool swapped = false;  // compute b op a
};
using BinaryArgs = BinaryArgsOf<float>;

struct ElementwiseKernels {
  // y[i] = op(x[i]); y may be x.
  void (*unary)(UnaryOp op, const float* x, float* y, int64_t n, int threads);
  // dx[i] = dy[i] * op'(saved[i]); dx may be dy or saved.
  void (*unary_grad)(UnaryGradOp op, const float* saved, const float* dy, float* dx, int64_t n,
                     int threads);
  // y = a op b (or b op a); y may be a, or b if that is kSame.
  void (*binary)(BinaryOp op, const BinaryArgs&, float* y, int threads);
  // The same on bf16, computed in f32.
  void (*unary_bf16)(UnaryOp op, const uint16_t* x, uint16_t* y, int64_t n, int threads);
  void (*unary_grad_bf16)(UnaryGradOp op, const uint16_t* saved, const uint16_t* dy, uint16_t* dx,
                          int64_t n, int threads);
  void (*binary_bf16)(BinaryOp op, const BinaryArgsOf<uint16_t>&, uint16_t* y, int threads);
  // y = 1 or 0.
  void (*compare)(CompareOp op, const BinaryArgs&, uint8_t* y, int threads);
  // y[i] = condition[i] ? a[i] : b[i]. A null a or b stands for the scalar given.
  void (*where)(const uint8_t* condition, const float* a, float a_scalar, const float* b,
                float b_scalar, float* y, int64_t n, int threads);
  // y[i] += alpha * x[i].
  void (*axpy)(float alpha, const float* x, float* y, int64_t n, int threads);
  // y[i] = alpha * x[i] + beta; y may be x.
  void (*affine)(const float* x, float alpha, float beta, float* y, int64_t n, int threads);
};

}  // namespace shardc::cpu

#endif  // RUNTIME_CPU_KERNELS_ELEMENTWISE_H_
