// Every export of every model, on many meshes and specs, against the float64 goldens.
#include "tests/exec/models.h"

#include <gtest/gtest.h>

#include "ir/diagnostic.h"

namespace shardc::testing {
namespace {

// Cuts what nobody would: rows where columns are usual, hidden-cut embeddings, norm inputs.
constexpr char kOddSpec[] = R"(
mesh { axis { name: "tp" } }
param { role: QKV part: WEIGHT             shard_spec { dims: 0 axes: "tp" } may_match_nothing: true }
param { role: MLP_UP part: WEIGHT          shard_spec { dims: 0 axes: "tp" } may_match_nothing: true }
param { role: MLP_GATE part: WEIGHT        shard_spec { dims: 0 axes: "tp" } may_match_nothing: true }
param { role: MLP_DOWN part: WEIGHT        shard_spec { dims: 1 axes: "tp" } may_match_nothing: true }
param { role: ATTENTION_OUT part: WEIGHT   shard_spec { dims: 1 axes: "tp" } may_match_nothing: true }
param { role: TOKEN_EMBEDDING shard_spec { dims: 1 axes: "tp" } may_match_nothing: true }
param { role: POSITION_EMBEDDING shard_spec { dims: -1 axes: "tp" } may_match_nothing: true }
param { role: NORM            shard_spec { dims: 0 axes: "tp" } may_match_nothing: true }
)";

struct Case {
  Export e;
  std::string batch;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.e.path() << " " << c.batch; }

struct Setting {
  const char* spec;
  const char* mesh;
  bool may_refuse;  // dims that do not divide: right or refused, never wrong
};

const Setting kSettings[] = {
    {"serial", "", false},
    {"megatron", "tp=1", false},
    {"megatron", "tp=2", false},
    {"megatron", "tp=4", false},
    {"megatron", "tp=3", true},
    {"megatron", "tp=5", true},
    {"megatron", "tp=8", true},
    {"dp", "dp=2", true},
    {"megatron", "dp=2,tp=2", true},
    {kOddSpec, "tp=2", false},
    {kOddSpec, "tp=3", true},
    {"megatron_sp", "tp=4", false},
    {"megatron_sp", "dp=2,tp=3", true},
    {"megatron", "cp=3", false},
    {"megatron_sp", "cp=2,tp=2", false},
    {"ulysses", "cp=3", false},
    {"megatron_sp", "tp=2,cp=2", true},
    {"ulysses", "cp=2,tp=2", true},
};

class Models : public ::testing::TestWithParam<Case> {};

TEST_P(Models, EqualsTheGoldenOnEveryMesh) {
  const auto& [e, batch] = GetParam();
  Tensors inputs = InputsFor(e, batch);
  double tolerance = e.float64 ? 1e-10 : 1e-4;
  std::vector<Setting> settings(std::begin(kSettings), std::end(kSettings));
  if (e.model.starts_with("hf_gpt2") && e.name.starts_with("torchscript")) {
    settings.push_back({"colotensor_tutorial", "tp=2", false});
    settings.push_back({"colotensor_tutorial", "tp=4", false});
    settings.push_back({"megatron_hf_gpt2", "tp=2", false});
  }
  for (const Setting& s : settings) {
    SCOPED_TRACE(StrCat(s.spec, " ", s.mesh));
    RunSetup setup;
    setup.spec = s.spec;
    setup.mesh = s.mesh;
    setup.pipeline.loss = e.loss;
    try {
      RunResult result = CompileAndRun(ImportFor(e, batch), setup, inputs);
      double worst = 0;
      EXPECT_EQ(CompareWithGolden(e, batch, result, tolerance, &worst), "");
    } catch (const Diagnostic& d) {
      if (!s.may_refuse || d.code() != ExitCode::kBadSpec) {
        ADD_FAILURE() << d.what();
      }
    }
  }
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const Export& e : AllExports()) {
    for (const std::string& batch : e.batches) cases.push_back({e, batch});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, Models, ::testing::ValuesIn(Cases()), [](const auto& info) {
  return info.param.e.model + "_" + info.param.e.name + "_" + info.param.batch;
});

}  // namespace
}  // namespace shardc::testing
