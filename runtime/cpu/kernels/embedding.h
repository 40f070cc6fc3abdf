// Embedding lookup in a table shard that holds the global rows [row_offset, row_offset + rows).
#ifndef RUNTIME_CPU_KERNELS_EMBEDDING_H_
#define RUNTIME_CPU_KERNELS_EMBEDDING_H_

#include <cstdint>

namespace shardc::cpu {

struct EmbeddingArgs {
  const int64_t* ids = nullptr;  // [count], global row ids
  int64_t count = 0;
  int64_t row_offset = 0;
  int64_t rows = 0;  // rows of this shard
  int64_t cols = 0;
};

struct EmbeddingKernels {
  // y[i, :] = table[ids[i] - row_offset, :], or 0 if that row is not in the shard.
  void (*gather)(const EmbeddingArgs&, const float* table, float* y, int threads);
  // d_table[ids[i] - row_offset, :] += dy[i, :] in the order of i, ids outside the shard skipped;
  // d_table is zeroed first unless `accumulate`. The result does not depend on `threads`.
  void (*gradient)(const EmbeddingArgs&, const float* dy, float* d_table, bool accumulate,
                   int threads);
};

}  // namespace shardc::cpu

#endif  // RUNTIME_CPU_KERNELS_EMBEDDING_H_
