// Scratch that a plan lends to attention's gradient: it is the workspace of the kernel.
#include <gmock/gmock.h>

#include "runtime/cuda/scratch.h"
#include "tests/runtime/executor_fixture.h"

namespace shardc::testing {
namespace {

using ::testing::IsEmpty;

struct Setup {
  const char *spec, *mesh;
  int microbatches = 1;
};
void PrintTo(const Setup& s, std::ostream* os) { *os << s.spec << " " << s.mesh; }

// Its logits leave room.
Compiled ModelOf(const Setup& s) {
  return {s.spec, s.mesh, "", {2048, 256, "bf16", s.microbatches}};
}

// All the scratch that an instruction has and `more`; of others a little.
Workspaces AllOfIt(int64_t more = 0) {
  return [more](const KernelRequest& r) {
    const int64_t scratch = cuda::ScratchBytes(r.program, r.instruction);
    return scratch > 0 ? scratch + more : 128;
  };
}

// Of all outputs, against the CPU's.
double WorstOf(const Compiled& c, cuda::Executor& executor, Session& cpu) {
  double worst = 0;
  for (const NamedBuffer& o : c.Outputs()) {
    const double d = WorstDifference(c.Gather(executor, o), cpu.Output(o.name));
    worst = d >= 0 ? std::max(worst, d) : 1;  // not a number
  }
  return worst;
}

class CudaScratch : public ::testing::TestWithParam<Setup> {};

TEST_P(CudaScratch, IsTheWorkspace) {
  Compiled c = ModelOf(GetParam());
  auto cpu = c.OnCpu();
  cpu->Step();
  int64_t others = 0, lent = 0;
  for (const Program& p : c.programs_) {
    others += cuda::LayOut(p).bytes + 128;
    for (const Instruction& i : p.instructions) lent += i.scratch >= 0;
  }
  EXPECT_GT(lent, 0);
  FakeDevice device;
  device.Defer(1);
  auto carrier = cuda::MakeSharedDevice(device);
  auto executor = c.On(device, *carrier, {}, AllOfIt());
  EXPECT_EQ(device.allocated_bytes, others);
  device.Forget();
  for (int step = 0; step < 2; ++step) executor->Step();
  EXPECT_TRUE(executor->captured());
  EXPECT_THAT(device.Races(), IsEmpty());
  EXPECT_THAT(device.Strays(), IsEmpty());
  EXPECT_LE(WorstOf(c, *executor, *cpu), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Of, CudaScratch,
                         ::testing::Values(Setup{"serial", ""}, Setup{"megatron", "tp=2"},
                                           Setup{"dp", "dp=2"}, Setup{"megatron", "pp=2", 2}));

// Then there is memory for all kernels, as without scratch.
TEST(CudaScratchOf, TooLittleIsLeftAlone) {
  Compiled c = ModelOf({"serial", ""});
  const Program& p = c.programs_[0];
  int64_t most = 0;
  for (const Instruction& i : p.instructions) most = std::max(most, cuda::ScratchBytes(p, i));
  FakeDevice device;
  auto carrier = cuda::MakeSharedDevice(device);
  auto executor = c.On(device, *carrier, {}, AllOfIt(1));
  EXPECT_EQ(device.allocated_bytes, cuda::LayOut(p).bytes + most + 1);
  executor->Step();
  auto cpu = c.OnCpu();
  cpu->Step();
  EXPECT_LE(WorstOf(c, *executor, *cpu), 1e-6);
}

// What the proof keeps from running: the kernel overwrites what it still needs.
TEST(CudaScratchOf, ABrokenPlanShows) {
  Compiled c = ModelOf({"serial", ""});
  Program& p = c.programs_[0];
  const auto lent =
      std::ranges::find_if(p.instructions, [](const Instruction& i) { return i.scratch >= 0; });
  ASSERT_NE(lent, p.instructions.end());
  p.buffers[lent->scratch].offset = p.buffers[lent->operands[0]].offset;
  p.buffers[lent->scratch].bytes = 1024;
  auto cpu = c.OnCpu();
  cpu->Step();
  FakeDevice device;
  auto carrier = cuda::MakeSharedDevice(device);
  auto executor = c.On(device, *carrier, {}, AllOfIt());
  executor->Step();
  EXPECT_GT(WorstOf(c, *executor, *cpu), 0.01);
}

// Of a plan by hand: offsets are multiples of 64 only.
TEST(CudaScratchOf, OnlyWhatIsAligned) {
  Program p;
  p.buffers.resize(1);
  p.buffers[0].bytes = 1000;
  Instruction i;
  EXPECT_EQ(cuda::ScratchBytes(p, i), 0);
  i.scratch = 0;
  EXPECT_EQ(cuda::ScratchBytes(p, i), 1000);
  p.buffers[0].offset = 64;
  EXPECT_EQ(cuda::ScratchBytes(p, i), 0);
}

}  // namespace
}  // namespace shardc::testing
