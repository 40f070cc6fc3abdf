// Which instructions one kernel does together, and that it leaves what their own kernels leave.
#include <gmock/gmock.h>

#include <cstring>

#include "ir/text.h"
#include "runtime/cuda/joined.h"
#include "runtime/cuda/kernels/batch.h"
#include "tests/runtime/executor_fixture.h"

namespace shardc::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Runs of instructions, each as long as can be.
std::vector<std::vector<int>> Runs(const Program& p) {
  std::vector<std::vector<int>> runs;
  for (int i = 0; i < static_cast<int>(p.instructions.size()); ++i) {
    if (!runs.empty() && cuda::Joins(p, runs.back(), i)) {
      runs.back().push_back(i);
    } else {
      runs.push_back({i});
    }
  }
  return runs;
}

// Of a serial graph of these operands; every value is a result.
std::vector<std::vector<int>> RunsOf(const std::string& operands, const std::string& results,
                                     const std::string& ops) {
  return Runs(ProgramsFor(
      ParseGraph("graph @g(" + operands + ") -> (" + results + ") {\n" + ops + "}\n", "test"))[0]);
}

std::string Sgd(const std::string& of, const std::string& rate, const std::string& attrs,
                const std::string& type = "f32[4]") {
  return "  %y" + of + " = sgd %w" + of + ", %g" + of + ", %scale, %" + rate + " {" + attrs +
         "} : " + type + "\n";
}

TEST(CudaJoined, UpdatesWithTheSameScalarsAndAttributes) {
  const std::string operands =
      "%w0: f32[4], %g0: f32[4], %w1: f32[4], %g1: f32[4], %w2: bf16[4], %g2: bf16[4], "
      "%scale: f32[], %rate: f32[], %other: f32[]";
  const std::string first = Sgd("0", "rate", "momentum=0.0, weight_decay=0.1");
  const std::string results = "%y0, %y1";
  EXPECT_THAT(RunsOf(operands, results, first + Sgd("1", "rate", "momentum=0.0")),
              ElementsAre(ElementsAre(0, 1)));
  EXPECT_THAT(RunsOf(operands, results, first + Sgd("1", "other", "momentum=0.0")),
              ElementsAre(ElementsAre(0), ElementsAre(1)));
  EXPECT_THAT(RunsOf(operands, results, first + Sgd("1", "rate", "dampening=0.1")),
              ElementsAre(ElementsAre(0), ElementsAre(1)));
  EXPECT_THAT(RunsOf(operands, "%y0, %y2", first + Sgd("2", "rate", "momentum=0.0", "bf16[4]")),
              ElementsAre(ElementsAre(0), ElementsAre(1)));
}

TEST(CudaJoined, NotWhatReadsWhatAnotherWrites) {
  EXPECT_THAT(RunsOf("%x: f32[4], %z: f32[4]", "%a, %b, %c",
                     "  %a = cast %x {to=\"bf16\"} : bf16[4]\n"
                     "  %b = cast %z {to=\"bf16\"} : bf16[4]\n"
                     "  %c = cast %b {to=\"f32\"} : f32[4]\n"),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2)));
}

TEST(CudaJoined, SumsOfSquaresWithWhatAddsThem) {
  // The last is of a result of the run, and what adds vectors is no step.
  EXPECT_THAT(RunsOf("%x: f32[4], %y: f64[4], %before: f32[]", "%t, %u, %v, %z",
                     "  %a = sum_squares %x : f32[]\n"
                     "  %b = sum_squares %y : f64[]\n"
                     "  %c = cast %b {to=\"f32\"} : f32[]\n"
                     "  %t = add %a, %c : f32[]\n"
                     "  %u = add %t, %before : f32[]\n"
                     "  %v = sum_squares %u : f32[]\n"
                     "  %z = add %x, %x : f32[4]\n"),
              ElementsAre(ElementsAre(0, 1, 2, 3, 4), ElementsAre(5), ElementsAre(6)));
}

TEST(CudaJoined, NotTooMany) {
  std::string operands, results, ops;
  for (size_t i = 0; i <= cuda::kMostJoined; ++i) {
    operands += StrCat(i > 0 ? ", " : "", "%x", i, ": f32[4]");
    results += StrCat(i > 0 ? ", " : "", "%y", i);
    ops += StrCat("  %y", i, " = cast %x", i, " {to=\"bf16\"} : bf16[4]\n");
  }
  const auto runs = RunsOf(operands, results, ops);
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].size(), cuda::kMostJoined);
}

// A kernel that runs when the device gets to it.
class OnDevice : public cuda::CudaKernel {
 public:
  OnDevice(FakeDevice& device, std::string op, std::unique_ptr<cuda::CudaKernel> kernel)
      : device_(device), op_(std::move(op)), kernel_(std::move(kernel)) {}
  void Enqueue(const cuda::Launch& launch) override {
    device_.Enqueue(op_, launch.stream, {}, [this, launch] { kernel_->Enqueue(launch); });
  }
  int64_t workspace_bytes() const override { return kernel_->workspace_bytes(); }

 private:
  FakeDevice& device_;
  std::string op_;
  std::unique_ptr<cuda::CudaKernel> kernel_;
};

cuda::JoinedKernelMaker JoinedOn(FakeDevice& device) {
  return [&device](std::span<const KernelRequest> run) {
    return std::make_unique<OnDevice>(device, "joined " + run[0].instruction.op,
                                      cuda::emulated::MakeJoinedKernelFor(run));
  };
}

