// Products of large matrices with AMX tiles: bf16 operands, and f32 operands as sums of bf16 ones.
// Sums are in f32.
//
// An f32 number of 24 bits is the sum of three bf16 numbers of 8, a = a1 + a2 + a3, exactly where
// nothing underflows. Of the nine products of their parts the six largest are added up,
//   a1 b1 + (a1 b2 + a2 b1) + (a1 b3 + a2 b2 + a3 b1),
// the small ones first. What is left out is below 2^-22 |a b|, most often far below, so that the
// result is as close to the true one as an f32 product's (Henry, Tang, Heinecke, "Leveraging the
// bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations", ARITH 2019; held to
// oneDNN's by tests/runtime/kernels/product_test.cc). Unlike it: an infinite element makes NaN of
// what it contributes to, parts below 2^-126 are zero, so that elements below some 2^-110 have
// fewer bits, and so are results below 2^-126.
#ifndef RUNTIME_CPU_KERNELS_PRODUCT_H_
#define RUNTIME_CPU_KERNELS_PRODUCT_H_

#include <cstdint>

namespace shardc::cpu {

// C[m, n] = op(A) op(B) + bias, or C += op(A) op(B) + bias, for each of `batch` matrices. op(A) is
// A[m, k], or the transpose of A[k, m]; op(B) is B[k, n], or the transpose of B[n, k]. m, n, k and
// batch are not zero. T is float or uint16_t (bf16).
template <typename T>
struct ProductArgsOf {
  int64_t m = 0, n = 0, k = 0, batch = 1;
  const T *a = nullptr, *b = nullptr;
  bool transpose_a = false, transpose_b = false;
  int64_t lda = 0, ldb = 0, ldc = 0;  // elements from one stored row to the next
  int64_t batch_stride_a = 0, batch_stride_b = 0, batch_stride_c = 0;  // 0: the same for all
  // [n]; one of them or none.
  const float* bias = nullptr;
  const uint16_t* bias_bf16 = nullptr;
  // One of them; bf16 is rounded once, to nearest even.
  float* c = nullptr;
  uint16_t* c_bf16 = nullptr;
  bool accumulate = false;
};

struct ProductKernels {
  // Bytes of work memory, 64-byte aligned, for the other two functions; each thread of the team
  // takes up to 1 MiB besides. `part_count` is 3 for f32 and 1 for bf16.
  int64_t (*work_bytes)(int64_t m, int64_t n, int64_t k, int64_t batch, int part_count,
                        bool result_bf16, int threads) = nullptr;
  // Null below Isa::kAmx. The bits of a result do not depend on `threads`, nor an element's on m
  // and n.
  void (*f32)(const ProductArgsOf<float>& args, void* work, int threads) = nullptr;
  void (*bf16)(const ProductArgsOf<uint16_t>& args, void* work, int threads) = nullptr;
};

}  // namespace shardc::cpu

#endif  // RUNTIME_CPU_KERNELS_PRODUCT_H_
