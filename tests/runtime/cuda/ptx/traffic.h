// What the warps of a launch do that decides how long a GPU takes for it, counted while they are
// executed (machine.h). The words are those of Nsight Compute (Profiling Guide, "Quantities") and
// the rules those of the CUDA C++ Programming Guide (global memory; shared memory of compute
// capability 5.x and later). Nothing here is a time: caches, what ptxas makes of the PTX, and how
// much of all this overlaps are not known.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/runtime/cuda/ptx/instructions.h"
#include "tests/runtime/cuda/ptx/machine.h"

namespace shardc::ptx {

// Loads, or stores, of global memory.
struct GlobalAccesses {
  int64_t requests = 0;  // instructions of warps in which a lane takes part
  int64_t bytes = 0;     // that the lanes ask for
  int64_t sectors = 0;   // of 32 bytes, each once a request: bytes / 32 where it is coalesced
  int64_t wide = 0;      // requests of 16 bytes a lane
  int64_t generic = 0;   // requests by instructions that do not say which memory they mean
  int64_t touched = 0;   // bytes of memory, each once a launch: fewer than `bytes` come again
};

struct Traffic {
  int64_t warps = 0;
  int64_t instructions = 0;  // of warps, of the PTX; also where no lane takes part
  int64_t mma = 0;           // of these
  // How often a warp comes to an instruction that needs what a load of global memory has not
  // brought: the memory's latency, if nothing else hides it. In the order of the PTX, in which
  // ptxas may move loads up; when a warp waits, all that it has loaded so far comes. Each wait for
  // copies to shared memory (cp.async) is one; what these read is among the loads.
  int64_t waits = 0;
  GlobalAccesses loads, stores;
  int64_t atomics = 0;  // requests
  int64_t local = 0;    // requests: arrays that are not in registers
  // Of shared memory. Lanes that want different words (4 bytes) of one of its 32 banks take turns;
  // the same word serves all at once. Accesses of 8 bytes a lane are made by halves of the warp,
  // those of 16 bytes and the matrices of ldmatrix by quarters, each a wavefront at least: this is
  // assumed, we found no document of NVIDIA's that says it.
  int64_t shared_requests = 0, wavefronts = 0;
  int64_t conflicts = 0;  // wavefronts besides those
};

// Counts a launch: Execute tells it each instruction of each warp before it is executed.
class TrafficMeter {
 public:
  TrafficMeter(const Kernel& kernel, const Grid& grid);
  void BeginBlock();
  // `warp`: of the block, by number. `mask`: the lanes that take part.
  void Count(const Instruction& i, const Warp& state, int warp, uint32_t mask);
  Traffic total() const;

 private:
  // Bytes of memory, as bits of pages.
  class Touched {
   public:
    Touched() = default;
    Touched(const Touched&) = delete;  // page_ is one of its own
    // At most 16 bytes, aligned to their number.
    void Add(uint64_t address, size_t bytes);
    int64_t count() const;

   private:
    static constexpr uint64_t kPage = 4096;
    using Page = std::array<uint64_t, kPage / 64>;
    std::unordered_map<uint64_t, Page> pages_;
    uint64_t last_ = ~uint64_t{0};
    Page* page_ = nullptr;  // the last
  };
  // What a warp's loads have not brought: slots, and of each slot whether it is one of them.
  struct Pending {
    std::vector<int32_t> slots;
    std::vector<bool> is;
    bool Needs(const Instruction& i) const;
    void Add(const Instruction& i);
    void Clear();
  };

  // Whether it loads from global memory.
  bool AddAccess(const Instruction& i, const Warp& state, uint32_t mask);
  void AddShared(const Instruction& i, const uint64_t* addresses, uint32_t mask);

  Traffic total_;
  Touched loaded_, stored_;
  std::vector<Pending> pending_;  // by warp
};

// One line of JSON. `kernel`: a mangled name, or another.
std::string ToJson(const std::string& kernel, const Grid& grid, const Traffic& traffic);

// With SHARDC_PTX_TRAFFIC, a file: ToJson of each launch, in their order, is appended to it. Copies
// and clears of memory are launches of no warps.
bool RecordsTraffic();
void RecordTraffic(const std::string& kernel, const Grid& grid, const Traffic& traffic);

}  // namespace shardc::ptx
