#include "runtime/cpu/kernels/parallel.h"
#include "runtime/cpu/kernels/row_product.h"
#include "runtime/cpu/kernels/vec.h"

namespace shardc::cpu::SHARDC_ISA {
namespace {

static_assert(RowProductArgs::kMaxRows == 3);
constexpr int64_t kGrain = int64_t{1} << 16;  // elements of B below which a team does not pay
constexpr int64_t kAhead = 512;  // elements of a row that are fetched before they are read
constexpr int64_t kRows = 8;     // read at a time, each of them ...
constexpr int64_t kRowsAhead = 128;

// C[kM, width] += A[kM, kCount] B[kCount, width]. The rows of B after these are fetched towards the
// end.
template <int64_t kM, int64_t kCount>
SHARDC_INLINE void AddRows(const RowProductArgs& x, const float* a, const float* b, int64_t width,
                           float* c) {
  const int64_t whole = width / kLanes * kLanes;
  for (int64_t j = 0; j < whole; j += kLanes) {
    const int64_t ahead =
        j + kRowsAhead < width ? j + kRowsAhead : kCount * x.ldb + j + kRowsAhead - width;
    Vec sum[kM];
#pragma GCC unroll 4
    for (int64_t i = 0; i < kM; ++i) sum[i] = Load(c + i * x.ldc + j);
#pragma GCC unroll 8
    for (int64_t r = 0; r < kCount; ++r) {
      __builtin_prefetch(b + r * x.ldb + ahead);
      const Vec row = Load(b + r * x.ldb + j);
#pragma GCC unroll 4
      for (int64_t i = 0; i < kM; ++i) sum[i] = MulAdd(Splat(a[i * x.lda + r]), row, sum[i]);
    }
#pragma GCC unroll 4
    for (int64_t i = 0; i < kM; ++i) Store(c + i * x.ldc + j, sum[i]);
  }
  for (int64_t j = whole; j < width; ++j) {
    for (int64_t i = 0; i < kM; ++i) {
      for (int64_t r = 0; r < kCount; ++r) c[i * x.ldc + j] += a[i * x.lda + r] * b[r * x.ldb + j];
    }
  }
}

// The columns [begin, end) of B[k, n].
template <int64_t kM>
void AddColumns(const RowProductArgs& x, int64_t begin, int64_t end) {
  const float* b = x.b + begin;
  int64_t p = 0;
  for (; p + kRows <= x.k; p += kRows) {
    AddRows<kM, kRows>(x, x.a + p, b + p * x.ldb, end - begin, x.c + begin);
  }
  for (; p < x.k; ++p) AddRows<kM, 1>(x, x.a + p, b + p * x.ldb, end - begin, x.c + begin);
}

// The rows [begin, end) of B[n, k].
void AddDots(const RowProductArgs& x, int64_t begin, int64_t end) {
  for (int64_t j = begin; j < end; ++j) {
    const float* row = x.b + j * x.ldb;
    Vec sums[4] = {};
    int64_t p = 0;
    for (; p + 4 * kLanes <= x.k; p += 4 * kLanes) {
#pragma GCC unroll 4
      for (int64_t v = 0; v < 4; ++v) {
        const int64_t at = p + v * kLanes;
        __builtin_prefetch(row + at + kAhead);
        sums[v] = MulAdd(Load(x.a + at), Load(row + at), sums[v]);
      }
    }
    ForLanes(p, x.k, [&](int64_t at, int64_t n) {
      sums[0] = MulAdd(LoadN(x.a + at, n), LoadN(row + at, n), sums[0]);
    });
    x.c[j] += Sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  }
}

void Run(const RowProductArgs& x, int threads) {
  const int64_t grain = 1 + kGrain / MaxOf(x.k, 1);
  const auto add = x.transpose_b ? AddDots
                   : x.m == 1    ? AddColumns<1>
                   : x.m == 2    ? AddColumns<2>
                                 : AddColumns<3>;
  ParallelFor(
      threads, x.n, grain,
      [&](int64_t begin, int64_t end) {
        for (int64_t i = 0; i < x.m; ++i) {
          float* c = x.c + i * x.ldc;
          for (int64_t j = begin; j < end; ++j) {
            c[j] = (x.accumulate ? c[j] : 0) + (x.bias != nullptr ? x.bias[j] : 0);
          }
        }
        add(x, begin, end);
      },
      64);
}

}  // namespace

extern const RowProductKernels kRowProductKernels;
const RowProductKernels kRowProductKernels = {.run = Run};

}  // namespace shardc::cpu::SHARDC_ISA
