#include "tests/runtime/cuda/ptx/machine.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/runtime/cuda/ptx/instructions.h"
#include "tests/runtime/cuda/ptx/traffic.h"

namespace shardc::ptx {
namespace {

constexpr int kNan = 0xff;

[[noreturn]] void Fail(const Kernel& kernel, const Instruction& i, const std::string& what) {
  throw std::runtime_error("kernel " + kernel.name + ", PTX line " + std::to_string(i.line) + " '" +
                           std::string(i.opcode) + "': " + what);
}

// The lanes of a warp, grouped by where they are.
class WarpState {
 public:
  WarpState(const Kernel& kernel, int index, uint64_t* registers, TrafficMeter* meter)
      : kernel_(kernel),
        index_(index),
        meter_(meter),
        local_(static_cast<size_t>(kernel.local_bytes) * kLanes) {
    warp_.registers = registers;
    warp_.local = local_.data();
    warp_.local_bytes = kernel.local_bytes;
    for (auto [slot, bits] : kernel.constants) Fill(slot, bits);
    for (auto [slot, offset] : kernel.locals_at) {
      for (int l = 0; l < kLanes; ++l) {
        warp_.At(slot)[l] =
            reinterpret_cast<uintptr_t>(local_.data() + l * kernel.local_bytes + offset);
      }
    }
  }

  void Begin(Block& block, int64_t block_index, const Grid& grid) {
    warp_.block = &block;
    warp_.copies.clear();
    std::fill(local_.begin(), local_.end(), std::byte{kNan});
    for (auto [slot, offset] : kernel_.params_at) {
      Fill(slot, reinterpret_cast<uintptr_t>(block.params + offset));
    }
    const int64_t first = int64_t{index_} * kLanes;
    Set(kNTidX, grid.threads);
    Set(kCtaIdX, block_index);
    Set(kNCtaIdX, grid.blocks);
    for (int l = 0; l < kLanes; ++l) {
      if (int slot = SlotOf(kTidX); slot >= 0) warp_.At(slot)[l] = static_cast<uint64_t>(first + l);
      if (int slot = SlotOf(kLaneId); slot >= 0) warp_.At(slot)[l] = static_cast<uint64_t>(l);
    }
    const int64_t lanes = std::min<int64_t>(grid.threads - first, kLanes);
    warp_.live = lanes == kLanes ? ~uint32_t{0} : (uint32_t{1} << lanes) - 1;
    all_ = warp_.live;
    groups_ = {{0, all_}};
    at_barrier_ = false;
  }

  bool done() const { return warp_.live == 0; }
  // Where it waits.
  const Instruction& at() const { return kernel_.code[static_cast<size_t>(groups_[0].at)]; }

  // Until all lanes are at a barrier, or have returned.
  void Run() {
    if (at_barrier_) {
      Count(at(), warp_.live);
      ++groups_[0].at;
    }
    at_barrier_ = false;
    while (!groups_.empty()) {
      // Behind the others, but for those that wait for them.
      size_t g = 0;
      while (g < groups_.size() && Waits(groups_[g])) ++g;
      if (g == groups_.size()) {
        at_barrier_ = groups_.size() == 1 && at().kind == Kind::kBarrier;
        if (at_barrier_) return CheckAll(at());
        Fail(kernel_, at(), "lanes of a warp wait here for others that do not come");
      }
      Advance(g);
    }
  }

 private:
  struct Group {
    int at = 0;
    uint32_t mask = 0;
  };

  int SlotOf(Special s) const { return kernel_.special[static_cast<size_t>(s)]; }
  void Set(Special s, int64_t value) {
    if (int slot = SlotOf(s); slot >= 0) Fill(slot, static_cast<uint64_t>(value));
  }
  void Fill(int slot, uint64_t bits) { std::fill_n(warp_.At(slot), kLanes, bits); }

  bool Waits(const Group& g) const {
    const Kind kind = kernel_.code[static_cast<size_t>(g.at)].kind;
    return kind == Kind::kBarrier || (kind == Kind::kTogether && g.mask != warp_.live);
  }

  void CheckAll(const Instruction& i) const {
    if (warp_.live != all_) Fail(kernel_, i, "some lanes of the warp have returned");
  }

