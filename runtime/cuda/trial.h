// What trials of kernels do on a GPU: values to try them on, and comparisons of their results.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ir/dtype.h"

struct CUstream_st;

namespace shardc::cuda {

// Floats spread evenly over center - spread ... center + spread, no stretch like another: element i
// follows from seed and i alone.
struct Noise {
  std::byte* data = nullptr;
  int64_t count = 0;
  DType dtype = DType::kF32;
  double center = 0, spread = 1;
  uint64_t seed = 0;
};

struct Comparison {
  const std::byte *got = nullptr, *want = nullptr;
  int64_t count = 0;
  DType dtype = DType::kF32;
  double slack = 0;
};

// How `got` differs from `want`, with e = got - want of each element.
struct Deviation {
  double squares = 0, error_squares = 0;  // sums of want^2 and of e^2
  // The largest |e| - slack * |want|, infinite where that is no number; the first place that has
  // it, and what is there.
  double excess = -HUGE_VAL;
  int64_t at = -1;
  double got = 0, want = 0;

  // Adds what `other` has found among other elements, which are counted from `offset` on.
  void Append(const Deviation& other, int64_t offset = 0);
};

// Of elements that are counted alike.
Deviation Joined(std::span<const Deviation> parts);

// What a trial needs of the GPU of a stream. Throws Diagnostic E4301 where nothing else is said.
class TrialGpu {
 public:
  using Stream = CUstream_st*;
  virtual ~TrialGpu() = default;
  // Equal where kernels are equally fast.
  virtual std::string Name() = 0;
  // Memory on it, aligned to 256 bytes; null where there is not as much.
  virtual std::byte* Allocate(int64_t bytes) = 0;
  virtual void Free(std::byte* p) noexcept = 0;
  // Enqueue.
  virtual void Fill(std::byte* to, int byte, int64_t bytes, Stream s) = 0;
  virtual void Copy(std::byte* to, const std::byte* from, int64_t bytes, Stream s) = 0;
  virtual void Draw(const Noise& noise, Stream s) = 0;
  // Wait.
  virtual Deviation Compare(const Comparison& c, Stream s) = 0;
  // Milliseconds of what `enqueue` gives to the stream.
  virtual double Time(const std::function<void()>& enqueue, Stream s) = 0;
};

// For each of several ways, which take turns, the milliseconds that it takes at best; infinite for
// one that throws a Diagnostic, which gets no further turn.
std::vector<double> FastestTimes(TrialGpu& gpu, TrialGpu::Stream s,
                                 const std::vector<std::function<void()>>& ways);

}  // namespace shardc::cuda
