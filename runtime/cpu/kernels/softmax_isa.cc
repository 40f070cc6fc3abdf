#include "runtime/cpu/kernels/parallel.h"
#include "runtime/cpu/kernels/softmax.h"
#include "runtime/cpu/kernels/vec.h"

namespace shardc::cpu::SHARDC_ISA {
namespace {

constexpr int64_t kGrain = 8192;
constexpr float kNegInf = -__builtin_inff();

void OfRows(const float* x, float* y, int64_t rows, int64_t cols, int threads) {
  ParallelFor(threads, rows, 1 + kGrain / cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* in = x + r * cols;
      float* out = y + r * cols;
      Vec m = Splat(kNegInf);
      ForLanes(0, cols, [&](int64_t i, int64_t n) { m = Max(LoadN(in + i, n, kNegInf), m); });
      const float max = MaxOf(m);
      Vec sum = {};
      ForLanes(0, cols, [&](int64_t i, int64_t n) {
        const Vec e = ExpOrZero(LoadN(in + i, n, kNegInf) - max);
        sum += e;
        StoreN(out + i, n, e);
      });
      // A row of -inf only: the padding of a partial vector must not make up for the missing sum.
      const float scale = max == kNegInf ? __builtin_nanf("") : 1.0f / Sum(sum);
      ForLanes(0, cols,
               [&](int64_t i, int64_t n) { StoreN(out + i, n, LoadN(out + i, n) * scale); });
    }
  });
}

void GradOfRows(const float* y, const float* dy, float* dx, int64_t rows, int64_t cols,
                int threads) {
  ParallelFor(threads, rows, 1 + kGrain / cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* p = y + r * cols;
      const float* g = dy + r * cols;
      float* out = dx + r * cols;
      Vec sum = {};
      ForLanes(0, cols, [&](int64_t i, int64_t n) { sum += LoadN(p + i, n) * LoadN(g + i, n); });
      const float dot = Sum(sum);
      ForLanes(0, cols, [&](int64_t i, int64_t n) {
        StoreN(out + i, n, LoadN(p + i, n) * (LoadN(g + i, n) - dot));
      });
    }
  });
}

// Calls fn(at, width) for the columns of all matrices, as many at a time as fill a few cache lines
// of each of their rows: element (c, i) lies at at + c * inner + i, i < width <= kWidth.
constexpr int64_t kWidth = 4 * kLanes;
template <typename Fn>
void ForColumns(int64_t rows, int64_t cols, int64_t inner, int threads, const Fn& fn) {
  const int64_t pieces = CeilDiv(inner, kWidth);
  const int64_t grain = 1 + kGrain / (cols * MinOf(inner, kWidth));
  ParallelFor(threads, rows * pieces, grain, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const int64_t first = n % pieces * kWidth;
      fn(n / pieces * cols * inner + first, MinOf(kWidth, inner - first));
    }
  });
}

void OfColumns(const float* x, float* y, int64_t rows, int64_t cols, int64_t inner, int threads) {
  ForColumns(rows, cols, inner, threads, [&](int64_t at, int64_t width) {
    float max[kWidth], sum[kWidth];
    const auto each = [&](int64_t c, const auto& to) {
      ForLanes(0, width, [&](int64_t i, int64_t n) { to(at + c * inner + i, i, n); });
    };
    for (int64_t i = 0; i < width; ++i) max[i] = kNegInf, sum[i] = 0;
    for (int64_t c = 0; c < cols; ++c) {
      each(c, [&](int64_t from, int64_t i, int64_t n) {
        StoreN(max + i, n, Max(LoadN(x + from, n), LoadN(max + i, n)));
      });
    }
    for (int64_t c = 0; c < cols; ++c) {
      each(c, [&](int64_t from, int64_t i, int64_t n) {
        const Vec e = ExpOrZero(LoadN(x + from, n) - LoadN(max + i, n));
        StoreN(sum + i, n, LoadN(sum + i, n) + e);
        StoreN(y + from, n, e);
      });
    }
    for (int64_t i = 0; i < width; ++i) {
      sum[i] = max[i] == kNegInf ? __builtin_nanf("") : 1.0f / sum[i];
    }
    for (int64_t c = 0; c < cols; ++c) {
      each(c, [&](int64_t from, int64_t i, int64_t n) {
        StoreN(y + from, n, LoadN(y + from, n) * LoadN(sum + i, n));
      });
    }
  });
}

void GradOfColumns(const float* y, const float* dy, float* dx, int64_t rows, int64_t cols,
                   int64_t inner, int threads) {
  ForColumns(rows, cols, inner, threads, [&](int64_t at, int64_t width) {
    float dot[kWidth] = {};
    const auto each = [&](int64_t c, const auto& to) {
      ForLanes(0, width, [&](int64_t i, int64_t n) { to(at + c * inner + i, i, n); });
    };
    for (int64_t c = 0; c < cols; ++c) {
      each(c, [&](int64_t from, int64_t i, int64_t n) {
        StoreN(dot + i, n, LoadN(dot + i, n) + LoadN(y + from, n) * LoadN(dy + from, n));
      });
    }
    for (int64_t c = 0; c < cols; ++c) {
      each(c, [&](int64_t from, int64_t i, int64_t n) {
        StoreN(dx + from, n, LoadN(y + from, n) * (LoadN(dy + from, n) - LoadN(dot + i, n)));
      });
    }
  });
}

void Forward(const float* x, float* y, int64_t rows, int64_t cols, int64_t inner, int threads) {
  if (cols == 0 || inner == 0) return;
  inner == 1 ? OfRows(x, y, rows, cols, threads) : OfColumns(x, y, rows, cols, inner, threads);
}

void Backward(const float* y, const float* dy, float* dx, int64_t rows, int64_t cols, int64_t inner,
              int threads) {
  if (cols == 0 || inner == 0) return;
  inner == 1 ? GradOfRows(y, dy, dx, rows, cols, threads)
             : GradOfColumns(y, dy, dx, rows, cols, inner, threads);
}

}  // namespace

extern const SoftmaxKernels kSoftmaxKernels;
const SoftmaxKernels kSoftmaxKernels = {.forward = Forward, .backward = Backward};

}  // namespace shardc::cpu::SHARDC_ISA
