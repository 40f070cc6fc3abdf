// What cuBLASLt is asked for, over a fake one that does what it is told and is as strict: products
// and epilogues against the reference and separate kernels, and which of several ways is taken.
#include <gmock/gmock.h>

#include "runtime/cuda/kernel_choices.h"
#include "runtime/cuda/native/cublas_epilogues.h"
#include "runtime/cuda/native/trial_gpu.h"
#include "tests/gpu/epilogue_cases.h"
#include "tests/ir/thrown.h"
#include "tests/runtime/cuda/fake_cublaslt.h"
#include "tests/runtime/emulated_machine.h"
#include "tests/runtime/host_trials.h"

namespace shardc::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Everything takes a little longer, or less long, than what was timed before it.
class FakeGpu : public HostTrials {
 public:
  double now = 1000, step = 1, least = 0;

  double Time(const std::function<void()>& enqueue, Stream) override {
    enqueue();
    return now = std::max(now + step, least);
  }
};
FakeGpu& Gpu() {
  static FakeGpu gpu;
  return gpu;
}

class Machine : public EmulatedMachine {
 public:
  cuda::Launch NewLaunch() override {
    cuda::Launch launch = EmulatedMachine::NewLaunch();
    launch.blas = reinterpret_cast<cublasLtContext*>(this);
    return launch;
  }
};

class CublasProducts : public ::testing::TestWithParam<DType> {
 protected:
  CublasProducts() { FakeCublasLt::Get() = {}; }
  ~CublasProducts() override { Gpu() = {}; }

  static std::vector<KernelCase> Cases() {
    std::vector<KernelCase> cases;
    for (const auto& list : {SampleCases(GetParam()), LargeCases(GetParam())}) {
      for (const KernelCase& c : list) {
        if (c.op.starts_with("matmul") || c.op == "linear") cases.push_back(c);
      }
    }
    return cases;
  }

  Machine machine_;
  FakeCublasLt& fake_ = FakeCublasLt::Get();
};

TEST_P(CublasProducts, AgreeWithTheReferenceWhicheverWayIsFastest) {
  const auto cases = Cases();
  EXPECT_GT(cases.size(), 20u);
  for (double step : {1, -1}) {
    for (const KernelCase& c : cases) {
      Gpu() = FakeGpu();
      Gpu().step = step;
      EXPECT_EQ(RunCase(machine_, c), "") << c.name << ": " << fake_.refusal;
    }
  }
  EXPECT_GT(fake_.products, 0);
  EXPECT_EQ(fake_.refusal, "");
}

TEST_P(CublasProducts, EpiloguesAgreeWithSeparateKernels) {
  if (GetParam() == DType::kF64) return;
  for (const EpilogueCase& c : EpilogueCases(GetParam())) {
    EXPECT_THAT(TryEpilogue(machine_, *cuda::CublasLtEpilogues(), c), StartsWith("1 ")) << c.name;
  }
  EXPECT_EQ(fake_.refusal, "");
}

