#include "tests/runtime/cuda/ptx/instructions.h"

#include <stdexcept>
#include <string>

#include "tests/runtime/cuda/ptx/lanes.h"

namespace shardc::ptx {
namespace {

size_t BytesOf(const Parts& p) {
  if (p.name() == "ldmatrix") return 16;
  const std::string_view type = p.Last();
  const size_t bits = type.ends_with("64")   ? 64
                      : type.ends_with("32") ? 32
                      : type.ends_with("16") ? 16
                                             : 8;
  return bits / 8 * (p.Has("v4") ? 4 : p.Has("v2") ? 2 : 1);
}

void DecodeAccess(const Parts& p, Instruction& i) {
  i.bytes = BytesOf(p);
  i.access = p.name() == "st"     ? Access::kStore
             : p.name() == "atom" ? Access::kAtomic
                                  : Access::kLoad;
  i.space = p.Has("global")   ? Space::kGlobal
            : p.Has("shared") ? Space::kShared
            : p.Has("local")  ? Space::kLocal
            : p.Has("param")  ? Space::kParam
                              : Space::kGeneric;
}

Step Find(const Parts& p, const Instruction& i) {
  const std::string_view op = p.name();
  if (op == "mov") return FindMove(p, i);
  if (op == "ld" || op == "st" || op == "atom") return FindAccess(p, i.space);
  if (op == "cp") return FindCopy(i.opcode);
  if (op == "cvta") return FindAddress(p);
  if (op == "cvt") return FindConversion(p);
  if (op == "setp") return i.results == 1 && i.slots == 3 ? FindComparison(p) : nullptr;
  return FindArithmetic(p);
}

}  // namespace

void Decode(Instruction& i) {
  const Parts p(i.opcode);
  if (p.name() == "bra" || p.name() == "ret") {
    i.kind = p.name() == "bra" ? Kind::kBranch : Kind::kReturn;
    return;
  }
  if (i.opcode == "bar.sync" && i.guard < 0) {
    i.kind = Kind::kBarrier;
    return;
  }
  i.step = FindExchange(p, i.opcode);
  if (i.step != nullptr) i.kind = Kind::kTogether;
  i.aligned = p.Has("aligned");
  if (p.name() == "ld" || p.name() == "st" || p.name() == "atom" || p.name() == "ldmatrix") {
    DecodeAccess(p, i);
  }
  if (p.name() == "cp" && i.slots == 4) {
    i.access = Access::kCopy;
    i.space = Space::kGlobal;
  }
  if (i.step == nullptr) i.step = Find(p, i);
  if (i.step == nullptr) {
    throw std::runtime_error("PTX line " + std::to_string(i.line) + ": unknown instruction '" +
                             std::string(i.opcode) + "'");
  }
}

}  // namespace shardc::ptx
