// ZeRO, the batch in pieces, pipelines, and what goes together: the same training as the serial
// model's.
#include <gtest/gtest.h>

#include "tests/exec/models.h"
#include "tests/exec/training.h"

namespace shardc::testing {
namespace {

struct Form {
  const char* name;
  const char* keys;
};

constexpr Form kTied = {"tied", "layers=2,hidden=40,heads=5,vocab=97,seq=6,batch=12"};
constexpr Form kLlama = {
    "llama",
    "layers=2,hidden=32,heads=4,vocab=50,seq=6,batch=12,tied=false,qkv=separate,activation=swiglu,"
    "norm=rms_norm,positions=rope,kv_heads=2"};
// More layers, for stages.
constexpr Form kDeepTied = {"tied", "layers=4,hidden=40,heads=5,vocab=97,seq=6,batch=4"};
constexpr Form kDeepUntied = {"untied",
                              "layers=4,hidden=40,heads=4,vocab=97,seq=6,batch=4,tied=false"};
constexpr Form kDeepLlama = {
    "llama",
    "layers=4,hidden=32,heads=4,vocab=50,seq=6,batch=4,tied=false,qkv=separate,activation=swiglu,"
    "norm=rms_norm,positions=rope,kv_heads=2"};

struct Case {
  Form form;
  const char* spec;
  const char* mesh;
  std::string more;  // words of TrainingOptions
  // All of each with all of the other.
  std::vector<int> zero = {0}, microbatches = {1};
  int virtual_stages = 1;
  int steps = 4;
  double norms = 1e-4, tensors = 2e-5;  // bounds, in f32
  // So many labels of the first examples do not count.
  int64_t ignored = 0;
};

class TrainsAlike : public ::testing::TestWithParam<Case> {};

void ExpectHowItRan(const Case& c, int microbatches, const std::string& lowered) {
  if (microbatches > 1) {
    EXPECT_NE(lowered.find(StrCat("microbatch=", microbatches - 1)), std::string::npos);
  }
  if (std::string(c.mesh).find("pp") != std::string::npos) {
    EXPECT_NE(lowered.find("send_recv"), std::string::npos);
  }
}

TEST_P(TrainsAlike, AsTheSerialModel) {
  const Case& c = GetParam();
  RunSetup setup;
  setup.pipeline = TrainingOptions(c.more);
  setup.steps = c.steps;
  Tensors inputs = TrainingInputs(c.form.keys, setup.pipeline);
  for (int64_t i = 0; i < c.ignored; ++i) inputs.at("labels").SetDouble(i, -100);
  const bool half = setup.pipeline.precision.compute != "f32";
  const RunResult want = CompileAndRun(BuildKeys(c.form.keys), setup, inputs);
  setup.spec = c.spec;
  setup.mesh = c.mesh;
  setup.virtual_stages = c.virtual_stages;
  for (int zero : c.zero) {
    for (int microbatches : c.microbatches) {
      SCOPED_TRACE(StrCat("zero ", zero, ", ", microbatches, " microbatches"));
      setup.zero = zero;
      setup.microbatches = microbatches;
      const RunResult got = CompileAndRun(BuildKeys(c.form.keys), setup, inputs);
      ExpectHowItRan(c, microbatches, got.lowered);
      EXPECT_EQ(CompareSteps(got.losses, want.losses, half ? 1e-2 : 1e-5), "");
      EXPECT_EQ(CompareSteps(got.grad_norms, want.grad_norms, half ? 2e-2 : c.norms), "");
      // In halves single elements of later steps say nothing.
      if (half) continue;
      ExpectTensors(got.outputs, want.outputs, c.tensors);
      ExpectTensors(got.states, want.states, c.tensors);
    }
  }
}

std::string NameOf(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  std::string name = StrCat(c.form.name, "_", c.spec, "_", c.mesh, "_", c.more);
  if (c.zero.size() == 1 && c.zero[0] > 0) name += StrCat("_zero", c.zero[0]);
  if (c.microbatches.size() == 1 && c.microbatches[0] > 1) {
    name += StrCat("_", c.microbatches[0], "_microbatches");
  }
  if (c.virtual_stages > 1) name += StrCat("_", c.virtual_stages, "_virtual");
  return TestName(name);
}

Case AllZero(Form form, const char* spec, const char* mesh, const char* more) {
  return {.form = form, .spec = spec, .mesh = mesh, .more = more, .zero = {1, 2, 3}};
}

INSTANTIATE_TEST_SUITE_P(
    Zero, TrainsAlike,
    ::testing::Values(
        AllZero(kTied, "dp", "dp=2", ""), AllZero(kTied, "dp", "dp=4", ""),
        AllZero(kTied, "dp", "dp=3", ""), AllZero(kTied, "dp", "dp=3", "momentum_sgd"),
        AllZero(kTied, "dp", "dp=2", "sgd_unclipped"), AllZero(kTied, "dp", "dp=2", "masked"),
        AllZero(kTied, "dp", "dp=3", "selective"), AllZero(kTied, "dp", "dp=3", "full"),
        AllZero(kTied, "dp", "dp=3", "bf16"), AllZero(kTied, "megatron", "dp=2,tp=2", ""),
        AllZero(kTied, "megatron", "tp=2,dp=3", ""),
        AllZero(kTied, "megatron", "dp=3,tp=2", "full_bf16"),
        AllZero(kTied, "megatron_sp", "dp=3,tp=2", ""),
        AllZero(kTied, "megatron_sp", "dp=2,tp=2", "full"), AllZero(kLlama, "dp", "dp=3", ""),
        AllZero(kLlama, "megatron", "dp=2,tp=4", ""),
        AllZero(kLlama, "megatron_sp", "dp=2,tp=2", "")),
    NameOf);

// Two pieces of the batch, and four: then three examples in each. They differ in how many of their
// labels count.
Case InPieces(Form form, const char* spec, const char* mesh, const char* more, int zero = 0) {
  return {.form = form,
          .spec = spec,
          .mesh = mesh,
          .more = more,
          .zero = {zero},
          .microbatches = {2, 4},
          .steps = 3,
          .norms = 1e-5,
          .tensors = 1e-5,
          .ignored = 20};
}

INSTANTIATE_TEST_SUITE_P(
    Microbatches, TrainsAlike,
    ::testing::Values(
        InPieces(kTied, "serial", "", ""), InPieces(kTied, "serial", "", "sgd_masked"),
        InPieces(kTied, "serial", "", "full"), InPieces(kTied, "serial", "", "selective_chunk"),
        InPieces(kTied, "serial", "", "full_chunk"), InPieces(kTied, "serial", "", "f16"),
        InPieces(kTied, "serial", "", "bf16_selective"), InPieces(kTied, "megatron", "tp=2", ""),
        InPieces(kTied, "dp", "dp=2", ""), InPieces(kTied, "dp", "dp=3", "masked"),
        InPieces(kTied, "dp", "dp=2", "", 1), InPieces(kTied, "dp", "dp=3", "", 2),
        InPieces(kTied, "dp", "dp=2", "", 3), InPieces(kTied, "dp", "dp=3", "full", 3),
        InPieces(kTied, "dp", "dp=3", "bf16", 3), InPieces(kTied, "megatron", "dp=2,tp=2", ""),
        InPieces(kTied, "megatron", "tp=2,dp=2", "full"),
        InPieces(kTied, "megatron", "dp=3,tp=2", "bf16", 1),
        InPieces(kTied, "megatron_sp", "dp=2,tp=2", ""),
        InPieces(kTied, "megatron_sp", "dp=2,tp=2", "full", 3),
        InPieces(kLlama, "serial", "", "chunk"), InPieces(kLlama, "dp", "dp=2", "", 3),
        InPieces(kLlama, "megatron", "tp=4", ""),
        InPieces(kLlama, "megatron", "dp=2,tp=4", "selective"),
        InPieces(kLlama, "megatron_sp", "dp=2,tp=2", "")),
    NameOf);

Case InStages(Form form, const char* spec, const char* mesh, const char* more, int zero = 0,
              int microbatches = 1, int virtual_stages = 1) {
  return {.form = form,
          .spec = spec,
          .mesh = mesh,
          .more = more,
          .zero = {zero},
          .microbatches = {microbatches},
          .virtual_stages = virtual_stages,
          .steps = 5};
}

INSTANTIATE_TEST_SUITE_P(
    Pipelines, TrainsAlike,
    ::testing::Values(InStages(kDeepTied, "megatron", "pp=2", ""),
                      InStages(kDeepTied, "megatron", "pp=4", ""),
                      InStages(kDeepTied, "megatron", "pp=3", ""),
                      InStages(kDeepTied, "megatron", "pp=2,tp=2", ""),
                      InStages(kDeepTied, "megatron", "pp=2,dp=2", ""),
                      InStages(kDeepTied, "megatron", "pp=2,dp=2,tp=2", ""),
                      InStages(kDeepTied, "megatron", "dp=2,pp=2", "masked"),
                      InStages(kDeepTied, "megatron", "tp=2,pp=2", "full"),
                      InStages(kDeepTied, "megatron", "pp=2,dp=2", "momentum_sgd"),
                      InStages(kDeepTied, "megatron", "pp=3", "sgd_unclipped"),
                      InStages(kDeepTied, "megatron", "pp=2", "selective"),
                      InStages(kDeepTied, "megatron", "pp=2,tp=2", "bf16"),
                      InStages(kDeepTied, "megatron", "pp=2,dp=2,tp=2", "bf16", 1),
                      InStages(kDeepTied, "megatron", "pp=2,dp=2", "", 1),
                      InStages(kDeepTied, "megatron", "pp=2,dp=2", "", 3),
                      InStages(kDeepTied, "megatron_sp", "pp=2,tp=2", "full"),
                      InStages(kDeepUntied, "megatron", "pp=4", ""),
                      InStages(kDeepUntied, "megatron", "pp=2,dp=2,tp=2", "full", 1),
                      InStages(kDeepLlama, "megatron", "pp=4", ""),
                      InStages(kDeepLlama, "megatron", "pp=2,tp=4", "full"),
                      InStages(kDeepLlama, "megatron_sp", "pp=2,dp=2,tp=2", "", 1),
                      InStages(kDeepTied, "megatron", "pp=2", "", 0, 2),
                      InStages(kDeepTied, "megatron", "pp=2", "", 0, 4),
                      InStages(kDeepTied, "megatron", "pp=4", "masked", 0, 4),
                      InStages(kDeepTied, "megatron", "pp=4", "full", 0, 2),
                      InStages(kDeepTied, "megatron", "pp=2,dp=2", "", 1, 2),
                      InStages(kDeepTied, "megatron", "pp=2,dp=2,tp=2", "full_bf16", 1, 2),
                      InStages(kDeepUntied, "megatron", "pp=2,dp=2,tp=2", "", 0, 2),
                      InStages(kDeepUntied, "megatron", "pp=3", "selective", 0, 4),
                      InStages(kDeepLlama, "megatron_sp", "pp=2,tp=2", "full", 0, 2),
                      InStages(kDeepLlama, "megatron", "pp=4,tp=2", "", 0, 4),
                      InStages(kDeepTied, "megatron", "pp=2", "", 0, 1, 2),
                      InStages(kDeepTied, "megatron", "pp=2", "", 0, 4, 2),
                      InStages(kDeepTied, "megatron", "pp=2,dp=2,tp=2", "full_bf16", 1, 2, 2),
                      InStages(kDeepUntied, "megatron", "pp=2,tp=2", "masked", 0, 4, 2),
                      InStages(kDeepLlama, "megatron_sp", "pp=2,dp=2,tp=2", "selective", 3, 2, 2)),
    NameOf);

}  // namespace
}  // namespace shardc::testing