  // Runs a group up to a place where the others matter: where it parts, meets them or passes them.
  void Advance(size_t g) {
    Group group = groups_[g];
    const int next =
        g + 1 < groups_.size() ? groups_[g + 1].at : static_cast<int>(kernel_.code.size());
    groups_.erase(groups_.begin() + static_cast<int64_t>(g));
    while (true) {
      const Instruction& i = kernel_.code[static_cast<size_t>(group.at)];
      uint32_t mask = group.mask;
      if (i.guard >= 0) mask &= Where(i.guard) ^ (i.unless ? ~uint32_t{0} : 0);
      Count(i, mask);
      if (i.kind == Kind::kReturn) {
        warp_.live &= ~mask;
        group.mask &= ~mask;
        if (group.mask == 0) return;
        ++group.at;
      } else if (i.kind == Kind::kBranch) {
        if (mask != group.mask) {
          ++group.at;
          group.mask &= ~mask;
          if (mask != 0) Insert({i.target, mask});
        } else {
          group.at = i.target;
        }
        if (!groups_.empty()) break;  // it may be behind another now, or with it
      } else {
        if (i.kind == Kind::kTogether && mask != warp_.live) {
          Fail(kernel_, i, "some lanes of the warp do not take part");
        }
        if (i.aligned) CheckAll(i);
        if (mask != 0) Do(i, mask);
        ++group.at;
      }
      if (group.at >= next || Waits(group)) break;
    }
    Insert(group);
  }

  void Count(const Instruction& i, uint32_t mask) {
    if (meter_ != nullptr) meter_->Count(i, warp_, index_, mask);
  }

  void Do(const Instruction& i, uint32_t mask) {
    warp_.mask = mask;
    try {
      i.step(i, warp_);
    } catch (const std::runtime_error& e) {
      Fail(kernel_, i, e.what());
    }
  }

  void Insert(Group group) {
    auto it = std::lower_bound(groups_.begin(), groups_.end(), group,
                               [](const Group& a, const Group& b) { return a.at < b.at; });
    if (it != groups_.end() && it->at == group.at) {
      it->mask |= group.mask;
    } else {
      groups_.insert(it, group);
    }
  }

  uint32_t Where(int predicate) const {
    uint32_t mask = 0;
    for (int l = 0; l < kLanes; ++l) mask |= static_cast<uint32_t>(warp_.At(predicate)[l] & 1) << l;
    return mask;
  }

  const Kernel& kernel_;
  int index_;
  TrafficMeter* meter_;
  std::vector<std::byte> local_;
  Warp warp_;
  std::vector<Group> groups_;  // in the order of the program
  uint32_t all_ = 0;           // lanes that began
  bool at_barrier_ = false;
};

}  // namespace

void Execute(const Kernel& kernel, const Grid& grid, std::span<std::byte> params,
             DeviceMemory& memory, TrafficMeter* meter) {
  const Instruction& first = kernel.code.front();
  if (grid.threads < 1 || grid.threads > kernel.most_threads) {
    Fail(kernel, first, "a block of " + std::to_string(grid.threads) + " threads");
  }
  const int64_t shared_bytes = kernel.shared_bytes + grid.shared_bytes;
  std::vector<std::byte> shared(static_cast<size_t>(shared_bytes + 256));
  Block block;
  block.memory = &memory;
  block.params = params.data();
  block.param_bytes = kernel.param_bytes;
  block.shared = shared.data() + (256 - reinterpret_cast<uintptr_t>(shared.data()) % 256) % 256;
  block.shared_bytes = shared_bytes;

  // Kept from launch to launch: its pages cost more than what many kernels do.
  thread_local std::vector<uint64_t> registers;
  const size_t of_warp = static_cast<size_t>(kernel.slots) * kLanes;
  registers.resize(
      std::max(registers.size(), of_warp * static_cast<size_t>(grid.threads / kLanes + 1)));
  std::vector<WarpState> warps;
  warps.reserve(static_cast<size_t>(grid.threads / kLanes + 1));
  for (int64_t begin = 0; begin < grid.threads; begin += kLanes) {
    warps.emplace_back(kernel, static_cast<int>(begin / kLanes),
                       registers.data() + warps.size() * of_warp, meter);
  }
  // No order of blocks and warps may matter: launches alternate, and phases between barriers.
  thread_local bool descending = true;
  descending = !descending;
  bool backward = descending;
  for (int64_t turn = 0; turn < grid.blocks; ++turn) {
    const int64_t b = descending ? grid.blocks - 1 - turn : turn;
    std::fill_n(block.shared, shared_bytes, std::byte{kNan});
    if (meter != nullptr) meter->BeginBlock();
    for (WarpState& w : warps) w.Begin(block, b, grid);
    for (size_t done = 0; done < warps.size(); backward = !backward) {
      for (size_t k = 0; k < warps.size(); ++k) {
        WarpState& w = warps[backward ? warps.size() - 1 - k : k];
        if (!w.done()) w.Run();
      }
      done = static_cast<size_t>(
          std::count_if(warps.begin(), warps.end(), [](const WarpState& w) { return w.done(); }));
      if (done == 0 || done == warps.size()) continue;
      auto waits =
          std::find_if(warps.begin(), warps.end(), [](const WarpState& w) { return !w.done(); });
      Fail(kernel, waits->at(), "some warps wait here, others have returned");
    }
  }
}

}  // namespace shardc::ptx
