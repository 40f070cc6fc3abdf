#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/cpu/kernels/level_tables.h"

namespace shardc::cpu {

SHARDC_LEVEL_TABLE(v1)
SHARDC_LEVEL_TABLE(v3)
SHARDC_LEVEL_TABLE(v4)

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

// Not every compiler knows these two by name.
static bool HasTilesOfBf16() {
  constexpr unsigned kTile = 1u << 24, kBf16 = 1u << 22;  // leaf 7, EDX
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & kTile) && (edx & kBf16);
}
// Whether the system lets this process use the tiles' registers.
static bool MayUseTiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // Linux, asm/prctl.h
  static const bool may = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return may;
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
      if (HasTilesOfBf16() && MayUseTiles()) isas.push_back(Isa::kAmx);
    }
  }
  return isas;
}

const KernelTable& KernelsFor(Isa isa) {
  static const KernelTable tables[] = {v1::Table(), v3::Table(), v4::Table(), bf16::Table(),
                                       amx::Table()};
  return tables[static_cast<int>(isa)];
}

}  // namespace shardc::cpu
