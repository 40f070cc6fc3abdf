// How long collectives travel against how long ranks compute, on a machine that is only supposed:
// for what to run meanwhile, and never for what is computed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>

namespace shardc {

// Of one GPU among those of a machine (NVIDIA's data sheet of the H100 SXM5): 989 Tflop/s in bf16,
// 3.35 TB/s of memory and 450 GB/s to the others, each way.
inline constexpr int64_t kFlopsPerByte = 2200, kMovedPerByte = 7;
// Rather too slow than too fast: links may be further from their peak than products.
inline constexpr int64_t kMargin = 2;

// The bytes that one GPU could send while it computes so much.
inline int64_t BytesMeanwhile(int64_t flops, int64_t bytes_moved) {
  return std::max(flops / kFlopsPerByte, bytes_moved / kMovedPerByte);
}

// A rank that computes while its collectives travel, those over the same axes one after the other.
// Times are the bytes that can have travelled since the beginning.
template <typename Axes>
class Timeline {
 public:
  int64_t now() const { return now_; }
  void Compute(int64_t meanwhile) { now_ += meanwhile; }
  void WaitUntil(int64_t time) { now_ = std::max(now_, time); }
  // One that begins now, of so many bytes: when it will have come, by a link that may be late.
  // Where links cannot keep up, waiting for all that travels would hold too much: four are enough.
  int64_t Send(const Axes& axes, int64_t bytes) {
    int64_t& free = free_[axes];
    largest_ = std::max(largest_, bytes);
    free = std::min(std::max(free, now_) + bytes, now_ + 4 * largest_);
    return free + (kMargin - 1) * bytes;
  }

 private:
  int64_t now_ = 0, largest_ = 0;
  std::map<Axes, int64_t> free_;
};

}  // namespace shardc