std::unique_ptr<cuda::Executor> Emulated(const Compiled& c, FakeDevice& device,
                                         cuda::Carrier& carrier,
                                         const cuda::JoinedKernelMaker& make_joined) {
  cuda::ExecutorOptions options;
  options.make_joined = make_joined;
  auto e = std::make_unique<cuda::Executor>(
      device, carrier, c.pointers_, c.stage_axes_, options,
      [&device](const KernelRequest& r) {
        return std::make_unique<OnDevice>(device, r.instruction.op,
                                          cuda::emulated::MakeKernelFor(r));
      },
      ReaderFor(c.graph_));
  c.SetInputs(*e);
  return e;
}

int64_t Count(const FakeDevice& device, const std::string& what) {
  return std::ranges::count(device.works(), what, &FakeDevice::Work::what);
}

struct Meshed {
  const char *name, *spec, *mesh;
  int zero;
  int norms;  // runs of sums of squares
};
class CudaJoinedTraining : public ::testing::TestWithParam<Meshed> {};

// All outputs and states after three steps. `count`: looks at what one of them enqueued.
std::vector<HostTensor> Train(const Compiled& c, bool join,
                              const std::function<void(const FakeDevice&)>& count) {
  FakeDevice device;
  auto carrier = cuda::MakeSharedDevice(device);
  auto executor = Emulated(c, device, *carrier, join ? JoinedOn(device) : nullptr);
  device.Forget();
  executor->Step();
  count(device);
  for (int step = 0; step < 2; ++step) executor->Step();
  std::vector<NamedBuffer> all = c.Outputs();
  for (const Program& p : c.programs_) all.insert(all.end(), p.states.begin(), p.states.end());
  std::vector<HostTensor> values;
  for (const NamedBuffer& b : all) values.push_back(c.Gather(*executor, b));
  return values;
}

TEST_P(CudaJoinedTraining, HasTheBitsOfSeparateKernelsInFewLaunches) {
  const Meshed& setup = GetParam();
  const Compiled c(setup.zero ? WithZero(setup.spec, setup.zero) : setup.spec, setup.mesh, "adamw");
  const auto joined = Train(c, true, [&](const FakeDevice& device) {
    const auto ranks = static_cast<int64_t>(c.programs_.size());
    EXPECT_EQ(Count(device, "joined adamw"), ranks);
    EXPECT_EQ(Count(device, "joined sum_squares"), setup.norms * ranks);
    // That of a tied parameter is on its way to another stage meanwhile.
    EXPECT_EQ(Count(device, "adamw"), std::string(setup.name) == "stages" ? 1 : 0);
    EXPECT_EQ(Count(device, "sum_squares"), 0);
  });
  const auto separate =
      Train(c, false, [&](const FakeDevice& device) { EXPECT_GT(Count(device, "adamw"), 20); });
  EXPECT_TRUE(joined == separate);
}

INSTANTIATE_TEST_SUITE_P(Meshes, CudaJoinedTraining,
                         ::testing::Values(Meshed{"serial", "serial", "", 0, 1},
                                           Meshed{"tp", "megatron", "tp=2", 0, 2},
                                           Meshed{"zero1", "megatron", "dp=2", 1, 2},
                                           Meshed{"zero3", "megatron", "dp=2", 3, 2},
                                           Meshed{"stages", "megatron", "pp=2", 0, 1}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(CudaJoinedStep, AProfileHasEveryInstruction) {
  const Compiled c("serial", "", "adamw");
  FakeDevice device;
  auto carrier = cuda::MakeSharedDevice(device);
  auto executor = Emulated(c, device, *carrier, JoinedOn(device));
  executor->StartProfile(1);
  executor->Step();
  const auto spans = executor->TakeProfile();
  const Profile profile{c.programs_, spans, {}, {}};
  ASSERT_EQ(profile.instructions(0), c.programs_[0].instructions.size());
  int64_t updates = 0, ns = 0;
  for (size_t i = 0; i < profile.instructions(0); ++i) {
    if (c.programs_[0].instructions[i].op != "adamw") continue;
    ++updates;
    ns += profile.at(0, 0, i).ns();
  }
  EXPECT_GT(updates, 20);
  EXPECT_EQ(ns, 1'000'000) << "the time of the one launch, once";
}

TEST(CudaJoinedStep, WhatHasNoJoinedKernelRunsByItself) {
  const Compiled c("serial", "", "adamw");
  FakeDevice device;
  auto carrier = cuda::MakeSharedDevice(device);
  auto executor = Emulated(c, device, *carrier, [](auto) { return nullptr; });
  executor->Step();
  EXPECT_GT(Count(device, "adamw"), 20);
}

TEST(CudaJoinedStep, NumbersAreCheckedAfterEachInstruction) {
  Compiled c("serial", "", "adamw");
  FakeDevice device;
  auto carrier = cuda::MakeSharedDevice(device);
  cuda::ExecutorOptions options;
  options.check_numerics = true;
  options.make_joined = JoinedOn(device);
  auto executor = c.On(device, *carrier, options);
  executor->Step();
  EXPECT_EQ(Count(device, "joined adamw"), 0);
}

}  // namespace
}  // namespace shardc::testing
