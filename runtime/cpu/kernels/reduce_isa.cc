#include "runtime/cpu/kernels/parallel.h"
#include "runtime/cpu/kernels/reduce.h"
#include "runtime/cpu/kernels/scratch.h"
#include "runtime/cpu/kernels/vec_bf16.h"

namespace shardc::cpu::SHARDC_ISA {
namespace {

constexpr int64_t kGrain = 16384;
constexpr int64_t kBlock = 1024;       // elements of one f32 partial sum
constexpr int64_t kMinBlockRows = 32;  // rows of one partial of sum_rows, at least
constexpr int64_t kMaxBlocks = 64;

struct Identity {
  SHARDC_INLINE Vec operator()(Vec v) const { return v; }
};
struct Square {
  SHARDC_INLINE Vec operator()(Vec v) const { return v * v; }
};

template <typename Fn>
SHARDC_INLINE float BlockSum(const float* x, int64_t count, const Fn& fn) {
  Vec s0 = {}, s1 = {}, s2 = {}, s3 = {};
  int64_t c = 0;
  for (; c + 4 * kLanes <= count; c += 4 * kLanes) {
    s0 += fn(Load(x + c));
    s1 += fn(Load(x + c + kLanes));
    s2 += fn(Load(x + c + 2 * kLanes));
    s3 += fn(Load(x + c + 3 * kLanes));
  }
  ForLanes(c, count, [&](int64_t i, int64_t n) { s0 += fn(LoadN(x + i, n)); });
  return Sum((s0 + s1) + (s2 + s3));
}

template <typename Fn>
SHARDC_INLINE double LongSum(const float* x, int64_t count, const Fn& fn) {
  double total = 0;
  for (int64_t c = 0; c < count; c += kBlock) {
    total += BlockSum(x + c, count - c < kBlock ? count - c : kBlock, fn);
  }
  return total;
}

template <typename Fn>
void Total(const float* x, int64_t n, double* y, int threads) {
  // Pieces of a fixed size, so that their number and order do not depend on the threads.
  constexpr int64_t kPiece = 64 * kBlock;
  const int64_t pieces = (n + kPiece - 1) / kPiece;
  static thread_local Scratch scratch;
  double* partial = reinterpret_cast<double*>(scratch.Get(2 * (pieces + 1)));
  ParallelChunks(threads, pieces, [&](int64_t p, int64_t) {
    const int64_t begin = p * kPiece;
    partial[p] = LongSum(x + begin, n - begin < kPiece ? n - begin : kPiece, Fn());
  });
  double total = 0;
  for (int64_t p = 0; p < pieces; ++p) total += partial[p];
  *y = total;
}

template <typename T>
void SumRows(const T* x, float* y, int64_t rows, int64_t cols, bool accumulate, int threads) {
  if (cols == 0) return;
  int64_t blocks = rows / kMinBlockRows;
  blocks = blocks < 1 ? 1 : blocks > kMaxBlocks ? kMaxBlocks : blocks;
  const int team = rows * cols < 2 * kGrain ? 1 : threads;
  static thread_local Scratch scratch;
  float* partial = scratch.Get(blocks * cols);
  ParallelFor(team, blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      float* sum = partial + block * cols;
      for (int64_t c = 0; c < cols; ++c) sum[c] = 0;
      int64_t r = rows * block / blocks;
      const int64_t last = rows * (block + 1) / blocks;
      for (; r + 4 <= last; r += 4) {
        const T* row = x + r * cols;
        ForLanes(0, cols, [&](int64_t i, int64_t n) {
          const Vec low = LoadN(row + i, n) + LoadN(row + cols + i, n);
          const Vec high = LoadN(row + 2 * cols + i, n) + LoadN(row + 3 * cols + i, n);
          StoreN(sum + i, n, LoadN(sum + i, n) + (low + high));
        });
      }
      for (; r < last; ++r) {
        const T* row = x + r * cols;
        ForLanes(0, cols, [&](int64_t i, int64_t n) {
          StoreN(sum + i, n, LoadN(sum + i, n) + LoadN(row + i, n));
        });
      }
    }
  });
  ParallelFor(team, cols, 1024, [&](int64_t begin, int64_t end) {
    ForLanes(begin, end, [&](int64_t c, int64_t n) {
      Vec total = {};
      for (int64_t block = 0; block < blocks; ++block)
        total += LoadN(partial + block * cols + c, n);
      if (accumulate) total += LoadN(y + c, n);
      StoreN(y + c, n, total);
    });
  });
}

void SumMiddle(const float* x, float* y, int64_t outer, int64_t rows, int64_t cols, int threads) {
  const int team = outer * rows * cols < 2 * kGrain ? 1 : threads;
  const bool one_each = outer >= team;
  ParallelFor(one_each ? team : 1, outer, 1, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      SumRows(x + o * rows * cols, y + o * cols, rows, cols, false, one_each ? 1 : team);
    }
  });
}

void SumLast(const float* x, float* y, int64_t rows, int64_t cols, int threads) {
  ParallelFor(threads, rows, 1 + kGrain / (cols + 1), [&](int64_t begin, int64_t end) {
    if (cols <= kLanes) {
      for (int64_t r = begin; r < end; ++r) {
        float sum = 0;
        for (int64_t c = 0; c < cols; ++c) sum += x[r * cols + c];
        y[r] = sum;
      }
      return;
    }
    for (int64_t r = begin; r < end; ++r) {
      y[r] = static_cast<float>(LongSum(x + r * cols, cols, Identity()));
    }
  });
}

}  // namespace

extern const ReduceKernels kReduceKernels;
const ReduceKernels kReduceKernels = {
    .sum_rows = SumRows<float>,
    .sum_rows_bf16 = SumRows<uint16_t>,
    .sum_middle = SumMiddle,
    .sum_last = SumLast,
    .sum = Total<Identity>,
    .sum_squares = Total<Square>,
};

}  // namespace shardc::cpu::SHARDC_ISA
