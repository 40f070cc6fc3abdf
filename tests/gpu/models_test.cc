// Whole models on the GPU: against the goldens, with all ranks on one GPU, over one-rank NCCL, and
// bit for bit again.
#include "tests/exec/models.h"

#include <gmock/gmock.h>

#include <cstdlib>

#include "runtime/backend.h"
#include "tests/exec/harness.h"
#include "tests/exec/training.h"
#include "tests/gpu/gpu.h"
#include "tests/ir/thrown.h"

namespace shardc::testing {
namespace {

using ::testing::IsEmpty;

RunSetup OnGpu(const Export& e, const std::string& spec, const std::string& mesh, int steps = 1) {
  RunSetup setup;
  setup.spec = spec;
  setup.mesh = mesh;
  setup.pipeline.loss = e.loss;
  setup.session.backend = "cuda";
  setup.session.shared_device = true;
  setup.steps = steps;
  return setup;
}

bool CanRun(const Export& e) { return !e.batches.empty() && e.missing.empty(); }

TEST(GpuModels, SerialAgainstGoldens) {
  SHARDC_NEEDS_GPU();
  for (const Export& e : AllExports()) {
    if (!CanRun(e)) continue;
    SCOPED_TRACE(e.path());
    RunResult r = CompileAndRun(ImportFor(e, e.batches[0]), OnGpu(e, "serial", ""),
                                InputsFor(e, e.batches[0]));
    EXPECT_THAT(CompareWithGolden(e, e.batches[0], r, 1e-4), IsEmpty());
  }
}

class GpuShared : public ::testing::TestWithParam<const char*> {};

TEST_P(GpuShared, Gpt2AgainstGoldens) {
  SHARDC_NEEDS_GPU();
  int ran = 0;
  for (const Export& e : AllExports()) {
    if (!CanRun(e) || e.model != "hf_gpt2") continue;
    SCOPED_TRACE(e.path());
    ++ran;
    // The third step is a replay of the graph that the second one captured.
    RunResult r = CompileAndRun(ImportFor(e, e.batches[0]), OnGpu(e, "megatron", GetParam(), 3),
                                InputsFor(e, e.batches[0]));
    EXPECT_THAT(CompareWithGolden(e, e.batches[0], r, 1e-4), IsEmpty());
  }
  EXPECT_GT(ran, 0);
}

TEST(GpuModels, BitEqualRunToRun) {
  SHARDC_NEEDS_GPU();
  for (const Export& e : AllExports()) {
    if (!CanRun(e) || e.model != "hf_gpt2") continue;
    RunSetup setup = OnGpu(e, "megatron_hf_gpt2", "tp=2", 2);
    RunResult a = CompileAndRun(ImportFor(e, e.batches[0]), setup, InputsFor(e, e.batches[0]));
    RunResult b = CompileAndRun(ImportFor(e, e.batches[0]), setup, InputsFor(e, e.batches[0]));
    EXPECT_TRUE(a.outputs == b.outputs) << e.path();
    return;
  }
}

// An export that both tests below are run on.
Export Gpt2() {
  for (const Export& e : AllExports()) {
    if (CanRun(e) && e.model == "hf_gpt2" && !e.float64) return e;
  }
  throw InternalError("no export of hf_gpt2");
}

// What a kernel notes of it reaches the host.
TEST_P(GpuShared, RefusesAnIdThatIsOutOfRange) {
  SHARDC_NEEDS_GPU();
  const Export e = Gpt2();
  Tensors inputs = InputsFor(e, e.batches[0]);
  inputs.at("input_ids").SetDouble(3, 1e6);
  ExpectThrown(
      [&] { CompileAndRun(ImportFor(e, e.batches[0]), OnGpu(e, "megatron", GetParam()), inputs); },
      "E4003", "1000000");
}

// With clipped gradients, from the third step on by replays of the graph.
void ExpectAdamWOfPyTorch(const Export& e, RunSetup setup) {
  const AdamWGolden golden = AdamWGoldenOf(e);
  setup.pipeline.optimizer = golden.options;
  setup.pipeline.optimizer.clip_norm = golden.clip_norm;
  RunResult r = CompileAndRun(ImportFor(e, golden.batch), setup, InputsFor(e, golden.batch));
  EXPECT_EQ(CompareSteps(r.losses, golden.clipped_losses, 2e-5), "");
  EXPECT_EQ(CompareSteps(r.grad_norms, golden.clipped_grad_norms, 2e-4), "");
}

// Ten updates.
TEST_P(GpuShared, AdamWFollowsPyTorch) {
  SHARDC_NEEDS_GPU();
  const Export e = Gpt2();
  ExpectAdamWOfPyTorch(e, OnGpu(e, "megatron", GetParam(), 11));
}

TEST_P(GpuShared, Bf16IsLikeTheGoldens) {
  SHARDC_NEEDS_GPU();
  const Export e = Gpt2();
  RunSetup setup = OnGpu(e, "megatron", GetParam(), 3);
  setup.pipeline.precision.compute = "bf16";
  RunResult r = CompileAndRun(ImportFor(e, e.batches[0]), setup, InputsFor(e, e.batches[0]));
  EXPECT_EQ(CompareHalvesWithGolden(e, e.batches[0], r), "");
}

// What is drawn is another in every step, also in replays of the graph, and the same as on the CPU.
TEST_P(GpuShared, DropsWhatTheCpuDrops) {
  SHARDC_NEEDS_GPU();
  const std::string keys =
      "layers=2,hidden=64,heads=4,kv_heads=2,vocab=60,seq=24,batch=4,dropout=0.1,"
      "attention_dropout=0.2";
  for (const char* words : {"unclipped", "unclipped bf16"}) {
    SCOPED_TRACE(words);
    RunSetup setup;
    setup.pipeline = TrainingOptions(words);
    setup.spec = "megatron";
    setup.mesh = GetParam();
    setup.steps = 5;
    const Tensors inputs = TrainingInputs(keys, setup.pipeline);
    const RunResult want = CompileAndRun(BuildKeys(keys), setup, inputs);
    setup.session.backend = "cuda";
    setup.session.shared_device = true;
    const RunResult got = CompileAndRun(BuildKeys(keys), setup, inputs);
    const bool half = setup.pipeline.precision.compute == "bf16";
    EXPECT_EQ(CompareSteps(got.losses, want.losses, half ? 2e-3 : 2e-5), "");
    EXPECT_EQ(CompareSteps(got.grad_norms, want.grad_norms, half ? 2e-2 : 2e-4), "");
  }
}

// What the backward computes again changes no bit.
TEST(GpuModels, RecomputeInBf16) {
  SHARDC_NEEDS_GPU();
  const Export e = Gpt2();
  Tensors whole;
  for (const char* kind : {"none", "selective", "full"}) {
    SCOPED_TRACE(kind);
    RunSetup setup = OnGpu(e, "megatron_hf_gpt2", "tp=2", 3);
    setup.pipeline.precision.compute = "bf16";
    setup.pipeline.recompute = kind;
    RunResult r = CompileAndRun(ImportFor(e, e.batches[0]), setup, InputsFor(e, e.batches[0]));
    EXPECT_EQ(CompareHalvesWithGolden(e, e.batches[0], r), "");
    if (whole.empty()) whole = r.outputs;
    EXPECT_TRUE(r.outputs == whole);
  }
}

class GpuZero : public ::testing::TestWithParam<int> {};

TEST_P(GpuZero, AdamWFollowsPyTorch) {
  SHARDC_NEEDS_GPU();
  const Export e = Gpt2();
  for (auto [spec, mesh] : {std::pair("dp", "dp=2"), {"megatron_hf_gpt2", "dp=2,tp=2"}}) {
    SCOPED_TRACE(mesh);
    ExpectAdamWOfPyTorch(e, OnGpu(e, WithZero(spec, GetParam()), mesh, 11));
  }
}

// The same as with parameters that are whole.
TEST_P(GpuZero, Bf16TrainsAsWithout) {
  SHARDC_NEEDS_GPU();
  const Export e = Gpt2();
  const AdamWGolden golden = AdamWGoldenOf(e);
  std::vector<double> losses;
  for (int stage : {0, GetParam()}) {
    RunSetup setup = OnGpu(e, stage == 0 ? "dp" : WithZero("dp", stage), "dp=2", 6);
    setup.pipeline.optimizer = golden.options;
    setup.pipeline.precision.compute = "bf16";
    RunResult r = CompileAndRun(ImportFor(e, golden.batch), setup, InputsFor(e, golden.batch));
    if (stage == 0) losses = r.losses;
    EXPECT_EQ(CompareSteps(r.losses, losses, 1e-3), "");
  }
}

// Stages of a pipeline, all on one GPU.
struct Pipeline {
  const char* mesh;
  int microbatches;
};
class GpuPipeline : public ::testing::TestWithParam<Pipeline> {
 protected:
  static RunSetup Setup(const Export& e, int steps) {
    RunSetup setup = OnGpu(e, "megatron_hf_gpt2", GetParam().mesh, steps);
    setup.microbatches = GetParam().microbatches;
    return setup;
  }
};

TEST_P(GpuPipeline, Gpt2AgainstGoldens) {
  SHARDC_NEEDS_GPU();
  const Export e = Gpt2();
  RunResult r = CompileAndRun(ImportFor(e, e.batches[0]), Setup(e, 3), InputsFor(e, e.batches[0]));
  EXPECT_THAT(CompareWithGolden(e, e.batches[0], r, 1e-4), IsEmpty());
}

TEST_P(GpuPipeline, AdamWFollowsPyTorch) {
  SHARDC_NEEDS_GPU();
  const Export e = Gpt2();
  ExpectAdamWOfPyTorch(e, Setup(e, 11));
}

INSTANTIATE_TEST_SUITE_P(Meshes, GpuPipeline,
                         ::testing::Values(Pipeline{"pp=2", 1}, Pipeline{"pp=2,tp=2", 2}));

INSTANTIATE_TEST_SUITE_P(Stages, GpuZero, ::testing::Values(1, 2, 3));

INSTANTIATE_TEST_SUITE_P(Meshes, GpuShared, ::testing::Values("tp=1", "tp=2", "tp=4", "cp=2,tp=2"));

// A GPU and a thread for each rank.
TEST(GpuNccl, TwoGpusAgainstGoldens) {
  SHARDC_NEEDS_GPU();
  if (CountCudaGpus() < 2) GTEST_SKIP() << "needs 2 GPUs";
  int ran = 0;
  for (const Export& e : AllExports()) {
    if (!CanRun(e) || e.model != "hf_gpt2") continue;
    SCOPED_TRACE(e.path());
    ++ran;
    RunSetup setup = OnGpu(e, "megatron_hf_gpt2", "tp=2", 3);
    setup.session.shared_device = false;
    RunResult r = CompileAndRun(ImportFor(e, e.batches[0]), setup, InputsFor(e, e.batches[0]));
    EXPECT_THAT(CompareWithGolden(e, e.batches[0], r, 1e-4), IsEmpty());
  }
  EXPECT_GT(ran, 0);
}

// Collectives over groups of one rank: NCCL starts, runs, is captured and closed.
TEST(GpuNccl, OneRank) {
  SHARDC_NEEDS_GPU();
  Program p;
  p.mesh = Mesh::Parse("tp=1");
  p.arena_bytes = 1 << 12;
  auto buffer = [&](Space space, int64_t offset, const std::string& name) {
    Buffer b;
    b.type = TensorType(DType::kF32, {64});
    b.local_shape = {64};
    b.space = space;
    b.offset = offset;
    b.bytes = 256;
    b.name = name;
    p.buffers.push_back(b);
    return static_cast<int>(p.buffers.size()) - 1;
  };
  int last = buffer(Space::kInput, 0, "x");
  p.inputs.push_back({"x", last});
  const CollectiveKind kinds[] = {CollectiveKind::kAllReduce, CollectiveKind::kAllGather,
                                  CollectiveKind::kReduceScatter, CollectiveKind::kAllToAll};
  for (CollectiveKind kind : kinds) {
    Collective c;
    c.id = static_cast<int>(p.collectives.size());
    c.kind = kind;
    c.axes = {0};
    Instruction i;
    i.op = std::string(CollectiveKindName(kind));
    i.operands = {last};
    last = buffer(Space::kArena, 256 * c.id, "");
    i.results = {last};
    i.collective = c.id;
    p.collectives.push_back(c);
    p.instructions.push_back(i);
  }
  p.outputs.push_back({"y", last});
  setenv("SHARDC_ALWAYS_NCCL", "1", 1);
  SessionOptions options;
  options.backend = "cuda";
  HostTensor x(DType::kF32, {64});
  {
    Session session({&p, 1}, options, nullptr);
    for (int step = 0; step < 3; ++step) {
      for (int64_t i = 0; i < 64; ++i) x.SetDouble(i, static_cast<double>(i + 100 * step));
      session.SetInput("x", x);
      session.Step();
      EXPECT_TRUE(session.Output("y") == x) << "step " << step;
    }
  }
  unsetenv("SHARDC_ALWAYS_NCCL");
}

}  // namespace
}  // namespace shardc::testing
