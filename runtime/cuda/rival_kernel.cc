#include "runtime/cuda/rival_kernel.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "ir/diagnostic.h"
#include "runtime/cuda/kernel_choices.h"
#include "runtime/cuda/owned.h"

namespace shardc::cuda {
namespace {

// Of a result, what is compared at once, and where ours of it lies in the memory of the trial.
struct Piece {
  size_t result;
  int64_t first, count, at;
};

// Pieces that fit there together, for all of the results.
std::vector<std::vector<Piece>> Rounds(const std::vector<Rivalry::Result>& results, int64_t bytes) {
  constexpr int64_t kAlignment = 256;
  std::vector<std::vector<Piece>> rounds;
  int64_t used = bytes;
  for (size_t r = 0; r < results.size(); ++r) {
    const int64_t size = DTypeSize(results[r].dtype);
    for (int64_t first = 0; first < results[r].count;) {
      if (bytes - used < kAlignment) {
        rounds.emplace_back();
        used = 0;
      }
      const int64_t count = std::min(results[r].count - first, (bytes - used) / size);
      rounds.back().push_back({r, first, count, used});
      used += (count * size + kAlignment - 1) / kAlignment * kAlignment;
      first += count;
    }
  }
  return rounds;
}

class TriedKernel : public RivalKernel {
 public:
  TriedKernel(std::unique_ptr<CudaKernel> ours, Rivalry rivalry, TrialGpu& gpu)
      : ours_(std::move(ours)), rivalry_(std::move(rivalry)), gpu_(gpu) {}

  void Prepare(const Launch& launch) override { ours_->Prepare(launch); }

  int64_t workspace_bytes() const override { return (taken_ ? rival_ : ours_)->workspace_bytes(); }

  void Tune(const Launch& launch, KernelChoices& choices) override {
    ours_->Tune(launch, choices);
    const std::string key = StrCat(rivalry_.key, " ", gpu_.Name());
    std::optional<std::string> choice = choices.Find(key);
    if (choice ? !choice->starts_with('1') : !choices.may_measure) return;
    // Not before it is known to be wanted: some libraries compile for a second.
    rival_ = rivalry_.make(launch, &why_not_);
    if (rival_) rival_->Prepare(launch);
    Memory workspace;
    Launch with = launch;
    const bool fits = choices.may_measure && GiveRivalWorkspace(&with, &workspace);
    TuneRival(with, choices, fits);
    if (!choice) {
      choice = fits ? Compare(with) : "0 failed: there is no memory for its workspace";
      std::replace(choice->begin(), choice->end(), '\n', ' ');
      choices.Set(key, *choice);
    }
    taken_ = rival_ && choice->starts_with('1');
    if (!taken_) rival_.reset();
  }

  void Enqueue(const Launch& launch) override { (taken_ ? rival_ : ours_)->Enqueue(launch); }
  bool taken() const override { return taken_; }

 private:
  // The launch's own may be too small. False where there is no more.
  bool GiveRivalWorkspace(Launch* launch, Memory* memory) const {
    const int64_t bytes = rival_ ? rival_->workspace_bytes() : 0;
    if (bytes <= launch->workspace_bytes) return true;
    std::byte* p = gpu_.Allocate(bytes);
    if (!p) return false;
    *memory = Memory(p, bytes, [this](std::byte* q) { gpu_.Free(q); });
    launch->workspace = p;
    launch->workspace_bytes = bytes;
    return true;
  }
  // `runs`: whether it can, on this launch.
  void TuneRival(const Launch& launch, KernelChoices& choices, bool runs) {
    if (!rival_) return;
    const bool may_measure = std::exchange(choices.may_measure, choices.may_measure && runs);
    try {
      rival_->Tune(launch, choices);
    } catch (const Diagnostic& d) {
      why_not_ = d.message();
      rival_.reset();
    }
    choices.may_measure = may_measure;
  }
  std::string Compare(const Launch& launch) const {
    if (!rival_) return "0 refused: " + why_not_;
    const Memory memory = TakeMemory();
    if (memory.bytes() == 0) return "0 failed: there is no memory for a trial";
    for (size_t i = 0; i < rivalry_.operands.size(); ++i) {
      const Rivalry::Operand& o = rivalry_.operands[i];
      gpu_.Draw({o.data, o.count, o.dtype, o.center, o.spread, i + 1}, launch.stream);
    }
    try {
      std::string difference = Differences(launch, memory);
      if (!difference.empty()) return "0 differs: " + difference;
      const std::vector<double> times = FastestTimes(
          gpu_, launch.stream, {[&] { rival_->Enqueue(launch); }, [&] { ours_->Enqueue(launch); }});
      char text[80];
      std::snprintf(text, sizeof(text), " %.4f ms, ours %.4f ms", times[0], times[1]);
      return (times[0] < times[1] ? "1" : "0") + std::string(text);
    } catch (const Diagnostic& d) {
      return "0 failed: " + d.message();
    }
  }

