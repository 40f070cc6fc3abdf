#include "runtime/cpu/kernels/kernel_table.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace shardc::cpu {

#define SHARDC_DECLARE_TABLES(isa)                                                             \
  namespace isa {                                                                              \
  extern const AttentionKernels kAttentionKernels;                                             \
  extern const CastKernels kCastKernels;                                                       \
  extern const CrossEntropyKernels kCrossEntropyKernels;                                       \
  extern const DropoutKernels kDropoutKernels;                                                 \
  extern const ElementwiseKernels kElementwiseKernels;                                         \
  extern const EmbeddingKernels kEmbeddingKernels;                                             \
  extern const FusedElementwiseKernels kFusedElementwiseKernels;                               \
  extern const NormKernels kNormKernels;                                                       \
  extern const OptimizerKernels kOptimizerKernels;                                             \
  extern const ReduceKernels kReduceKernels;                                                   \
  extern const RotaryKernels kRotaryKernels;                                                   \
  extern const RowProductKernels kRowProductKernels;                                           \
  extern const SoftmaxKernels kSoftmaxKernels;                                                 \
  static KernelTable Table() {                                                                 \
    return {kAttentionKernels,   kCastKernels,      kCrossEntropyKernels,     kDropoutKernels, \
            kElementwiseKernels, kEmbeddingKernels, kFusedElementwiseKernels, kNormKernels,    \
            kOptimizerKernels,   ProductKernels{},  kReduceKernels,           kRotaryKernels,  \
            kRowProductKernels,  kSoftmaxKernels};                                             \
  }                                                                                            \
  }
SHARDC_DECLARE_TABLES(v1)
SHARDC_DECLARE_TABLES(v3)
SHARDC_DECLARE_TABLES(v4)
#undef SHARDC_DECLARE_TABLES
// On top of v4, attention of bf16 operands.
static KernelTable With(const AttentionKernels& of_bf16) {
  KernelTable table = v4::Table();
  table.attention.forward_bf16 = of_bf16.forward_bf16;
  table.attention.backward_bf16 = of_bf16.backward_bf16;
  return table;
}
namespace bf16 {
extern const AttentionKernels kAttentionKernels;  // the bf16 ones only
static KernelTable Table() { return With(kAttentionKernels); }
}  // namespace bf16
namespace amx {
extern const AttentionKernels kAttentionKernels;  // the bf16 ones only
extern const ProductKernels kProductKernels;
static KernelTable Table() {
  KernelTable table = With(kAttentionKernels);
  table.product = kProductKernels;
  return table;
}
}  // namespace amx

// Whether the system lets this process use the tiles' registers.
static bool MayUseTiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // Linux, asm/prctl.h
  static const bool may = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return may;
}

const char* IsaName(Isa isa) {
  switch (isa) {
    case Isa::kV1:
      return "v1";
    case Isa::kV3:
      return "v3";
    case Isa::kV4:
      return "v4";
    case Isa::kBf16:
      return "bf16";
    case Isa::kAmx:
      return "amx";
  }
  return "?";
}

std::vector<Isa> SupportedIsas() {
  std::vector<Isa> isas = {Isa::kV1};
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
      !__builtin_cpu_supports("bmi") || !__builtin_cpu_supports("bmi2")) {
    return isas;
  }
  isas.push_back(Isa::kV3);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd") &&
      __builtin_cpu_supports("avx512vl")) {
    isas.push_back(Isa::kV4);
    if (__builtin_cpu_supports("avx512bf16")) {
      isas.push_back(Isa::kBf16);
      if (__builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
          MayUseTiles()) {
        isas.push_back(Isa::kAmx);
      }
    }
  }
  return isas;
}

const KernelTable& KernelsFor(Isa isa) {
  static const KernelTable tables[] = {v1::Table(), v3::Table(), v4::Table(), bf16::Table(),
                                       amx::Table()};
  return tables[static_cast<int>(isa)];
}

const KernelTable& Kernels() {
  static const KernelTable& chosen = []() -> const KernelTable& {
    const std::vector<Isa> isas = SupportedIsas();
    if (const char* wanted = std::getenv("SHARDC_ISA")) {
      for (Isa isa : isas) {
        if (std::string_view(wanted) == IsaName(isa)) return KernelsFor(isa);
      }
    }
    return KernelsFor(isas.back());
  }();
  return chosen;
}

}  // namespace shardc::cpu
