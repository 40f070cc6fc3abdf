#include "tests/runtime/cuda/ptx/traffic.h"

#include <cxxabi.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "tests/runtime/cuda/ptx/lanes.h"

namespace shardc::ptx {
namespace {

constexpr uint64_t kSector = 32, kWord = 4, kBanks = 32;

// How many different ones there are.
int64_t Distinct(uint64_t* begin, uint64_t* end) {
  std::sort(begin, end);
  return std::unique(begin, end) - begin;
}

// What a generic address means. One lane's stands for all: no kernel of ours has lanes that mean
// different memories.
Space SpaceOf(const Instruction& i, const Warp& w, uint64_t address) {
  if (i.space != Space::kGeneric) return i.space;
  auto within = [&](const std::byte* begin, int64_t bytes) {
    return address - reinterpret_cast<uintptr_t>(begin) < static_cast<uint64_t>(bytes);
  };
  const Block& b = *w.block;
  if (within(b.shared, b.shared_bytes)) return Space::kShared;
  if (within(w.local, w.local_bytes * kLanes)) return Space::kLocal;
  return within(b.params, b.param_bytes) ? Space::kParam : Space::kGlobal;
}

// Of a mangled name; others stay as they are.
std::string Short(const std::string& name) {
  int status = 0;
  char* demangled = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  std::string text = status == 0 ? demangled : name;
  std::free(demangled);
  for (std::string_view of :
       {"(anonymous namespace)::", "shardc::cuda::device::", "shardc::cuda::"}) {
    for (size_t at; (at = text.find(of)) != std::string::npos;) text.erase(at, of.size());
  }
  return text;
}

std::string Object(std::initializer_list<std::pair<const char*, std::string>> members) {
  std::string text;
  for (const auto& [name, value] : members) {
    text += (text.empty() ? "{\"" : ", \"") + std::string(name) + "\": " + value;
  }
  return text + "}";
}
std::string Text(int64_t n) { return std::to_string(n); }
std::string Text(const GlobalAccesses& a) {
  return Object({{"requests", Text(a.requests)},
                 {"bytes", Text(a.bytes)},
                 {"sectors", Text(a.sectors)},
                 {"wide", Text(a.wide)},
                 {"generic", Text(a.generic)},
                 {"touched", Text(a.touched)}});
}

const char* Path() {
  static const char* const path = std::getenv("SHARDC_PTX_TRAFFIC");
  return path;
}

}  // namespace

void TrafficMeter::Touched::Add(uint64_t address, size_t bytes) {
  if (address / kPage != last_) {
    last_ = address / kPage;
    page_ = &pages_[last_];
  }
  const uint64_t bits = (uint64_t{1} << bytes) - 1;
  (*page_)[address % kPage / 64] |= bits << address % 64;
}

int64_t TrafficMeter::Touched::count() const {
  int64_t n = 0;
  for (const auto& [at, page] : pages_) {
    for (uint64_t bits : page) n += std::popcount(bits);
  }
  return n;
}

bool TrafficMeter::Pending::Needs(const Instruction& i) const {
  if (i.guard >= 0 && is[static_cast<size_t>(i.guard)]) return true;
  return std::any_of(i.slot.begin(), i.slot.begin() + i.slots,
                     [&](int32_t slot) { return is[static_cast<size_t>(slot)]; });
}

void TrafficMeter::Pending::Add(const Instruction& i) {
  for (size_t k = 0; k < static_cast<size_t>(i.results); ++k) {
    slots.push_back(i.slot[k]);
    is[static_cast<size_t>(i.slot[k])] = true;
  }
}

void TrafficMeter::Pending::Clear() {
  for (int32_t slot : slots) is[static_cast<size_t>(slot)] = false;
  slots.clear();
}

TrafficMeter::TrafficMeter(const Kernel& kernel, const Grid& grid) {
  const auto warps = static_cast<size_t>((grid.threads + kLanes - 1) / kLanes);
  total_.warps = grid.blocks * static_cast<int64_t>(warps);
  pending_.resize(warps, {{}, std::vector<bool>(static_cast<size_t>(kernel.slots))});
}

void TrafficMeter::BeginBlock() {
  for (Pending& p : pending_) p.Clear();
}

void TrafficMeter::Count(const Instruction& i, const Warp& state, int warp, uint32_t mask) {
  ++total_.instructions;
  total_.mma += i.opcode.starts_with("mma");
  Pending& pending = pending_[static_cast<size_t>(warp)];
  if (!pending.slots.empty() && pending.Needs(i)) {
    ++total_.waits;
    pending.Clear();
  }
  if (i.access != Access::kNone && mask != 0 && AddAccess(i, state, mask)) pending.Add(i);
  total_.waits += i.opcode == "cp.async.wait_group";
}

bool TrafficMeter::AddAccess(const Instruction& i, const Warp& state, uint32_t mask) {
  uint64_t addresses[kLanes];
  const uint64_t* base = state.At(i.address());
  Lanes(mask, [&](int l) { addresses[l] = base[l] + static_cast<uint64_t>(i.offset); });
  switch (SpaceOf(i, state, addresses[std::countr_zero(mask)])) {
    case Space::kParam:
      return false;
    case Space::kLocal:
      ++total_.local;
      return false;
    case Space::kShared:
      AddShared(i, addresses, mask);
      return false;
    default:
      break;
  }
  if (i.access == Access::kAtomic) {
    ++total_.atomics;
    return false;
  }
  const bool loads = i.access != Access::kStore;
  GlobalAccesses& to = loads ? total_.loads : total_.stores;
  uint64_t sectors[kLanes], *end = sectors;
  Lanes(mask, [&](int l) {
    *end++ = addresses[l] / kSector;
    (loads ? loaded_ : stored_).Add(addresses[l], i.bytes);
  });
  ++to.requests;
  to.bytes += (end - sectors) * static_cast<int64_t>(i.bytes);
  to.sectors += Distinct(sectors, end);
  to.wide += i.bytes == 16;
  to.generic += i.space == Space::kGeneric;
  return i.access == Access::kLoad;
}

void TrafficMeter::AddShared(const Instruction& i, const uint64_t* addresses, uint32_t mask) {
  ++total_.shared_requests;
  const int together = i.bytes <= kWord ? kLanes : static_cast<int>(kBanks * kWord / i.bytes);
  for (int first = 0; first < kLanes; first += together) {
    uint64_t words[kLanes], *end = words;
    for (int l = first; l < first + together; ++l) {
      if ((mask >> l & 1) == 0) continue;
      for (uint64_t at = 0; at < i.bytes; at += kWord) *end++ = (addresses[l] + at) / kWord;
    }
    if (end == words) continue;
    std::array<int64_t, kBanks> turns = {};
    const uint64_t* last = words + Distinct(words, end);
    for (const uint64_t* w = words; w < last; ++w) ++turns[*w % kBanks];
    const int64_t most = *std::max_element(turns.begin(), turns.end());
    total_.wavefronts += most;
    total_.conflicts += most - 1;
  }
}

Traffic TrafficMeter::total() const {
  Traffic t = total_;
  t.loads.touched = loaded_.count();
  t.stores.touched = stored_.count();
  return t;
}

std::string ToJson(const std::string& kernel, const Grid& grid, const Traffic& t) {
  return Object({{"kernel", '"' + Short(kernel) + '"'},
                 {"blocks", Text(grid.blocks)},
                 {"threads", Text(grid.threads)},
                 {"shared", Text(grid.shared_bytes)},
                 {"warps", Text(t.warps)},
                 {"instructions", Text(t.instructions)},
                 {"mma", Text(t.mma)},
                 {"waits", Text(t.waits)},
                 {"loads", Text(t.loads)},
                 {"stores", Text(t.stores)},
                 {"atomics", Text(t.atomics)},
                 {"local", Text(t.local)},
                 {"shared_requests", Text(t.shared_requests)},
                 {"wavefronts", Text(t.wavefronts)},
                 {"conflicts", Text(t.conflicts)}});
}

bool RecordsTraffic() { return Path() != nullptr; }

void RecordTraffic(const std::string& kernel, const Grid& grid, const Traffic& traffic) {
  static std::ofstream file(Path(), std::ios::app);
  if (!file) throw std::runtime_error(std::string("SHARDC_PTX_TRAFFIC: cannot write ") + Path());
  file << ToJson(kernel, grid, traffic) + "\n" << std::flush;
}

}  // namespace shardc::ptx
