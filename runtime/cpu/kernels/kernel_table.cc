#include "runtime/cpu/kernels/kernel_table.h"

#include <cstdlib>
#include <string_view>

namespace shardc::cpu {
namespace {

Isa ChosenIsa() {
  const std::vector<Isa> isas = SupportedIsas();
  if (const char* wanted = std::getenv("SHARDC_ISA")) {
    for (Isa isa : isas) {
      if (std::string_view(wanted) == IsaName(isa)) return isa;
    }
  }
  return isas.back();
}

}  // namespace

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

const KernelTable& Kernels() {
  static const KernelTable& chosen = KernelsFor(ChosenIsa());
  return chosen;
}

}  // namespace shardc::cpu
