#include "runtime/cpu/kernels/parallel.h"
#include "runtime/cpu/kernels/row_product.h"
#include "runtime/cpu/kernels/vec.h"

namespace shardc::cpu::SHARDC_ISA {
namespace {

constexpr int64_t kGrain = int64_t{1} << 16;  // elements of B below which a team does not pay
constexpr int64_t kAhead = 512;  // elements of a row that are fetched before they are read
constexpr int64_t kRows = 8;     // read at a time, each of them ...
constexpr int64_t kRowsAhead = 128;

// c[j] += a[r] b[r * ldb + j] for `count` <= kRows rows. The next ones are fetched towards the end.
template <int64_t kCount>
SHARDC_INLINE void AddRows(const float* a, const float* b, int64_t ldb, int64_t width, float* c) {
  const int64_t whole = width / kLanes * kLanes;
  for (int64_t j = 0; j < whole; j += kLanes) {
    const int64_t ahead =
        j + kRowsAhead < width ? j + kRowsAhead : kCount * ldb + j + kRowsAhead - width;
    Vec sum = Load(c + j);
#pragma GCC unroll 8
    for (int64_t r = 0; r < kCount; ++r) {
      __builtin_prefetch(b + r * ldb + ahead);
      sum = MulAdd(Splat(a[r]), Load(b + r * ldb + j), sum);
    }
    Store(c + j, sum);
  }
  for (int64_t j = whole; j < width; ++j) {
    for (int64_t r = 0; r < kCount; ++r) c[j] += a[r] * b[r * ldb + j];
  }
}

// Of the columns [begin, end) of B[k, n].
void AddColumns(const RowProductArgs& x, int64_t begin, int64_t end) {
  int64_t p = 0;
  for (; p + kRows <= x.k; p += kRows) {
    AddRows<kRows>(x.a + p, x.b + p * x.ldb + begin, x.ldb, end - begin, x.c + begin);
  }
  for (; p < x.k; ++p) {
    AddRows<1>(x.a + p, x.b + p * x.ldb + begin, x.ldb, end - begin, x.c + begin);
  }
}

// Of the rows [begin, end) of B[n, k].
void AddDots(const RowProductArgs& x, int64_t begin, int64_t end) {
  for (int64_t j = begin; j < end; ++j) {
    const float* row = x.b + j * x.ldb;
    Vec sums[4] = {};
    int64_t p = 0;
    for (; p + 4 * kLanes <= x.k; p += 4 * kLanes) {
#pragma GCC unroll 4
      for (int64_t i = 0; i < 4; ++i) {
        const int64_t at = p + i * kLanes;
        __builtin_prefetch(row + at + kAhead);
        sums[i] = MulAdd(Load(x.a + at), Load(row + at), sums[i]);
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
  ParallelFor(
      threads, x.n, grain,
      [&](int64_t begin, int64_t end) {
        for (int64_t j = begin; j < end; ++j) {
          x.c[j] = (x.accumulate ? x.c[j] : 0) + (x.bias != nullptr ? x.bias[j] : 0);
        }
        x.transpose_b ? AddDots(x, begin, end) : AddColumns(x, begin, end);
      },
      64);
}

}  // namespace

extern const RowProductKernels kRowProductKernels;
const RowProductKernels kRowProductKernels = {.run = Run};

}  // namespace shardc::cpu::SHARDC_ISA
