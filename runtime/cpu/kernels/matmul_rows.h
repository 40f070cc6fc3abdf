// Matrix products of chosen rows. These are copied beside each other, so many at a time, for
// products by oneDNN that take as many rows as there are, each by one thread.
#ifndef RUNTIME_CPU_KERNELS_MATMUL_ROWS_H_
#define RUNTIME_CPU_KERNELS_MATMUL_ROWS_H_

#include <cstdint>
#include <memory>
#include <vector>

namespace shardc::cpu {

// For each of several matrices C[rows, n] = A[rows, k] B[k, n], or B[n, k] transposed, in the rows
// that are chosen, and zero in the others. With `sums` C[k, n] = A[rows, k]^T B[rows, n], summed
// over the chosen rows.
struct MatmulRowsConfig {
  int64_t rows = 0, k = 0, n = 0;
  bool transpose_b = false, sums = false;
  bool accumulate = false;   // C += the sums
  bool bf16 = false;         // A and B, else f32; sums are in f32
  bool result_bf16 = false;  // C, rounded once; with `bf16` only
  int threads = 1;
  // Where they begin, in bytes.
  struct Matrix {
    int64_t a = 0, b = 0, c = 0;
  };
  std::vector<Matrix> matrices;
};

// Not thread safe: one object belongs to one rank's thread, which must also have made it.
class MatmulRows {
 public:
  // Null where this machine's oneDNN has no such product.
  static std::unique_ptr<MatmulRows> Create(const MatmulRowsConfig& config);
  ~MatmulRows();

  // chosen[matrices, rows]; 0: the row is not.
  void Execute(const uint8_t* chosen, const std::byte* a, const std::byte* b, std::byte* c);

  // Memory by which this object made its thread's room for rows grow.
  int64_t held_bytes() const;

 private:
  struct State;
  explicit MatmulRows(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace shardc::cpu

#endif  // RUNTIME_CPU_KERNELS_MATMUL_ROWS_H_
