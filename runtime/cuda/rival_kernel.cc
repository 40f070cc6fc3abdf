#include "runtime/cuda/rival_kernel.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "ir/diagnostic.h"
#include "runtime/cuda/kernel_choices.h"
#include "runtime/cuda/kernels/math.h"

namespace shardc::cuda {
namespace {

constexpr int kTimings = 3;

// fn(T()) with the element type.
template <typename Fn>
auto WithFloat(DType dtype, const Fn& fn) {
  switch (dtype) {
    case DType::kBF16:
      return fn(BF16());
    case DType::kF16:
      return fn(F16());
    case DType::kF32:
      return fn(float());
    default:
      SHARDC_CHECK(dtype == DType::kF64, "rivals compute with floats");
      return fn(double());
  }
}

template <typename T>
T At(const std::vector<std::byte>& bytes, int64_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

std::vector<std::byte> Noise(const Rivalry::Operand& operand, uint64_t seed) {
  // A prime, so that rows and heads do not repeat in step with it.
  constexpr int64_t kPeriod = 1000003;
  return WithFloat(operand.dtype, [&](auto t) {
    using T = decltype(t);
    std::vector<T> period(static_cast<size_t>(std::min(operand.count, kPeriod)));
    uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
    for (T& value : period) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      double unit = static_cast<double>(state >> 11) * 0x1p-52 - 1;
      value = Narrow<T>(static_cast<Wide<T>>(operand.center + operand.spread * unit));
    }
    std::vector<std::byte> bytes(static_cast<size_t>(operand.count) * sizeof(T));
    for (size_t at = 0; at < bytes.size(); at += period.size() * sizeof(T)) {
      std::memcpy(bytes.data() + at, period.data(),
                  std::min(bytes.size() - at, period.size() * sizeof(T)));
    }
    return bytes;
  });
}

class TriedKernel : public RivalKernel {
 public:
  TriedKernel(std::unique_ptr<CudaKernel> ours, Rivalry rivalry, TrialGpu& gpu)
      : ours_(std::move(ours)), rivalry_(std::move(rivalry)), gpu_(gpu) {}

  void Prepare(const Launch& launch) override {
    ours_->Prepare(launch);
    rival_ = rivalry_.make(launch, &why_not_);
    if (rival_) rival_->Prepare(launch);
  }

  int64_t workspace_bytes() const override {
    if (taken_) return rival_->workspace_bytes();
    return std::max(ours_->workspace_bytes(), rival_ ? rival_->workspace_bytes() : 0);
  }

  void Tune(const Launch& launch, KernelChoices& choices) override {
    ours_->Tune(launch, choices);
    const std::string key = StrCat(rivalry_.key, " ", gpu_.Name());
    std::optional<std::string> choice = choices.Find(key);
    if (choice ? choice->starts_with('1') : choices.may_measure) TuneRival(launch, choices);
    if (!choice && choices.may_measure) {
      choice = Compare(launch);
      std::replace(choice->begin(), choice->end(), '\n', ' ');
      choices.Set(key, *choice);
    }
    taken_ = rival_ && choice && choice->starts_with('1');
    if (!taken_) rival_.reset();
  }

  void Enqueue(const Launch& launch) override { (taken_ ? rival_ : ours_)->Enqueue(launch); }
  bool taken() const override { return taken_; }

 private:
  void TuneRival(const Launch& launch, KernelChoices& choices) {
    if (!rival_) return;
    try {
      rival_->Tune(launch, choices);
    } catch (const Diagnostic& d) {
      why_not_ = d.message();
      rival_.reset();
    }
  }
  std::string Compare(const Launch& launch) const {
    if (!rival_) return "0 refused: " + why_not_;
    std::vector<std::vector<std::byte>> before;
    for (const Rivalry::Operand& o : rivalry_.operands) {
      before.emplace_back(static_cast<size_t>(o.count * DTypeSize(o.dtype)));
      gpu_.Download(before.back(), o.data, launch.stream);
    }
    std::string choice = Try(launch);
    for (size_t i = 0; i < before.size(); ++i) {
      gpu_.Upload(rivalry_.operands[i].data, before[i], launch.stream);
    }
    return choice;
  }