  // For all results at once, or for less where that is much, or the GPU is full.
  Memory TakeMemory() const {
    int64_t bytes = 0;
    for (const Rivalry::Result& r : rivalry_.results) {
      bytes += (r.count * DTypeSize(r.dtype) + 255) / 256 * 256;
    }
    constexpr int64_t kLeast = 1 << 20;
    bytes = std::clamp(bytes, int64_t{256}, kMostTrialBytes);
    while (true) {
      if (std::byte* p = gpu_.Allocate(bytes)) {
        return Memory(p, bytes, [this](std::byte* q) { gpu_.Free(q); });
      }
      if (bytes <= kLeast) return {};
      bytes = std::max(bytes / 2 / 256 * 256, kLeast);
    }
  }

  // "" or the first result that differs.
  std::string Differences(const Launch& launch, const Memory& memory) const {
    std::vector<Deviation> found(rivalry_.results.size());
    for (const std::vector<Piece>& round : Rounds(rivalry_.results, memory.bytes())) {
      ours_->Enqueue(launch);
      for (const Piece& p : round) {
        gpu_.Copy(memory.data() + p.at, Data(p), Bytes(p), launch.stream);
        // What the library leaves out must not be taken for ours: these are NaNs.
        gpu_.Fill(Data(p), 0xff, Bytes(p), launch.stream);
      }
      rival_->Enqueue(launch);
      for (const Piece& p : round) {
        const Rivalry::Result& r = rivalry_.results[p.result];
        const Comparison c{Data(p), memory.data() + p.at, p.count, r.dtype, SlackOf(r)};
        found[p.result].Append(gpu_.Compare(c, launch.stream), p.first);
      }
    }
    for (size_t i = 0; i < found.size(); ++i) {
      std::string difference = DifferenceOf(rivalry_.results[i], found[i]);
      if (!difference.empty()) return StrCat("result ", i, " ", difference);
    }
    return "";
  }
  std::byte* Data(const Piece& p) const {
    const Rivalry::Result& r = rivalry_.results[p.result];
    return r.data + p.first * DTypeSize(r.dtype);
  }
  int64_t Bytes(const Piece& p) const {
    return p.count * DTypeSize(rivalry_.results[p.result].dtype);
  }

  std::unique_ptr<CudaKernel> ours_, rival_;
  Rivalry rivalry_;
  TrialGpu& gpu_;
  std::string why_not_;
  bool taken_ = false;
};

}  // namespace

double SlackOf(const Rivalry::Result& result) { return 32 * result.unit; }

std::string DifferenceOf(const Rivalry::Result& result, const Deviation& d) {
  const auto n = static_cast<double>(std::max<int64_t>(result.count, 1));
  const double norm = std::sqrt(d.squares / n), error = std::sqrt(d.error_squares / n);
  const bool everywhere = d.excess < HUGE_VAL;
  // Written so that what is not a number, and no finite norm, is a difference.
  if (!(norm < HUGE_VAL)) return "is compared with what is not finite";
  if (everywhere && !(error <= 4 * result.unit * norm)) {
    return StrCat("is off by ", error, " where the norm is ", norm);
  }
  if (!(d.excess <= SlackOf(result) * norm)) {
    return StrCat("is ", d.got, " instead of ", d.want, " at ", d.at);
  }
  return "";
}

std::unique_ptr<RivalKernel> MakeRivalKernel(std::unique_ptr<CudaKernel> ours, Rivalry rivalry,
                                             TrialGpu& gpu) {
  return std::make_unique<TriedKernel>(std::move(ours), std::move(rivalry), gpu);
}

}  // namespace shardc::cuda
