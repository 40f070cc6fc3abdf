// A library's kernel is taken only where it agrees with ours and is faster, and the choice is kept.
#include "runtime/cuda/rival_kernel.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "ir/diagnostic.h"
#include "runtime/cuda/kernel_choices.h"
#include "runtime/cuda/kernels/math.h"
#include "tests/runtime/host_trials.h"

namespace shardc::testing {
namespace {

using cuda::BF16;
using cuda::KernelChoices;
using cuda::Narrow;
using cuda::Rivalry;
using cuda::Widen;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kCount = 5000, kLarge = (3 << 19) + 11;

// One that times nothing.
class HostTrialsOf : public HostTrials {
 public:
  double Time(const std::function<void()>&, Stream) override { return 0; }
};

// A kernel takes as long as it says.
class FakeGpu : public HostTrials {
 public:
  std::string Name() override { return "fake"; }
  double Time(const std::function<void()>& enqueue, Stream) override {
    clock = 0;
    enqueue();
    return clock;
  }
  double clock = 0;
};

struct Terms {
  double our_time = 2, rival_time = 1;
  int64_t our_workspace = 16, rival_workspace = 64;
  double factor = 3;      // the rival's; ours is 3
  size_t left_out = 0;    // results that the rival does not write
  int64_t wrong_at = -1;  // one that it writes wrongly
  bool refuses = false, fails = false, fails_to_tune = false;
};

// y = factor * x in bf16.
class Scale : public cuda::CudaKernel {
 public:
  Scale(const Terms& terms, bool rival, FakeGpu& gpu, const std::vector<BF16>& x,
        std::vector<BF16>& y, int& runs)
      : terms_(terms), rival_(rival), gpu_(gpu), x_(x), y_(y), runs_(runs) {}
  int64_t workspace_bytes() const override {
    return rival_ ? terms_.rival_workspace : terms_.our_workspace;
  }
  void Tune(const cuda::Launch&, KernelChoices& choices) override {
    if (!rival_) return;
    if (terms_.fails_to_tune) throw Diagnostic("E4301", ExitCode::kIo, "CUDA", "no algorithm");
    if (choices.may_measure) choices.Set("tuned", "");
  }
  void Enqueue(const cuda::Launch& launch) override {
    if (launch.workspace) {
      EXPECT_GE(launch.workspace_bytes, workspace_bytes());
      std::memset(launch.workspace, 0xff, static_cast<size_t>(workspace_bytes()));
    }
    if (rival_ && terms_.fails) throw Diagnostic("E4301", ExitCode::kIo, "CUDA", "not today");
    ++runs_;
    gpu_.clock += rival_ ? terms_.rival_time : terms_.our_time;
    const auto factor = static_cast<float>(rival_ ? terms_.factor : 3);
    for (size_t i = rival_ ? terms_.left_out : 0; i < x_.size(); ++i) {
      const bool wrong = rival_ && static_cast<int64_t>(i) == terms_.wrong_at;
      y_[i] = Narrow<BF16>((wrong ? -1 : 1) * factor * Widen(x_[i]));
    }
  }

