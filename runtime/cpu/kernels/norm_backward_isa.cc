#include "runtime/cpu/kernels/norm.h"
#include "runtime/cpu/kernels/norm_value.h"
#include "runtime/cpu/kernels/parallel.h"
#include "runtime/cpu/kernels/scratch.h"
#include "runtime/cpu/kernels/vec_bf16.h"

namespace shardc::cpu::SHARDC_ISA {

void LayerNormBackward(const NormBackwardArgs& a, int threads);
void RmsNormBackward(const NormBackwardArgs& a, int threads);

namespace {

constexpr int64_t kGrain = 16384;
constexpr int64_t kMinBlockRows = 16;
constexpr int64_t kMaxBlocks = 64;

// With xhat = (x - mean) * rstd and g = dy * w:
//   dx = rstd * (g - mean(g) - xhat * mean(g * xhat)); without the mean(g) term for rms norm.
// What rows add to; null where nobody asks.
struct Sums {
  float *dw = nullptr, *db = nullptr, *dx = nullptr;
};

// Not inlined: contracted differently for each caller, dx would depend on what else is wanted.
template <bool kCentered, typename D>
__attribute__((noinline)) void Row(const NormBackwardArgs& a, const D* all_dy, int64_t r,
                                   const Sums& sums) {
  float *dw = sums.dw, *db = sums.db;
  const int64_t cols = a.cols;
  const D* dy = all_dy + r * cols;
  const float* x = a.x + r * cols;
  const float mean = kCentered ? a.mean[r] : 0.0f;
  const float rstd = a.rstd[r];
  Vec sum_g = {}, sum_gx = {};
  ForLanes(0, cols, [&](int64_t i, int64_t n) {
    const Vec d = LoadN(dy + i, n);
    const Vec xhat = (LoadN(x + i, n, mean) - mean) * rstd;
    const Vec g = a.w != nullptr ? d * LoadN(a.w + i, n) : d;
    if (kCentered) sum_g += g;
    sum_gx = MulAdd(g, xhat, sum_gx);
    if (dw != nullptr) StoreN(dw + i, n, MulAdd(d, xhat, LoadN(dw + i, n)));
    if (kCentered && db != nullptr) StoreN(db + i, n, LoadN(db + i, n) + d);
  });
  if (a.dx == nullptr) return;
  const float mean_g = kCentered ? Sum(sum_g) / static_cast<float>(cols) : 0.0f;
  const float mean_gx = Sum(sum_gx) / static_cast<float>(cols);
  const float* extra = a.residual_grad != nullptr ? a.residual_grad + r * cols : nullptr;
  float* dx = a.dx + r * cols;
  ForLanes(0, cols, [&](int64_t i, int64_t n) {
    const Vec xhat = (LoadN(x + i, n, mean) - mean) * rstd;
    // What is missing is a number and no branch, or dx would depend on what else is wanted:
    // compilers make several loops of one with branches, and contract other products in each.
    const Vec w = a.w != nullptr ? LoadN(a.w + i, n) : Splat(1);
    const Vec more = extra != nullptr ? LoadN(extra + i, n) : Vec{};
    const Vec g = LoadN(dy + i, n) * w;
    const Vec v = MulAdd(MulAdd(xhat, Splat(-mean_gx), g - mean_g), Splat(rstd), more);
    StoreN(dx + i, n, v);
    if (a.dx_bf16 != nullptr) StoreN(a.dx_bf16 + r * cols + i, n, v);
    if (a.dx_copy != nullptr) StoreN(a.dx_copy + r * cols + i, n, v);
    if (sums.dx != nullptr) StoreN(sums.dx + i, n, LoadN(sums.dx + i, n) + v);
  });
  auto write = [&](auto* y) {
    ForLanes(0, cols, [&](int64_t i, int64_t n) {
      StoreN(y + r * cols + i, n,
             NormValue(LoadN(x + i, n), mean, rstd, a.w, kCentered ? a.b : nullptr, i, n));
    });
  };
  if (a.y != nullptr) write(a.y);
  if (a.y_bf16 != nullptr) write(a.y_bf16);
}

template <bool kCentered, typename D>
void Rows(const NormBackwardArgs& a, const D* dy, int threads) {
  const int64_t cols = a.cols;
  if (cols == 0) return;
  const bool sums = a.dw != nullptr || (kCentered && a.db != nullptr) || a.dx_sums != nullptr;
  if (!sums) {
    ParallelFor(threads, a.rows, 1 + kGrain / cols, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) Row<kCentered>(a, dy, r, Sums());
    });
    return;
  }
  int64_t blocks = a.rows / kMinBlockRows;
  blocks = blocks < 1 ? 1 : blocks > kMaxBlocks ? kMaxBlocks : blocks;
  static thread_local Scratch scratch;
  constexpr int kSums = 3;
  float* partial = scratch.Get(blocks * kSums * cols);
  float* const results[kSums] = {a.dw, kCentered ? a.db : nullptr, a.dx_sums};
  const int team = a.rows * cols < 2 * kGrain ? 1 : threads;
  ParallelFor(team, blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      float* own[kSums] = {};
      for (int k = 0; k < kSums; ++k) {
        if (results[k] == nullptr) continue;
        own[k] = partial + (block * kSums + k) * cols;
        for (int64_t c = 0; c < cols; ++c) own[k][c] = 0;
      }
      const int64_t last = a.rows * (block + 1) / blocks;
      for (int64_t r = a.rows * block / blocks; r < last; ++r) {
        Row<kCentered>(a, dy, r, {own[0], own[1], own[2]});
      }
    }
  });
  ParallelFor(team, cols, 256, [&](int64_t begin, int64_t end) {
    for (int k = 0; k < kSums; ++k) {
      if (results[k] == nullptr) continue;
      ForLanes(begin, end, [&](int64_t c, int64_t n) {
        Vec sum = {};
        for (int64_t block = 0; block < blocks; ++block) {
          sum += LoadN(partial + (block * kSums + k) * cols + c, n);
        }
        StoreN(results[k] + c, n, sum);
      });
    }
  });
}

template <bool kCentered>
void NormBackward(const NormBackwardArgs& a, int threads) {
  if (a.dy_bf16 != nullptr) {
    Rows<kCentered>(a, a.dy_bf16, threads);
  } else {
    Rows<kCentered>(a, a.dy, threads);
  }
}

}  // namespace

void LayerNormBackward(const NormBackwardArgs& a, int threads) { NormBackward<true>(a, threads); }
void RmsNormBackward(const NormBackwardArgs& a, int threads) { NormBackward<false>(a, threads); }

}  // namespace shardc::cpu::SHARDC_ISA
