// A kernel of ours beside a library's that claims to do the same: the library's is taken only where
// it gave the same results on this GPU, in less time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ir/dtype.h"
#include "runtime/cuda/cuda_kernel.h"
#include "runtime/cuda/trial.h"

namespace shardc::cuda {

struct Rivalry {
  // An operand, and the values that it is tried on, which it keeps: see Noise.
  struct Operand {
    std::byte* data = nullptr;
    int64_t count = 0;
    DType dtype = DType::kF32;
    double center = 0, spread = 1;
  };
  // With e = library's - ours: the root mean square of e may be 4 units of ours' root mean square,
  // and every |e| 32 units of that plus |ours|. A unit is what one rounding on the way is relative
  // to a value.
  struct Result {
    std::byte* data = nullptr;
    int64_t count = 0;
    DType dtype = DType::kF32;
    double unit = 0;
  };
  // Names all that the speed depends on, but for the GPU: the problem and the library's version.
  std::string key;
  std::vector<Operand> operands;  // none shares memory with a result
  std::vector<Result> results;
  // The library's, for the launch's stream; null, with the reason, when it does not do this.
  std::function<std::unique_ptr<CudaKernel>(const Launch& launch, std::string* why_not)> make;
};

// Ours until Tune. What Tune notes begins with '1' when the library's is taken, else with '0'; the
// rest says why, for people.
class RivalKernel : public CudaKernel {
 public:
  virtual bool taken() const = 0;
};
// `gpu` must outlive the kernel.
std::unique_ptr<RivalKernel> MakeRivalKernel(std::unique_ptr<CudaKernel> ours, Rivalry rivalry,
                                             TrialGpu& gpu);

// What a trial has on the GPU besides the kernels' own, at most: results that are larger are
// compared in parts, for each of which both kernels run again.
inline constexpr int64_t kMostTrialBytes = int64_t{64} << 20;

// The slack of Comparison for the measure of Rivalry::Result.
double SlackOf(const Rivalry::Result& result);
// "" or how the library's result differs by more than that measure allows.
std::string DifferenceOf(const Rivalry::Result& result, const Deviation& deviation);

}  // namespace shardc::cuda
