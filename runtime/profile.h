// When each instruction of each rank ran, and what that says: recorded by the ranks while they
// step, read by reports afterwards.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/program.h"

namespace shardc {

// Nanoseconds of one clock that all ranks of a process read.
struct TimeSpan {
  int64_t begin_ns = 0, end_ns = 0;
  int64_t ns() const { return end_ns - begin_ns; }
};

// When another thread than the rank's own worked for an instruction. Or of a send, which the rank
// only begins: when it waited for the receiver, later.
struct WorkerSpan {
  size_t step = 0, instruction = 0;
  int thread = 0;  // 1, 2, ...; 0: the rank's own waited
  TimeSpan span;
};

// The spans of one rank: those of the first recorded step in the order of the instructions, then
// those of the second, ... All memory is had, and touched, before the first step.
class RankProfile {
 public:
  // How many steps kMaxBytes hold; at least one.
  static size_t Room(size_t instructions);
  // Room for `steps` steps, or for as many as kMaxBytes hold, but at least one. Drops what was
  // recorded.
  void Start(int64_t steps, size_t instructions);
  // One span per instruction for the step that begins now, or null: nothing more is recorded.
  TimeSpan* NextStep();
  // Whole steps. Ends the recording.
  std::vector<TimeSpan> Take();

  static int64_t Now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  static constexpr int64_t kMaxBytes = 64 << 20;

 private:
  std::vector<TimeSpan> spans_;
  size_t instructions_ = 0, used_ = 0;
};

// What one rank reaches while all ranks measure at the same time, on the threads that also run its
// instructions.
struct MachinePeaks {
  double gemm_flops = 0;  // per second, by products of square matrices; of f32 on the CPU
  double copy_bytes = 0;  // per second, read and written by a copy far larger than the caches
};

// Steps of all ranks; every rank has recorded the same number.
struct Profile {
  std::span<const Program> programs;
  std::vector<std::vector<TimeSpan>> ranks;      // as RankProfile::Take gives them
  MachinePeaks peaks;                            // zero: not measured
  std::vector<std::vector<WorkerSpan>> workers;  // per rank, by step; empty: the backend has none

  size_t instructions(size_t rank) const { return programs[rank].instructions.size(); }
  size_t steps() const;
  const TimeSpan& at(size_t rank, size_t step, size_t instruction) const {
    return ranks[rank][step * instructions(rank) + instruction];
  }
  // The time that this rank waited for peers. Of a collective: how much longer it was in it than
  // the fastest of those that take part. Of a transfer: until the other end had come to it, as the
  // clocks of both say (those of one machine agree), and what a send waited later. Zero for other
  // instructions.
  int64_t WaitNs(size_t rank, size_t step, size_t instruction) const;
  // What a send waited later. Zero for other instructions.
  int64_t LateNs(size_t rank, size_t step, size_t instruction) const;
};

// A row of a table: the mean over ranks of what one rank does in one step (of a pipeline, its
// stages do different things).
struct ProfileRow {
  std::string name;
  Phase phase = Phase::kForward;
  int64_t calls = 0;
  double seconds = 0, flops = 0, bytes = 0;
};

// By op name, the longest first.
std::vector<ProfileRow> ProfileByOp(const Profile& profile);
// By LayerOf, else by site, in the order of the program.
std::vector<ProfileRow> ProfileByLayer(const Profile& profile);

// What one rank does in one kind of collective in one step.
struct CollectiveRow {
  std::string op;  // "all_reduce"
  size_t rank = 0;
  int64_t calls = 0, bytes = 0;  // bytes: handed in
  double seconds = 0, wait_seconds = 0;
};
std::vector<CollectiveRow> ProfileCollectives(const Profile& profile);

// The shortest prefix of a site that ends in a number: "transformer.h.3" of
// "transformer.h.3.attn.c_attn"; empty where there is none. Parts are separated by '.' or '/'.
std::string_view LayerOf(std::string_view site);

}  // namespace shardc
