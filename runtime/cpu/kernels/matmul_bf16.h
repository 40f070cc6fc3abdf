// Matrix products of bf16 operands with sums in f32: oneDNN's (AMX or AVX512-BF16 where the machine
// has them), or those of product.h where they are faster.
#ifndef RUNTIME_CPU_KERNELS_MATMUL_BF16_H_
#define RUNTIME_CPU_KERNELS_MATMUL_BF16_H_

#include <cstdint>
#include <memory>
#include <string>

namespace shardc::cpu {

// C[m, n] = op(A) op(B) + bias, or C += op(A) op(B), for each of `batch` matrices. op(A)
// is A[m, k], or the transpose of A[k, m]; op(B) is B[k, n], or the transpose of B[n, k].
struct MatmulBf16Config {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t batch = 1;
  // Elements from one stored row of A and C to the next; 0: the row's. B is dense.
  int64_t lda = 0;
  int64_t ldc = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  bool bias = false;  // [n]; batch == 1 only
  bool bias_f32 = false;
  bool result_f32 = false;  // else C is bf16, rounded once
  bool accumulate = false;  // not together with a bias
  int threads = 1;
};

// Not thread safe: one object belongs to one rank's thread, which must also have made it.
class MatmulBf16 {
 public:
  // Null where this machine's oneDNN has no bf16 product.
  static std::unique_ptr<MatmulBf16> Create(const MatmulBf16Config& config);
  ~MatmulBf16();

  void Execute(const void* a, const void* b, const void* bias, void* c);

  // Memory by which this object made its thread's room for packed operands grow.
  int64_t held_bytes() const;
  // The oneDNN kernel chosen, or "amx".
  std::string implementation() const;

 private:
  struct State;
  explicit MatmulBf16(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace shardc::cpu

#endif  // RUNTIME_CPU_KERNELS_MATMUL_BF16_H_
