// One product by cuBLASLt (native/cublas_product.cu); in tests on the CPU, by loops.
#pragma once

#include <string>

#include "runtime/cuda/epilogue_kernel.h"
#include "runtime/cuda/kernels/bind.h"
#include "runtime/cuda/kernels/matmul_plan.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {

// D = epilogue(op(A) op(B) + bias or C). `dtype` is that of A and B, all else is of `out_dtype`.
struct MatrixProduct {
  MatmulPlan plan;
  DType dtype = DType::kF32, out_dtype = DType::kF32;
  const std::byte *a = nullptr, *b = nullptr, *c = nullptr;
  std::byte* d = nullptr;
  bool from_workspace = false;      // a and b count from where the workspace of a launch begins
  const std::byte* bias = nullptr;  // one for each row; not with C
  // With an epilogue the plan has one part, of one matrix.
  Epilogue epilogue = Epilogue::kNone;
  std::byte *aux = nullptr, *sums = nullptr;
};

// Where an operand, a or b, lies.
inline const std::byte* OperandOf(const MatrixProduct& product, const Launch& launch,
                                  const std::byte* operand) {
  return product.from_workspace ? launch.workspace + reinterpret_cast<intptr_t>(operand) : operand;
}

// Without an epilogue. `add_bias`, if any, adds a bias afterwards: where there is none in
// `product`, or where that is faster.
KernelPtr MakeProduct(const MatrixProduct& product, KernelPtr add_bias);
// Null, with the reason, when cuBLASLt has no such epilogue for the product.
KernelPtr MakeEpilogueProduct(const MatrixProduct& product, const Launch& launch,
                              std::string* why_not);

// matmul.cu: the product, then a kernel that needs no preparation and no workspace.
KernelPtr MakeFollowed(KernelPtr product, KernelPtr next);
// matmul.cu: copies operands of halves as planned to work memory that begins at `to`.
void EnqueuePadding(const Launch& launch, const MatrixProduct& product, const PaddingPlan& padding,
                    std::byte* to);
// matmul.cu: `count` elements of f32 as halves.
void EnqueueNarrowing(const Launch& launch, const std::byte* from, std::byte* to, DType half,
                      int64_t count);
// matmul.cu; as EpilogueLibrary::Make.
KernelPtr MakeFusedProduct(const FusedProduct& product, const Launch& launch, std::string* why_not);

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
