#include <string.h>

#include "runtime/cpu/kernels/embedding.h"
#include "runtime/cpu/kernels/parallel.h"
#include "runtime/cpu/kernels/vec.h"

namespace shardc::cpu::SHARDC_ISA {
namespace {

constexpr int64_t kGrain = 16384;

void Gather(const EmbeddingArgs& a, const float* table, float* y, int threads) {
  if (a.cols == 0) return;
  const size_t bytes = static_cast<size_t>(a.cols) * sizeof(float);
  ParallelFor(threads, a.count, 1 + kGrain / a.cols, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = a.ids[i] - a.row_offset;
      if (row >= 0 && row < a.rows) {
        memcpy(y + i * a.cols, table + row * a.cols, bytes);
      } else {
        memset(y + i * a.cols, 0, bytes);
      }
    }
  });
}

void Gradient(const EmbeddingArgs& a, const float* dy, float* d_table, bool accumulate,
              int threads) {
  if (!accumulate) {
    ParallelFor(threads, a.rows * a.cols, 4 * kGrain, [&](int64_t begin, int64_t end) {
      memset(d_table + begin, 0, static_cast<size_t>(end - begin) * sizeof(float));
    });
  }
  // Cut by columns: no two threads ever write the same row piece, and the order of i is kept.
  const int team = a.count * a.cols < kGrain ? 1 : threads;
  ParallelFor(
      team, a.cols, 16,
      [&](int64_t begin, int64_t end) {
        for (int64_t i = 0; i < a.count; ++i) {
          const int64_t row = a.ids[i] - a.row_offset;
          if (row < 0 || row >= a.rows) continue;
          const float* from = dy + i * a.cols;
          float* to = d_table + row * a.cols;
          ForLanes(begin, end, [&](int64_t c, int64_t n) {
            StoreN(to + c, n, LoadN(to + c, n) + LoadN(from + c, n));
          });
        }
      },
      16);
}

}  // namespace

extern const EmbeddingKernels kEmbeddingKernels;
const EmbeddingKernels kEmbeddingKernels = {.gather = Gather, .gradient = Gradient};

}  // namespace shardc::cpu::SHARDC_ISA
