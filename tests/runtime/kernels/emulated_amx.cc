#include "tests/runtime/kernels/emulated_amx.h"

namespace shardc::cpu {

namespace emulated_amx {
extern const AttentionKernels kAttentionKernels;  // the bf16 ones only
extern const ProductKernels kProductKernels;
}  // namespace emulated_amx

const KernelTable* EmulatedAmx() {
  static const KernelTable table = [] {
    KernelTable v4 = KernelsFor(Isa::kV4);
    v4.attention.forward_bf16 = emulated_amx::kAttentionKernels.forward_bf16;
    v4.attention.backward_bf16 = emulated_amx::kAttentionKernels.backward_bf16;
    v4.product = emulated_amx::kProductKernels;
    return v4;
  }();
  const Isa best = SupportedIsas().back();
  return best == Isa::kV4 || best == Isa::kBf16 ? &table : nullptr;
}

}  // namespace shardc::cpu