 private:
  const Terms& terms_;
  bool rival_;
  FakeGpu& gpu_;
  const std::vector<BF16>& x_;
  std::vector<BF16>& y_;
  int& runs_;
};

class Rivals : public ::testing::Test {
 protected:
  std::unique_ptr<cuda::RivalKernel> Make(const Terms& terms) {
    Rivalry r;
    r.key = "scale 5000";
    const auto count = static_cast<int64_t>(x_.size());
    r.operands = {{reinterpret_cast<std::byte*>(x_.data()), count, DType::kBF16}};
    r.results = {{reinterpret_cast<std::byte*>(y_.data()), count, DType::kBF16, 0x1p-8}};
    r.make = [&](const cuda::Launch&, std::string* why) -> std::unique_ptr<cuda::CudaKernel> {
      ++rivals_made_;
      *why = terms.refuses ? "head_dim is odd" : "";
      if (terms.refuses) return nullptr;
      return std::make_unique<Scale>(terms, true, gpu_, x_, y_, rival_runs_);
    };
    return cuda::MakeRivalKernel(std::make_unique<Scale>(terms, false, gpu_, x_, y_, our_runs_), r,
                                 gpu_);
  }
  // Whether the rival runs after a trial; the choice.
  bool Takes(const Terms& terms, KernelChoices& choices) {
    auto kernel = Make(terms);
    kernel->Prepare({});
    EXPECT_EQ(kernel->workspace_bytes(), terms.our_workspace);
    std::vector<std::byte> workspace(static_cast<size_t>(terms.our_workspace));
    cuda::Launch launch;
    launch.workspace = workspace.data();
    launch.workspace_bytes = terms.our_workspace;
    rivals_made_ = 0;
    kernel->Tune(launch, choices);
    our_runs_ = rival_runs_ = 0;
    kernel->Enqueue({});
    EXPECT_EQ(our_runs_ + rival_runs_, 1);
    EXPECT_EQ(kernel->taken(), rival_runs_ == 1);
    EXPECT_EQ(kernel->workspace_bytes(),
              rival_runs_ == 1 ? terms.rival_workspace : terms.our_workspace);
    return rival_runs_ == 1;
  }
  bool TakesLarge(const Terms& terms, KernelChoices& choices) {
    x_.resize(kLarge);
    y_.resize(kLarge);
    return Takes(terms, choices);
  }
  static KernelChoices Fresh() {
    KernelChoices choices;
    choices.may_measure = true;
    return choices;
  }
  static std::string Choice(const KernelChoices& choices) {
    return choices.Find("scale 5000 fake").value_or("none");
  }