  std::string Try(const Launch& launch) const {
    for (size_t i = 0; i < rivalry_.operands.size(); ++i) {
      gpu_.Upload(rivalry_.operands[i].data, Noise(rivalry_.operands[i], i + 1), launch.stream);
    }
    ours_->Enqueue(launch);
    const auto want = ReadResults(launch);
    for (const Rivalry::Result& r : rivalry_.results) {
      // What the library leaves out must not be taken for ours.
      std::vector<std::byte> nans(static_cast<size_t>(r.count * DTypeSize(r.dtype)),
                                  std::byte{0xff});
      gpu_.Upload(r.data, nans, launch.stream);
    }
    try {
      rival_->Enqueue(launch);
      const auto got = ReadResults(launch);
      for (size_t i = 0; i < got.size(); ++i) {
        std::string difference = DifferenceOf(rivalry_.results[i], got[i], want[i]);
        if (!difference.empty()) return StrCat("0 differs: result ", i, " ", difference);
      }
      const double rivals = Fastest(launch, *rival_), own = Fastest(launch, *ours_);
      char text[80];
      std::snprintf(text, sizeof(text), " %.4f ms, ours %.4f ms", rivals, own);
      return (rivals < own ? "1" : "0") + std::string(text);
    } catch (const Diagnostic& d) {
      return "0 failed: " + d.message();
    }
  }

  std::vector<std::vector<std::byte>> ReadResults(const Launch& launch) const {
    std::vector<std::vector<std::byte>> out;
    for (const Rivalry::Result& r : rivalry_.results) {
      out.emplace_back(static_cast<size_t>(r.count * DTypeSize(r.dtype)));
      gpu_.Download(out.back(), r.data, launch.stream);
    }
    return out;
  }

  double Fastest(const Launch& launch, CudaKernel& kernel) const {
    double fastest = 0;
    for (int i = 0; i < kTimings; ++i) {
      const double took = gpu_.Time([&] { kernel.Enqueue(launch); }, launch.stream);
      if (i == 0 || took < fastest) fastest = took;
    }
    return fastest;
  }

  std::unique_ptr<CudaKernel> ours_, rival_;
  Rivalry rivalry_;
  TrialGpu& gpu_;
  std::string why_not_;
  bool taken_ = false;
};

}  // namespace

std::string DifferenceOf(const Rivalry::Result& result, const std::vector<std::byte>& got,
                         const std::vector<std::byte>& want) {
  return WithFloat(result.dtype, [&](auto t) -> std::string {
    using T = decltype(t);
    double squares = 0, error_squares = 0;
    for (int64_t i = 0; i < result.count; ++i) {
      const double w = Widen(At<T>(want, i)), e = Widen(At<T>(got, i)) - w;
      squares += w * w;
      error_squares += e * e;
    }
    const auto n = static_cast<double>(std::max<int64_t>(result.count, 1));
    const double norm = std::sqrt(squares / n), error = std::sqrt(error_squares / n);
    // Written so that a NaN is a difference.
    if (!(error <= 4 * result.unit * norm)) {
      return StrCat("is off by ", error, " where the norm is ", norm);
    }
    for (int64_t i = 0; i < result.count; ++i) {
      const double w = Widen(At<T>(want, i)), g = Widen(At<T>(got, i));
      if (!(std::abs(g - w) <= 32 * result.unit * (norm + std::abs(w)))) {
        return StrCat("is ", g, " instead of ", w, " at ", i);
      }
    }
    return "";
  });
}

std::unique_ptr<RivalKernel> MakeRivalKernel(std::unique_ptr<CudaKernel> ours, Rivalry rivalry,
                                             TrialGpu& gpu) {
  return std::make_unique<TriedKernel>(std::move(ours), std::move(rivalry), gpu);
}

}  // namespace shardc::cuda
