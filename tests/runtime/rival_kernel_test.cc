// A library's kernel is taken only where it agrees with ours and is faster, and the choice is kept.
#include "runtime/cuda/rival_kernel.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "ir/diagnostic.h"
#include "runtime/cuda/kernel_choices.h"
#include "runtime/cuda/kernels/math.h"

namespace shardc::testing {
namespace {

using cuda::BF16;
using cuda::KernelChoices;
using cuda::Narrow;
using cuda::Rivalry;
using cuda::Widen;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kCount = 5000;

// Host memory; a kernel takes as long as it says.
class FakeGpu : public cuda::TrialGpu {
 public:
  std::string Name() override { return "fake"; }
  void Upload(std::byte* to, const std::vector<std::byte>& from, Stream) override {
    std::memcpy(to, from.data(), from.size());
    if (on_upload) on_upload(to, from);
  }
  void Download(std::vector<std::byte>& to, const std::byte* from, Stream) override {
    std::memcpy(to.data(), from, to.size());
  }
  double Time(const std::function<void()>& enqueue, Stream) override {
    clock = 0;
    enqueue();
    return clock;
  }
  double clock = 0;
  std::function<void(const std::byte*, const std::vector<std::byte>&)> on_upload;
};

struct Terms {
  double our_time = 2, rival_time = 1;
  int64_t our_workspace = 16, rival_workspace = 64;
  double factor = 3;      // the rival's; ours is 3
  int64_t left_out = 0;   // results that the rival does not write
  int64_t wrong_at = -1;  // one that it writes wrongly
  bool refuses = false, fails = false, fails_to_tune = false;
};

// y = factor * x in bf16.
class Scale : public cuda::CudaKernel {
 public:
  Scale(const Terms& terms, bool rival, FakeGpu& gpu, const BF16* x, BF16* y, int& runs)
      : terms_(terms), rival_(rival), gpu_(gpu), x_(x), y_(y), runs_(runs) {}
  int64_t workspace_bytes() const override {
    return rival_ ? terms_.rival_workspace : terms_.our_workspace;
  }
  void Tune(const cuda::Launch&, KernelChoices& choices) override {
    if (!rival_) return;
    if (terms_.fails_to_tune) throw Diagnostic("E4301", ExitCode::kIo, "CUDA", "no algorithm");
    if (choices.may_measure) choices.Set("tuned", "");
  }
  void Enqueue(const cuda::Launch&) override {
    if (rival_ && terms_.fails) throw Diagnostic("E4301", ExitCode::kIo, "CUDA", "not today");
    ++runs_;
    gpu_.clock += rival_ ? terms_.rival_time : terms_.our_time;
    const auto factor = static_cast<float>(rival_ ? terms_.factor : 3);
    for (int64_t i = rival_ ? terms_.left_out : 0; i < kCount; ++i) {
      const bool wrong = rival_ && i == terms_.wrong_at;
      y_[i] = Narrow<BF16>((wrong ? -1 : 1) * factor * Widen(x_[i]));
    }
  }