  FakeGpu gpu_;
  std::vector<BF16> x_ = std::vector<BF16>(kCount), y_ = x_;
  int our_runs_ = 0, rival_runs_ = 0, rivals_made_ = 0;
};

TEST_F(Rivals, OneThatAgreesAndIsFasterIsTaken) {
  KernelChoices choices = Fresh();
  EXPECT_TRUE(Takes({}, choices));
  EXPECT_EQ(Choice(choices), "1 1.0000 ms, ours 2.0000 ms");
}

TEST_F(Rivals, OneThatIsSlowerIsNot) {
  KernelChoices choices = Fresh();
  EXPECT_FALSE(Takes({.rival_time = 2}, choices));
  EXPECT_EQ(Choice(choices), "0 2.0000 ms, ours 2.0000 ms");
}

TEST_F(Rivals, OneThatDiffersIsNot) {
  for (const Terms& terms : {Terms{.factor = 3.2}, Terms{.left_out = 1}, Terms{.wrong_at = 4321}}) {
    KernelChoices choices = Fresh();
    EXPECT_FALSE(Takes(terms, choices));
    EXPECT_THAT(Choice(choices), StartsWith("0 differs: result 0 is "));
  }
}

TEST_F(Rivals, ARefusalOrAFailureMeansOurs) {
  KernelChoices choices = Fresh();
  EXPECT_FALSE(Takes({.refuses = true}, choices));
  EXPECT_EQ(Choice(choices), "0 refused: head_dim is odd");
  choices = Fresh();
  EXPECT_FALSE(Takes({.fails = true}, choices));
  EXPECT_EQ(Choice(choices), "0 failed: not today");
}

TEST_F(Rivals, AChoiceIsKeptWithoutATrial) {
  KernelChoices choices = Fresh();
  EXPECT_TRUE(Takes({}, choices));
  KernelChoices kept = KernelChoices::Parse(choices.ToText());
  // It would lose now.
  EXPECT_TRUE(Takes({.rival_time = 9}, kept));
  // And what is not there cannot be taken.
  EXPECT_FALSE(Takes({.refuses = true}, kept));
  EXPECT_EQ(kept.ToText(), choices.ToText());
}

TEST_F(Rivals, IsTunedBeforeTheTrial) {
  KernelChoices choices = Fresh();
  EXPECT_TRUE(Takes({}, choices));
  EXPECT_TRUE(choices.Find("tuned"));
  choices = Fresh();
  EXPECT_FALSE(Takes({.fails_to_tune = true}, choices));
  EXPECT_EQ(Choice(choices), "0 refused: no algorithm");
  // One that was not taken is not looked at again.
  KernelChoices kept = KernelChoices::Parse(choices.ToText());
  kept.may_measure = true;
  EXPECT_FALSE(Takes({}, kept));
  EXPECT_EQ(kept.ToText(), choices.ToText());
}

TEST_F(Rivals, WithoutLeaveToMeasureOursIsTaken) {
  KernelChoices choices;
  EXPECT_FALSE(Takes({}, choices));
  EXPECT_EQ(Choice(choices), "none");
}

// A library may compile one for a second.
TEST_F(Rivals, IsOnlyMadeWhereItMayBeTaken) {
  KernelChoices choices;
  EXPECT_FALSE(Takes({}, choices));
  EXPECT_EQ(rivals_made_, 0);
  choices = Fresh();
  EXPECT_FALSE(Takes({.rival_time = 9}, choices));
  EXPECT_EQ(rivals_made_, 1);
  EXPECT_FALSE(Takes({}, choices));
  EXPECT_EQ(rivals_made_, 0);
}

TEST_F(Rivals, WithoutMemoryForItsWorkspaceOursIsTaken) {
  const Terms terms{.rival_workspace = 2 << 20};
  gpu_.most_bytes = 1 << 20;
  KernelChoices choices = Fresh();
  EXPECT_FALSE(Takes(terms, choices));
  EXPECT_EQ(Choice(choices), "0 failed: there is no memory for its workspace");
  // What was taken once is taken, and measures nothing.
  choices = Fresh();
  choices.Set("scale 5000 fake", "1 by hand");
  auto kernel = Make(terms);
  kernel->Tune({}, choices);
  EXPECT_TRUE(kernel->taken());
  EXPECT_EQ(kernel->workspace_bytes(), terms.rival_workspace);
  EXPECT_EQ(rival_runs_, 0);
  EXPECT_FALSE(choices.Find("tuned"));
}

TEST_F(Rivals, ComparesInPartsWhatIsTooLargeForTheMemory) {
  // Less than a MiB is not tried: it must be results that are too large for that.
  gpu_.most_bytes = 1 << 20;
  for (int64_t wrong_at : {int64_t{-1}, kLarge - 3}) {
    KernelChoices choices = Fresh();
    EXPECT_EQ(TakesLarge({.wrong_at = wrong_at}, choices), wrong_at < 0);
    EXPECT_EQ(gpu_.largest, 1 << 20);
    if (wrong_at < 0) continue;
    EXPECT_THAT(Choice(choices), EndsWith(StrCat(" at ", wrong_at)));
  }
  gpu_.most_bytes = (1 << 20) - 1;
  KernelChoices choices = Fresh();
  EXPECT_FALSE(TakesLarge({}, choices));
  EXPECT_EQ(Choice(choices), "0 failed: there is no memory for a trial");
}

TEST(Trials, DrawValuesThatDoNotRepeat) {
  constexpr int64_t n = 5000;
  std::vector<BF16> values(n);
  HostTrialsOf gpu;
  gpu.Draw({reinterpret_cast<std::byte*>(values.data()), n, DType::kBF16, 2, 0.5, 1}, nullptr);
  std::vector<float> tried;
  for (BF16 v : values) {
    tried.push_back(2 * (Widen(v) - 2));
    ASSERT_LE(std::abs(tried.back()), 1);
  }
  double sum = 0, squares = 0;
  for (float v : tried) {
    sum += v;
    squares += v * v;
  }
  EXPECT_NEAR(sum / n, 0, 0.05);
  EXPECT_NEAR(squares / n, 1.0 / 3, 0.03);
  for (size_t lag : {1, 2, 3, 64, 128, 1000}) {
    double product = 0;
    for (size_t i = lag; i < tried.size(); ++i) product += tried[i] * tried[i - lag];
    EXPECT_NEAR(product / n, 0, 0.05) << lag;
  }
  std::vector<BF16> others = values;
  gpu.Draw({reinterpret_cast<std::byte*>(others.data()), n, DType::kBF16, 2, 0.5, 2}, nullptr);
  int equal = 0;
  for (size_t i = 0; i < others.size(); ++i) equal += others[i].bits == values[i].bits;
  EXPECT_LT(equal, n / 10);
}

// What a trial makes of results: those of several blocks, whose threads have several each.
class Comparisons : public ::testing::Test {
 protected:
  Comparisons() {
    for (int64_t i = 0; i < kValues; ++i) want_.push_back(i % 2 == 0 ? 1.0f : -1.0f);
    got_ = want_;
  }
  std::string Difference() {
    const Rivalry::Result r{nullptr, kValues, DType::kF32, 0x1p-8};
    auto bytes = [](const std::vector<float>& v) {
      return reinterpret_cast<const std::byte*>(v.data());
    };
    found_ =
        gpu_.Compare({bytes(got_), bytes(want_), kValues, DType::kF32, cuda::SlackOf(r)}, nullptr);
    return cuda::DifferenceOf(r, found_);
  }
  static constexpr int64_t kValues = 16 * 256 * 10 + 77;
  std::vector<float> want_, got_;
  cuda::Deviation found_;
  HostTrialsOf gpu_;
};

TEST_F(Comparisons, HoldTheWhole) {
  EXPECT_EQ(Difference(), "");
  EXPECT_EQ(found_.squares, kValues);
  EXPECT_EQ(found_.error_squares, 0);
  for (float& v : got_) v *= 1 + 3 * 0x1p-8f;
  EXPECT_EQ(Difference(), "");
  for (float& v : got_) v *= 1 + 3 * 0x1p-8f;
  EXPECT_THAT(Difference(), HasSubstr("where the norm is 1"));
}

TEST_F(Comparisons, HoldEveryElement) {
  for (int64_t at : {int64_t{7}, int64_t{kValues / 2}, kValues - 1}) {
    got_ = want_;
    float& value = got_[at];
    value += 60 * 0x1p-8f;
    EXPECT_EQ(Difference(), "");
    value += 8 * 0x1p-8f;
    EXPECT_THAT(Difference(), EndsWith(StrCat(" at ", at)));
    // The worst is named, of equal ones the first, and what is no number is worse than all.
    got_[0] += 70 * 0x1p-8f;
    EXPECT_THAT(Difference(), EndsWith(" at 0"));
    value = std::numeric_limits<float>::quiet_NaN();
    EXPECT_THAT(Difference(), AllOf(HasSubstr("is nan"), EndsWith(StrCat(" at ", at))));
    got_[5] = std::numeric_limits<float>::infinity();
    EXPECT_THAT(Difference(), EndsWith(" at 5"));
  }
}

TEST_F(Comparisons, WithWhatIsNotFiniteFail) {
  want_[3] = got_[3] = std::numeric_limits<float>::infinity();
  EXPECT_THAT(Difference(), HasSubstr("not finite"));
  got_[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(Difference(), HasSubstr("not finite"));
}

TEST_F(Comparisons, OfPartsAreThoseOfTheWhole) {
  for (size_t at : {70, 700}) got_[at] += 8;
  for (int64_t worst : {int64_t{7000}, int64_t{70}}) {
    got_[7000] = worst == 7000 ? -8.0f : 1.0f;
    Difference();
    EXPECT_EQ(found_.at, worst);
    cuda::Deviation parts;
    for (const auto& [first, last] : {std::pair{5000, int{kValues}}, {0, 400}, {400, 5000}}) {
      auto bytes = [first = first](const std::vector<float>& v) {
        return reinterpret_cast<const std::byte*>(v.data() + first);
      };
      const cuda::Comparison c{bytes(got_), bytes(want_), last - first, DType::kF32, 0.125};
      parts.Append(gpu_.Compare(c, nullptr), first);
    }
    EXPECT_EQ(parts.at, found_.at);
    EXPECT_EQ(parts.excess, found_.excess);
    EXPECT_EQ(parts.squares, found_.squares);
    EXPECT_EQ(parts.error_squares, found_.error_squares);
    EXPECT_EQ(parts.want, found_.want);
    EXPECT_EQ(parts.got, found_.got);
  }
}

}  // namespace
}  // namespace shardc::testing