TEST_P(CublasProducts, WithoutEpiloguesBiasesAreAddedAfterwards) {
  fake_.epilogues = false;
  for (const KernelCase& c : Cases()) EXPECT_EQ(RunCase(machine_, c), "") << c.name;
  if (GetParam() == DType::kF64) return;
  for (const EpilogueCase& c : EpilogueCases(GetParam())) {
    EXPECT_THAT(TryEpilogue(machine_, *cuda::CublasLtEpilogues(), c),
                StartsWith("0 refused: cuBLASLt has no algorithm for it"))
        << c.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CublasProducts,
                         ::testing::Values(DType::kF32, DType::kF64, DType::kBF16, DType::kF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

HostTensor Values(DType dtype, Shape shape, const std::vector<double>& values) {
  HostTensor t(dtype, std::move(shape));
  for (size_t i = 0; i < values.size(); ++i) t.SetDouble(static_cast<int64_t>(i), values[i]);
  return t;
}

TEST(CublasProduct, PartsOfASumAreNotRoundedToHalves) {
  FakeCublasLt::Get() = {};
  Machine machine;
  for (auto [dtype, large] : {std::pair{DType::kBF16, 257.0}, std::pair{DType::kF16, 2049.0}}) {
    // The sum of the first two is no such number.
    KernelCase c{
        "",
        "matmul",
        {},
        {Values(dtype, {1, 4}, {large - 1, 1, 1 - large, 0}), Values(dtype, {4, 1}, {1, 1, 1, 1})}};
    EXPECT_EQ(RunCase(machine, c), "");
  }
}

TEST(CublasProduct, WhatWasChosenIsTakenAgain) {
  FakeCublasLt& fake = FakeCublasLt::Get();
  fake = {};
  Machine machine;
  KernelCase c{"", "matmul", {}, {RandomFloats({4, 8}, 1), RandomFloats({8, 4}, 2)}};
  EXPECT_EQ(RunCase(machine, c), "");  // two runs
  EXPECT_EQ(fake.proposals, 1);
  EXPECT_EQ(fake.checks, 1);
}

// As of layers that are alike.
TEST(CublasProduct, WhereInAnArenaItLiesIsNoTrialOfItsOwn) {
  FakeCublasLt& fake = FakeCublasLt::Get();
  fake = {};
  Machine machine;
  cuda::KernelChoices choices;
  choices.may_measure = true;
  alignas(256) static std::byte data[4096];
  auto make = [&](int64_t offset) {
    const TensorView in[] = {{data + offset, DType::kF32, {4, 8}},
                             {data + offset + 1024, DType::kF32, {8, 4}}},
                     out[] = {{data + offset + 2048, DType::kF32, {4, 4}}};
    Program program;
    Instruction product;
    product.op = "matmul";
    auto kernel =
        machine.Make({program, product, KernelCall{&product.attrs, in, out, nullptr, 0, 1}});
    kernel->Tune(machine.NewLaunch(), choices);
  };
  for (int64_t offset : {0, 64, 128}) make(offset);
  EXPECT_EQ(fake.proposals, 1);
  EXPECT_EQ(fake.checks, 2);
  make(32);
  EXPECT_EQ(fake.proposals, 2);
}

// All ways take the same time, but for what the first ones lose to it.
TEST(CublasProduct, AGpuThatSpeedsUpTakesTheSameWay) {
  FakeCublasLt::Get() = {};
  Machine machine;
  HostTensor left = RandomFloats({4, 8}, 1), right = RandomFloats({8, 4}, 2),
             y(DType::kF32, {4, 4});
  const TensorView in[] = {{left.raw(), DType::kF32, {4, 8}}, {right.raw(), DType::kF32, {8, 4}}},
                   out[] = {{y.raw(), DType::kF32, {4, 4}}};
  Program program;
  Instruction product;
  product.op = "matmul";
  auto choice_on = [&](double least) {
    Gpu() = FakeGpu();
    Gpu().step = -1;
    Gpu().least = least;
    auto kernel =
        machine.Make({program, product, KernelCall{&product.attrs, in, out, nullptr, 0, 1}});
    std::vector<std::byte> workspace(static_cast<size_t>(kernel->workspace_bytes()) + 256);
    cuda::Launch launch = machine.NewLaunch();
    const auto at = reinterpret_cast<uintptr_t>(workspace.data());
    launch.workspace = workspace.data() + (256 - at % 256);
    launch.workspace_bytes = kernel->workspace_bytes();
    cuda::KernelChoices choices;
    choices.may_measure = true;
    kernel->Tune(launch, choices);
    return choices.ToText();
  };
  const std::string steady = choice_on(1000);
  EXPECT_EQ(choice_on(996), steady);
  EXPECT_NE(choice_on(0), steady);  // on one that never stops the last way is the fastest
  Gpu() = {};
}

// Equal ones take less power, and a GPU is as fast as its power allows.
TEST(CublasProduct, IsTimedOnRandomNumbers) {
  FakeCublasLt::Get() = {};
  Machine machine;
  struct Case {
    const char* op;
    Shape left, right, y;
  };
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (const auto& [op, left, right, y] :
         {Case{"matmul", {4, 8}, {8, 4}, {4, 4}}, Case{"matmul", {3, 4, 8}, {3, 8, 5}, {3, 4, 5}},
          Case{"matmul", {2, 3, 4, 8}, {3, 8, 5}, {2, 3, 4, 5}},
          Case{"matmul_nt", {16, 16}, {17, 16}, {16, 17}},
          Case{"matmul_tn", {16, 17}, {16, 16}, {17, 16}}}) {
      SCOPED_TRACE(StrCat(op, " ", DTypeName(dtype)));
      Gpu() = FakeGpu();
      Gpu().step = -1;  // that in two is tried and taken
      const std::vector<std::byte> before(4096, std::byte{0x3c});
      std::vector<std::byte> operands[] = {before, before}, result = before;
      const TensorView in[] = {{operands[0].data(), dtype, left},
                               {operands[1].data(), dtype, right}},
                       out[] = {{result.data(), dtype, y}};
      Program program;
      Instruction product;
      product.op = op;
      auto kernel =
          machine.Make({program, product, KernelCall{&product.attrs, in, out, nullptr, 0, 1}});
      std::vector<std::byte> workspace(static_cast<size_t>(kernel->workspace_bytes()));
      cuda::Launch launch = machine.NewLaunch();
      launch.workspace = workspace.data();
      launch.workspace_bytes = kernel->workspace_bytes();
      cuda::KernelChoices choices;
      choices.may_measure = true;
      kernel->Tune(launch, choices);
      for (int i : {0, 1}) {
        const int64_t bytes = in[i].num_elements() * DTypeSize(dtype);
        EXPECT_LT(std::count(operands[i].begin(), operands[i].begin() + bytes, before[0]),
                  bytes / 8);
        EXPECT_EQ(std::count(operands[i].begin() + bytes, operands[i].end(), before[0]),
                  4096 - bytes);
      }
    }
  }
  Gpu() = {};
}

// As of a vocabulary: rows, columns and what is contracted are odd, in rows that are not.
TEST(CublasProduct, AnOddSizeIsSplitWhereThatIsFaster) {
  FakeCublasLt& fake = FakeCublasLt::Get();
  fake = {};
  Machine machine;
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    auto halves = [&](Shape shape, uint64_t seed) {
      return As(RandomFloats(std::move(shape), seed), dtype);
    };
    Attributes length, cols, wide;
    length.Set("length", int64_t{24});
    cols.Set("cols", int64_t{17});
    wide.Set("cols", int64_t{17});
    wide.Set("out", std::string("f32"));
    const KernelCase cases[] = {
        {"rows", "matmul_nt", length, {halves({16, 16}, 1), halves({17, 16}, 2)}},
        {"sums", "matmul", cols, {halves({16, 24}, 3), halves({17, 16}, 4)}},
        {"f32 sums", "matmul", wide, {halves({16, 24}, 5), halves({17, 16}, 6)}},
        {"columns", "matmul_tn", wide, {halves({16, 24}, 7), halves({16, 16}, 8)}},
        {"added",
         "matmul_tn",
         cols,
         {halves({16, 24}, 7), halves({16, 16}, 8), halves({17, 16}, 9)}},
        {"bias", "linear", {}, {halves({9, 16}, 1), halves({16, 24}, 2), halves({24}, 3)}}};
    for (const KernelCase& c : cases) {
      int64_t products[2];
      for (int splits : {0, 1}) {
        Gpu() = FakeGpu();
        Gpu().step = splits ? -1 : 1;
        fake.products = 0;
        EXPECT_EQ(RunCase(machine, c), "") << c.name << ": " << fake.refusal;
        products[splits] = fake.products;
      }
      EXPECT_GT(products[1], products[0]) << c.name;  // the steps take two
    }
  }
  Gpu() = {};
}

TEST(CublasProduct, WithoutAnAlgorithmThereIsAnError) {
  FakeCublasLt::Get() = {};
  FakeCublasLt::Get().any = false;
  Machine machine;
  KernelCase c{"", "matmul", {}, {RandomFloats({4, 8}, 1), RandomFloats({8, 4}, 2)}};
  ExpectThrown([&] { RunCase(machine, c); }, "E4301", "there is none for this product");
  FakeCublasLt::Get() = {};
}

}  // namespace
}  // namespace shardc::testing

namespace shardc::cuda {
TrialGpu& ThisGpu() { return testing::Gpu(); }
}  // namespace shardc::cuda
