#include "runtime/cpu/kernels/elementwise_functions.h"
#include "runtime/cpu/kernels/parallel.h"
#include "runtime/cpu/kernels/vec_bf16.h"

namespace shardc::cpu::SHARDC_ISA {
namespace {

constexpr int64_t kGrain = 16384;  // elements per thread below which a team does not pay

template <typename Fn>
SHARDC_INLINE void Flat(int64_t n, int threads, const Fn& fn) {
  ParallelFor(
      threads, n, kGrain, [&](int64_t begin, int64_t end) { ForLanes(begin, end, fn); }, 16);
}

template <typename T, typename Fn>
void Map(const T* x, T* y, int64_t n, int threads, const Fn& fn) {
  Flat(n, threads,
       [&](int64_t i, int64_t count) { StoreN(y + i, count, fn(LoadN(x + i, count))); });
}

template <typename T>
void Unary(UnaryOp op, const T* x, T* y, int64_t n, int threads) {
  WithUnary(op, [&](const auto& fn) { Map(x, y, n, threads, fn); });
}

template <typename T, typename Fn>
void MapGrad(const T* saved, const T* dy, T* dx, int64_t n, int threads, const Fn& slope) {
  Flat(n, threads, [&](int64_t i, int64_t count) {
    StoreN(dx + i, count, LoadN(dy + i, count) * slope(LoadN(saved + i, count)));
  });
}

template <typename T>
void UnaryGrad(UnaryGradOp op, const T* saved, const T* dy, T* dx, int64_t n, int threads) {
  WithUnarySlope(op, [&](const auto& slope) { MapGrad(saved, dy, dx, n, threads, slope); });
}

// Runs row(r, begin, end, operand), operand(i, n) being the matching vector of b, over pieces of
// all rows.
template <typename T, typename Fn>
SHARDC_INLINE void ForBroadcast(const BinaryArgsOf<T>& x, int threads, const Fn& emit) {
  const int64_t cols = x.cols;
  if (x.broadcast == Broadcast::kSame || x.broadcast == Broadcast::kScalar) {
    const bool same = x.broadcast == Broadcast::kSame;
    if (same) {
      Flat(x.rows * cols, threads, [&](int64_t i, int64_t n) { emit(i, n, LoadN(x.b + i, n)); });
    } else {
      const Vec b = Splat(ToFloat(*x.b));
      Flat(x.rows * cols, threads, [&](int64_t i, int64_t n) { emit(i, n, b); });
    }
    return;
  }
  if (cols == 0) return;
  ParallelFor(threads, x.rows, 1 + kGrain / cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      if (x.broadcast == Broadcast::kRow) {
        ForLanes(0, cols, [&](int64_t i, int64_t n) { emit(r * cols + i, n, LoadN(x.b + i, n)); });
      } else {
        const Vec b = Splat(ToFloat(x.b[r]));
        ForLanes(0, cols, [&](int64_t i, int64_t n) { emit(r * cols + i, n, b); });
      }
    }
  });
}

template <typename T, typename Fn>
void BinaryMap(const BinaryArgsOf<T>& x, T* y, int threads, const Fn& fn) {
  if (x.swapped) {
    ForBroadcast(x, threads,
                 [&](int64_t i, int64_t n, Vec b) { StoreN(y + i, n, fn(b, LoadN(x.a + i, n))); });
  } else {
    ForBroadcast(x, threads,
                 [&](int64_t i, int64_t n, Vec b) { StoreN(y + i, n, fn(LoadN(x.a + i, n), b)); });
  }
}

template <typename T>
void Binary(BinaryOp op, const BinaryArgsOf<T>& x, T* y, int threads) {
  WithBinary(op, [&](const auto& fn) { BinaryMap(x, y, threads, fn); });
}

template <typename Fn>
void CompareMap(const BinaryArgs& x, uint8_t* y, int threads, const Fn& fn) {
  ForBroadcast(x, threads, [&](int64_t i, int64_t n, Vec b) {
    const Vec a = LoadN(x.a + i, n);
    const VecInt truth = x.swapped ? fn(b, a) : fn(a, b);
    for (int64_t k = 0; k < n; ++k) y[i + k] = truth[k] != 0;
  });
}

void Compare(CompareOp op, const BinaryArgs& x, uint8_t* y, int threads) {
  switch (op) {
    case CompareOp::kEqual:
      return CompareMap(x, y, threads, [](Vec a, Vec b) { return a == b; });
    case CompareOp::kNotEqual:
      return CompareMap(x, y, threads, [](Vec a, Vec b) { return a != b; });
    case CompareOp::kLess:
      return CompareMap(x, y, threads, [](Vec a, Vec b) { return a < b; });
    case CompareOp::kLessEqual:
      return CompareMap(x, y, threads, [](Vec a, Vec b) { return a <= b; });
    case CompareOp::kGreater:
      return CompareMap(x, y, threads, [](Vec a, Vec b) { return a > b; });
    case CompareOp::kGreaterEqual:
      return CompareMap(x, y, threads, [](Vec a, Vec b) { return a >= b; });
  }
}

void Where(const uint8_t* condition, const float* a, float a_scalar, const float* b, float b_scalar,
           float* y, int64_t n, int threads) {
  ParallelFor(threads, n, kGrain, [&](int64_t begin, int64_t end) {
    if (a != nullptr && b != nullptr) {
      for (int64_t i = begin; i < end; ++i) {
        const float p = a[i], q = b[i];
        y[i] = condition[i] != 0 ? p : q;
      }
      return;
    }
    for (int64_t i = begin; i < end; ++i) {
      const float p = a != nullptr ? a[i] : a_scalar;
      const float q = b != nullptr ? b[i] : b_scalar;
      y[i] = condition[i] != 0 ? p : q;
    }
  });
}

void Axpy(float alpha, const float* x, float* y, int64_t n, int threads) {
  Flat(n, threads, [&](int64_t i, int64_t count) {
    StoreN(y + i, count, LoadN(y + i, count) + alpha * LoadN(x + i, count));
  });
}

void Affine(const float* x, float alpha, float beta, float* y, int64_t n, int threads) {
  Map(x, y, n, threads, [&](Vec v) { return alpha * v + beta; });
}

}  // namespace

extern const ElementwiseKernels kElementwiseKernels;
const ElementwiseKernels kElementwiseKernels = {
    .unary = Unary<float>,
    .unary_grad = UnaryGrad<float>,
    .binary = Binary<float>,
    .unary_bf16 = Unary<uint16_t>,
    .unary_grad_bf16 = UnaryGrad<uint16_t>,
    .binary_bf16 = Binary<uint16_t>,
    .compare = Compare,
    .where = Where,
    .axpy = Axpy,
    .affine = Affine,
};

}  // namespace shardc::cpu::SHARDC_ISA
