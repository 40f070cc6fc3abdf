// The instructions of a ProductGroup beside one product of a library that does them all: that is
// taken only where it gave the same results on this GPU, in less time.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/kernel_call.h"
#include "ir/program.h"
#include "runtime/cuda/product_groups.h"
#include "runtime/cuda/rival_kernel.h"

namespace shardc::cuda {

// A ProductGroup and its device memory. What the group has none of has no data.
struct FusedProduct {
  Epilogue epilogue = Epilogue::kNone;
  const Instruction* product = nullptr;  // its op and attributes
  TensorView left, right, product_result, bias, aux, result, sums;
};

class EpilogueLibrary {
 public:
  virtual ~EpilogueLibrary() = default;
  // What the speed depends on besides the problem and the GPU.
  virtual std::string Version() = 0;
  virtual TrialGpu& Gpu() = 0;
  // For the launch's stream; null, with the reason, when the library does not do this.
  virtual std::unique_ptr<CudaKernel> Make(const FusedProduct& product, const Launch& launch,
                                           std::string* why_not) = 0;
};

// `view`: of a buffer of the program.
FusedProduct FusedProductOf(const Program& program, const ProductGroup& group,
                            const std::function<TensorView(int)>& view);

// What a trial of it is on. Operands are spread so that products are about as large as 1, where
// gelu bends.
Rivalry RivalryOf(const FusedProduct& product, EpilogueLibrary& library);

// `separate`: the kernels of the group's instructions, in order, prepared and tuned by others. They
// and the library must outlive it.
std::unique_ptr<RivalKernel> MakeGroupKernel(std::vector<CudaKernel*> separate,
                                             const FusedProduct& product, EpilogueLibrary& library);

}  // namespace shardc::cuda
