#include "passes/lend_scratch.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "ir/op_def.h"

namespace shardc {
namespace {

// What lies in the arena while an instruction runs, for one instruction after the other.
class Occupied {
 public:
  explicit Occupied(std::span<const MemoryRequest> placed)
      : placed_(placed),
        begins_(OrderBy(&MemoryRequest::first)),
        ends_(OrderBy(&MemoryRequest::last)) {}

  void GoTo(int instruction) {
    for (; begun_ < begins_.size() && At(begins_[begun_]).first <= instruction; ++begun_) {
      stretches_.insert(StretchOf(begins_[begun_]));
    }
    for (; ended_ < ends_.size() && At(ends_[ended_]).last < instruction; ++ended_) {
      stretches_.erase(stretches_.find(StretchOf(ends_[ended_])));
    }
  }

  // The largest aligned stretch of [0, arena) that is free, as begin and end.
  std::pair<int64_t, int64_t> LargestGap(int64_t arena) const {
    std::pair<int64_t, int64_t> largest;
    int64_t end = 0;
    auto look = [&](int64_t next) {
      const int64_t from = (end + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
      if (next - from > largest.second - largest.first) largest = {from, next};
    };
    for (const auto& [from, to] : stretches_) {
      look(from);
      end = std::max(end, to);
    }
    look(arena);
    return largest;
  }

 private:
  const MemoryRequest& At(size_t i) const { return placed_[i]; }
  std::pair<int64_t, int64_t> StretchOf(size_t i) const {
    return {At(i).offset, At(i).offset + At(i).bytes};
  }
  std::vector<size_t> OrderBy(int MemoryRequest::*time) const {
    std::vector<size_t> order(placed_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return At(a).*time < At(b).*time; });
    return order;
  }

  std::span<const MemoryRequest> placed_;
  std::vector<size_t> begins_, ends_;
  size_t begun_ = 0, ended_ = 0;
  std::multiset<std::pair<int64_t, int64_t>> stretches_;  // what is made in place lies twice there
};

// The most that the instruction can use.
int64_t UsableBy(const Program& program, const Instruction& instruction) {
  const OpDef* def = FindOpDef(instruction.op);
  if (!def || !def->scratch_bytes) return 0;
  std::vector<TensorType> types;
  std::vector<const TensorType*> operands;
  types.reserve(instruction.operands.size());
  for (int b : instruction.operands) {
    const Buffer& buffer = program.buffers[b];
    operands.push_back(&types.emplace_back(buffer.type.dtype, buffer.local_shape));
  }
  return def->scratch_bytes({operands, instruction.attrs});
}

int AddScratch(Program& program, int64_t offset, int64_t bytes) {
  Buffer b;
  b.type = TensorType(DType::kF32, {bytes / DTypeSize(DType::kF32)});
  b.local_shape = b.type.shape;
  b.offset = offset;
  b.bytes = bytes;
  program.buffers.push_back(std::move(b));
  return static_cast<int>(program.buffers.size()) - 1;
}

}  // namespace

void LendScratch(Program& program, std::span<const MemoryRequest> placed) {
  std::optional<Occupied> occupied;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const int64_t usable = UsableBy(program, program.instructions[i]);
    if (usable < kLeastScratch) continue;
    if (!occupied) occupied.emplace(placed);
    occupied->GoTo(static_cast<int>(i));
    const auto [begin, end] = occupied->LargestGap(program.arena_bytes);
    const int64_t bytes = std::min(end - begin, usable) / kScratchAlignment * kScratchAlignment;
    if (bytes < kLeastScratch) continue;
    program.instructions[i].scratch = AddScratch(program, begin, bytes);
  }
}

}  // namespace shardc
