// Instruction set levels for which the vector kernels are compiled.
#ifndef RUNTIME_CPU_KERNELS_ISA_H_
#define RUNTIME_CPU_KERNELS_ISA_H_

#include <vector>

namespace shardc::cpu {

enum class Isa {
  kV1,    // x86-64: SSE2; of other processors what the compiler takes for granted
  kV3,    // x86-64-v3: AVX2, FMA
  kV4,    // x86-64-v4: AVX-512 F, BW, DQ, VL
  kBf16,  // x86-64-v4 with AVX512_BF16
  kAmx,   // ... and AMX tiles of bf16
};

const char* IsaName(Isa isa);

// The levels this machine can run, lowest first.
std::vector<Isa> SupportedIsas();

}  // namespace shardc::cpu

#endif  // RUNTIME_CPU_KERNELS_ISA_H_
