// Architectures that the importer was not written for, on the GPU against goldens computed by
// PyTorch in float64.
#include "tests/exec/strangers.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/gpu/gpu.h"

namespace shardc::testing {
namespace {

class GpuStrangers : public ::testing::TestWithParam<Stranger> {};

TEST_P(GpuStrangers, EqualTheGolden) {
  SHARDC_NEEDS_GPU();
  const std::pair<const char*, const char*> settings[] = {
      {"serial", ""}, {"megatron", "tp=3"}, {"megatron_sp", "cp=2,tp=2"}, {"ulysses", "tp=2,cp=2"}};
  for (auto [spec, mesh] : settings) {
    SCOPED_TRACE(StrCat(spec, " ", mesh));
    RunSetup setup;
    setup.spec = spec;
    setup.mesh = mesh;
    setup.session.backend = "cuda";
    setup.session.shared_device = true;
    setup.steps = 3;  // the third is a replay of a graph
    EXPECT_EQ(CompareWithGolden(GetParam(), RunStranger(GetParam(), setup)), "");
  }
}

INSTANTIATE_TEST_SUITE_P(All, GpuStrangers, ::testing::ValuesIn(AllStrangers()),
                         [](const auto& info) { return std::string(info.param.model); });

}  // namespace
}  // namespace shardc::testing
