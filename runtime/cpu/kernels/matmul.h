// f32 matrix products: made once, then executed many times. oneDNN's, but for those of very few
// rows (row_product.h), and large ones on a machine with AMX (product.h).
#ifndef RUNTIME_CPU_KERNELS_MATMUL_H_
#define RUNTIME_CPU_KERNELS_MATMUL_H_

#include <cstdint>
#include <memory>
#include <string>

namespace shardc::cpu {

// C[m, n] = op(A) op(B) + bias, or C += op(A) op(B), for each of `batch` matrices, dense ones.
// op(A) is A[m, k], or the transpose of A[k, m]; op(B) is B[k, n], or the transpose of B[n, k].
struct MatmulConfig {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t batch = 1;
  bool transpose_a = false;
  bool transpose_b = false;
  // Elements from one stored row to the next; 0: the stored row length.
  int64_t lda = 0;
  int64_t ldc = 0;
  bool bias = false;        // [n]
  bool accumulate = false;  // not together with bias
  // B is a weight: keep a copy in oneDNN's blocked layout where that gains; needs batch == 1.
  bool pack_b = false;
  int threads = 1;
};

// Not thread safe: one object belongs to one rank's thread, which must also have made it. Create
// and Execute set that thread's OpenMP team size.
class MatmulF32 {
 public:
  // Throws std::invalid_argument for a config that makes no sense and std::runtime_error if oneDNN
  // refuses it.
  static MatmulF32 Create(const MatmulConfig& config);

  MatmulF32(MatmulF32&&) noexcept;
  MatmulF32& operator=(MatmulF32&&) noexcept;
  ~MatmulF32();

  // With pack_b: (re)packs the weight. To be called before the first Execute and whenever the
  // weight has changed.
  void PackB(const float* b);

  // What it holds: a packed copy (where oneDNN's kernel prefers the plain layout PackB makes none),
  // and by how much it made its thread's work memory grow.
  int64_t held_bytes() const;

  // `b` is ignored once packed; `bias` may be null without bias. Pointers need no alignment beyond
  // that of float.
  void Execute(const float* a, const float* b, const float* bias, float* c) const;

  // The oneDNN kernel chosen, e.g. "brg:avx512_core", or "sgemm", "few rows" or "amx:3xbf16".
  std::string implementation() const;

 private:
  struct State;
  explicit MatmulF32(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Has oneDNN make the code of its sgemm, for all products of the process, while there is memory for
// it. Throws std::bad_alloc where there is none.
void MakeSgemm();

}  // namespace shardc::cpu

#endif  // RUNTIME_CPU_KERNELS_MATMUL_H_
