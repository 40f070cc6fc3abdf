// PTX ISA 9.7.9 and 9.7.13: loads, stores, atomics, addresses.
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "tests/runtime/cuda/ptx/lanes.h"
#include "tests/runtime/cuda/ptx/memory.h"

namespace shardc::ptx {
namespace {

void CheckAligned(const Instruction& i, uint64_t address) {
  if (address % i.bytes != 0) throw std::runtime_error("an address that is not aligned");
}

// Parameters of the kernel are only read.
template <Space kSpace, bool kReads>
std::byte* Reach(const Instruction& i, const Warp& w, int lane, uint64_t address) {
  if constexpr (kSpace == Space::kShared) return ReachShared(i, w, address);
  CheckAligned(i, address);
  const Block& block = *w.block;
  const auto bytes = static_cast<int64_t>(i.bytes);
  auto* p = reinterpret_cast<std::byte*>(address);
  auto within = [&](const std::byte* begin, int64_t size) {
    return p >= begin && p + bytes <= begin + size;
  };
  constexpr bool kAny = kSpace == Space::kGeneric;
  if ((kAny || kSpace == Space::kGlobal) && block.memory->Holds(p, bytes)) return p;
  // Parameters of calls are in local memory.
  if (kSpace != Space::kGlobal && within(w.local + lane * w.local_bytes, w.local_bytes)) return p;
  if (kReads && (kAny || kSpace == Space::kParam) && within(block.params, block.param_bytes))
    return p;
  if (kAny && within(block.shared, block.shared_bytes)) return p;
  throw std::runtime_error("outside of what was allocated");
}

template <typename T, int kN, Space kSpace>
void Load(const Instruction& i, Warp& w) {
  const uint64_t* base = w.At(i.slot[kN]);
  Lanes(w.mask, [&](int l) {
    const std::byte* p = Reach<kSpace, true>(i, w, l, base[l] + static_cast<uint64_t>(i.offset));
    T values[kN];
    std::memcpy(values, p, sizeof(values));
    for (size_t k = 0; k < kN; ++k) w.At(i.slot[k])[l] = Bits(values[k]);
  });
}
template <typename T, int kN, Space kSpace>
void Store(const Instruction& i, Warp& w) {
  const uint64_t* base = w.At(i.slot[0]);
  Lanes(w.mask, [&](int l) {
    std::byte* p = Reach<kSpace, false>(i, w, l, base[l] + static_cast<uint64_t>(i.offset));
    T values[kN];
    for (size_t k = 0; k < kN; ++k) values[k] = From<T>(w.At(i.slot[k + 1])[l]);
    std::memcpy(p, values, sizeof(values));
  });
}

template <Space kSpace>
Step AccessIn(const Parts& p) {
  const std::string_view type = p.Last();
  const bool load = p.name() == "ld";
  auto of = [&]<int kN>(std::integral_constant<int, kN>) {
    auto make = [&]<typename T>() -> Step {
      if constexpr (std::is_same_v<T, bool>)
        return nullptr;
      else
        return load ? &Load<T, kN, kSpace> : &Store<T, kN, kSpace>;
    };
    return load && type.starts_with('s') ? ByInteger(type, make) : ByUnsigned(type, make);
  };
  if (p.Has("v4")) return of(std::integral_constant<int, 4>());
  if (p.Has("v2")) return of(std::integral_constant<int, 2>());
  return of(std::integral_constant<int, 1>());
}

template <typename T>
void CompareAndSwap(const Instruction& i, Warp& w) {
  Lanes(w.mask, [&](int l) {  // one after the other
    auto* p =
        Reach<Space::kGlobal, false>(i, w, l, w.At(i.slot[1])[l] + static_cast<uint64_t>(i.offset));
    T old;
    std::memcpy(&old, p, sizeof(T));
    const T next = From<T>(w.At(i.slot[3])[l]);
    if (old == From<T>(w.At(i.slot[2])[l])) std::memcpy(p, &next, sizeof(T));
    w.At(i.slot[0])[l] = Bits(old);
  });
}
template <typename T>
void AddTo(const Instruction& i, Warp& w) {
  Lanes(w.mask, [&](int l) {
    auto* p =
        Reach<Space::kGlobal, false>(i, w, l, w.At(i.slot[1])[l] + static_cast<uint64_t>(i.offset));
    T old;
    std::memcpy(&old, p, sizeof(T));
    const T next = static_cast<T>(old + From<T>(w.At(i.slot[2])[l]));
    std::memcpy(p, &next, sizeof(T));
    w.At(i.slot[0])[l] = Bits(old);
  });
}

Step Atomic(const Parts& p) {
  const std::string_view type = p.Last();
  if (p.First() != "global") return nullptr;
  if (p.Has("cas"))
    return type == "b64"   ? &CompareAndSwap<uint64_t>
           : type == "b32" ? &CompareAndSwap<uint32_t>
                           : nullptr;
  if (p.Has("add") && (type == "u32" || type == "s32")) return &AddTo<uint32_t>;
  return nullptr;
}

// As late as can be: when the lane waits for them.
void BeginCopy(const Instruction& i, Warp& w) {
  Lanes(w.mask, [&](int l) {
    w.copies.push_back({l, w.committed[l], ReachShared(i, w, w.At(i.slot[0])[l]),
                        Reach<Space::kGlobal, true>(i, w, l, w.At(i.slot[1])[l]), i.bytes});
  });
}
void CommitCopies(const Instruction&, Warp& w) {
  Lanes(w.mask, [&](int l) { ++w.committed[l]; });
}
void WaitForCopies(const Instruction& i, Warp& w) {
  std::erase_if(w.copies, [&](const BackgroundCopy& c) {
    const auto left = static_cast<int64_t>(w.At(i.slot[0])[c.lane]);
    if ((w.mask >> c.lane & 1) == 0 || c.group + left >= w.committed[c.lane]) return false;
    std::memcpy(c.to, c.from, c.bytes);
    return true;
  });
}

// Between addresses of shared memory's window and generic ones.
void SharedToGeneric(const Instruction& i, Warp& w) {
  Lanes(w.mask, [&](int l) {
    w.At(i.slot[0])[l] = reinterpret_cast<uintptr_t>(w.block->shared) + w.At(i.slot[1])[l] -
                         static_cast<uint64_t>(kSharedWindow);
  });
}
void GenericToShared(const Instruction& i, Warp& w) {
  Lanes(w.mask, [&](int l) {
    w.At(i.slot[0])[l] = w.At(i.slot[1])[l] - reinterpret_cast<uintptr_t>(w.block->shared) +
                         static_cast<uint64_t>(kSharedWindow);
  });
}

}  // namespace

std::byte* ReachShared(const Instruction& i, const Warp& w, uint64_t address) {
  CheckAligned(i, address);
  const int64_t at = int64_t{static_cast<uint32_t>(address)} - kSharedWindow,
                size = w.block->shared_bytes;
  if (at < 0 || at + static_cast<int64_t>(i.bytes) > size) {
    throw std::runtime_error("outside of shared memory, which has " + std::to_string(size) +
                             " bytes: byte " + std::to_string(at));
  }
  return w.block->shared + at;
}

Step FindAccess(const Parts& p, Space space) {
  if (p.name() == "atom") return Atomic(p);
  switch (space) {
    case Space::kGlobal:
      return AccessIn<Space::kGlobal>(p);
    case Space::kShared:
      return AccessIn<Space::kShared>(p);
    case Space::kLocal:
      return AccessIn<Space::kLocal>(p);
    case Space::kParam:
      return AccessIn<Space::kParam>(p);
    case Space::kGeneric:
      break;
  }
  return AccessIn<Space::kGeneric>(p);
}

Step FindCopy(std::string_view opcode) {
  if (opcode == "cp.async.cg.shared.global" || opcode == "cp.async.ca.shared.global") {
    return &BeginCopy;
  }
  if (opcode == "cp.async.commit_group") return &CommitCopies;
  return opcode == "cp.async.wait_group" ? &WaitForCopies : nullptr;
}

Step FindAddress(const Parts& p) {
  if (p.Has("shared")) return p.Has("to") ? &GenericToShared : &SharedToGeneric;
  return &Map<[](uint64_t a) { return a; }, uint64_t, uint64_t>;
}

}  // namespace shardc::ptx
