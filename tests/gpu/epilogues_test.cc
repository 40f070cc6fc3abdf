// Products with epilogues on the GPU: each kind beside the separate kernels, and whole models with
// those that a trial takes. With the fake plugin, which takes every one that gives the same
// results, SHARDC_FAKE_EPILOGUES says whether they do ("right" or "wrong").
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>

#include "runtime/cuda/kernel_choices.h"
#include "tests/exec/models.h"
#include "tests/gpu/epilogue_cases.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/gpu_machine.h"
#include "tests/ir/file_testing.h"

namespace shardc::testing {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;
namespace fs = std::filesystem;

class GpuEpilogueKernels : public ::testing::TestWithParam<DType> {};

TEST_P(GpuEpilogueKernels, AgreeWithSeparateKernels) {
  SHARDC_NEEDS_GPU();
  auto* find = FromPlugin<CudaPluginEpilogues>("shardc_cuda_epilogues");
  cuda::EpilogueLibrary* library = find();
  if (!library) GTEST_SKIP() << "no epilogues are wanted here";
  GpuMachine gpu;
  for (const EpilogueCase& c : EpilogueCases(GetParam())) {
    const std::string choice = TryEpilogue(gpu, *library, c);
    std::cout << "  " << c.name << ": " << choice << "\n";
    const bool gelu =
        c.epilogue != cuda::Epilogue::kSumsOfRight && c.epilogue != cuda::Epilogue::kSumsOfLeft;
    // Whether it is slower, or refused, is cuBLASLt's to say; so is how exact its tanh is in f32.
    if (gelu && GetParam() == DType::kF32) continue;
    EXPECT_THAT(choice, AnyOf(StartsWith("1 "), StartsWith("0 refused: "), HasSubstr(", ours ")))
        << c.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, GpuEpilogueKernels,
                         ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

// What trials noted in a plan's folder, by the name of the epilogue.
std::map<std::string, std::vector<std::string>> ChoicesIn(const fs::path& folder) {
  std::ifstream in(folder / "cuda_choices.txt");
  std::stringstream text;
  text << in.rdbuf();
  const auto choices = cuda::KernelChoices::Parse(text.str());
  std::map<std::string, std::vector<std::string>> out;
  for (std::string line; std::getline(text, line);) {
    const std::string key = line.substr(0, line.find('\t'));
    std::istringstream words(key);
    std::string first, name;
    if (words >> first >> name; first == "epilogue") {
      out[name].push_back(choices.Find(key).value_or("damaged"));
    }
  }
  return out;
}

std::string Fake() {
  const char* text = std::getenv("SHARDC_FAKE_EPILOGUES");
  return text ? text : "";
}

struct Setup {
  const char *precision, *mesh;
};
class GpuEpilogues : public ::testing::TestWithParam<Setup> {
 protected:
  const TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path();
};

TEST_P(GpuEpilogues, ModelsAgreeWithTheirGoldens) {
  SHARDC_NEEDS_GPU();
  const bool bf16 = std::string(GetParam().precision) == "bf16";
  int ran = 0;
  for (const Export& e : AllExports()) {
    if (e.batches.empty() || !e.missing.empty() || e.model != "hf_gpt2" || e.float64) continue;
    // One way that PyTorch writes it is enough.
    if (ran++ > 0) continue;
    SCOPED_TRACE(e.path());
    RunSetup setup;
    setup.spec = "megatron_hf_gpt2";
    setup.mesh = GetParam().mesh;
    setup.pipeline.loss = e.loss;
    setup.pipeline.precision.compute = GetParam().precision;
    setup.session.backend = "cuda";
    setup.session.shared_device = true;
    setup.session.cache_folder = folder_;
    setup.steps = 3;  // the third is a replay
    RunResult first = CompileAndRun(ImportFor(e, e.batches[0]), setup, InputsFor(e, e.batches[0]));
    EXPECT_EQ(bf16 ? CompareHalvesWithGolden(e, e.batches[0], first)
                   : CompareWithGolden(e, e.batches[0], first, 1e-4),
              "");
    const auto choices = ChoicesIn(folder_);
    for (const char* name : {"gelu_aux", bf16 ? "gelu_grad" : "gelu_grad_sums", "sums_of_right"}) {
      ASSERT_TRUE(choices.contains(name)) << name;
      if (Fake() == "right") {
        EXPECT_THAT(choices.at(name), Each(StartsWith("1 "))) << name;
      } else if (Fake() == "wrong") {
        EXPECT_THAT(choices.at(name), Each(StartsWith("0 differs"))) << name;
      }
    }
    // What was chosen is what later runs do.
    RunResult again = CompileAndRun(ImportFor(e, e.batches[0]), setup, InputsFor(e, e.batches[0]));
    EXPECT_TRUE(first.outputs == again.outputs);
    EXPECT_EQ(ChoicesIn(folder_), choices);
  }
  EXPECT_GT(ran, 0);
}

INSTANTIATE_TEST_SUITE_P(Meshes, GpuEpilogues,
                         ::testing::Values(Setup{"f32", "tp=1"}, Setup{"f32", "tp=2"},
                                           Setup{"bf16", "tp=1"}, Setup{"bf16", "tp=2"}));

}  // namespace
}  // namespace shardc::testing