 private:
  const Terms& terms_;
  bool rival_;
  FakeGpu& gpu_;
  const BF16* x_;
  BF16* y_;
  int& runs_;
};

class Rivals : public ::testing::Test {
 protected:
  std::unique_ptr<cuda::RivalKernel> Make(const Terms& terms) {
    Rivalry r;
    r.key = "scale 5000";
    r.operands = {{reinterpret_cast<std::byte*>(x_.data()), kCount, DType::kBF16}};
    r.results = {{reinterpret_cast<std::byte*>(y_.data()), kCount, DType::kBF16, 0x1p-8}};
    r.make = [&](const cuda::Launch&, std::string* why) -> std::unique_ptr<cuda::CudaKernel> {
      *why = terms.refuses ? "head_dim is odd" : "";
      if (terms.refuses) return nullptr;
      return std::make_unique<Scale>(terms, true, gpu_, x_.data(), y_.data(), rival_runs_);
    };
    return cuda::MakeRivalKernel(
        std::make_unique<Scale>(terms, false, gpu_, x_.data(), y_.data(), our_runs_), r, gpu_);
  }
  // Whether the rival runs after a trial; the choice.
  bool Takes(const Terms& terms, KernelChoices& choices) {
    auto kernel = Make(terms);
    kernel->Prepare({});
    EXPECT_EQ(
        kernel->workspace_bytes(),
        terms.refuses ? terms.our_workspace : std::max(terms.our_workspace, terms.rival_workspace));
    kernel->Tune({}, choices);
    our_runs_ = rival_runs_ = 0;
    kernel->Enqueue({});
    EXPECT_EQ(our_runs_ + rival_runs_, 1);
    EXPECT_EQ(kernel->taken(), rival_runs_ == 1);
    EXPECT_EQ(kernel->workspace_bytes(),
              rival_runs_ == 1 ? terms.rival_workspace : terms.our_workspace);
    return rival_runs_ == 1;
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
  int our_runs_ = 0, rival_runs_ = 0;
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
  EXPECT_FALSE(kept.changed());
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
  EXPECT_FALSE(kept.changed());
}

TEST_F(Rivals, WithoutLeaveToMeasureOursIsTaken) {
  KernelChoices choices;
  EXPECT_FALSE(Takes({}, choices));
  EXPECT_FALSE(choices.changed());
}

TEST_F(Rivals, TheTrialIsOnValuesThatDoNotRepeat) {
  for (size_t i = 0; i < x_.size(); ++i) x_[i] = Narrow<BF16>(static_cast<float>(i % 7));
  const std::vector<BF16> own = x_;
  std::vector<float> tried;
  gpu_.on_upload = [&](const std::byte* to, const std::vector<std::byte>& bytes) {
    if (to != reinterpret_cast<std::byte*>(x_.data()) || !tried.empty()) return;
    for (size_t i = 0; i < bytes.size(); i += sizeof(BF16)) {
      BF16 v;
      std::memcpy(&v, &bytes[i], sizeof(v));
      tried.push_back(Widen(v));
    }
  };
  KernelChoices choices = Fresh();
  EXPECT_TRUE(Takes({}, choices));
  for (size_t i = 0; i < x_.size(); ++i) ASSERT_EQ(x_[i].bits, own[i].bits) << "operands come back";
  ASSERT_EQ(tried.size(), static_cast<size_t>(kCount));
  double sum = 0, squares = 0;
  for (float v : tried) {
    ASSERT_LE(std::abs(v), 1);
    sum += v;
    squares += v * v;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.05);
  EXPECT_NEAR(squares / kCount, 1.0 / 3, 0.03);
  for (size_t lag : {1, 2, 3, 64, 128, 1000}) {
    double product = 0;
    for (size_t i = lag; i < tried.size(); ++i) product += tried[i] * tried[i - lag];
    EXPECT_NEAR(product / kCount, 0, 0.05) << lag;
  }
}

// Results of a kernel as the trial reads them.
std::vector<std::byte> Bytes(const std::vector<float>& values) {
  std::vector<std::byte> out(values.size() * sizeof(float));
  std::memcpy(out.data(), values.data(), out.size());
  return out;
}

TEST(DifferenceOf, HoldsTheWholeAndEveryElement) {
  const int64_t n = 1000;
  Rivalry::Result r{nullptr, n, DType::kF32, 0x1p-8};
  std::vector<float> want(n), got;
  for (int64_t i = 0; i < n; ++i) want[i] = i % 2 == 0 ? 1.0f : -1.0f;
  auto difference = [&] { return cuda::DifferenceOf(r, Bytes(got), Bytes(want)); };
  got = want;
  EXPECT_EQ(difference(), "");
  for (float& v : got) v *= 1 + 3 * 0x1p-8f;
  EXPECT_EQ(difference(), "");
  for (float& v : got) v *= 1 + 3 * 0x1p-8f;
  EXPECT_THAT(difference(), HasSubstr("where the norm is 1"));
  got = want;
  got[7] += 60 * 0x1p-8f;
  EXPECT_EQ(difference(), "");
  got[7] += 8 * 0x1p-8f;
  EXPECT_THAT(difference(), HasSubstr(" at 7"));
  got[7] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(difference(), "");
}

}  // namespace
}  // namespace shardc::testing
