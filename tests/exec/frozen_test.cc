// Parameters that are not trained: the others get what they would get anyway.
#include <gtest/gtest.h>

#include <algorithm>

#include "frontend/gpt_config.h"
#include "specs/spec.h"
#include "tests/exec/harness.h"

namespace shardc::testing {
namespace {

constexpr const char* kModel =
    "builtin:gpt?layers=2,hidden=24,heads=4,kv_heads=2,vocab=41,seq=6,batch=4,positions=rope,"
    "activation=swiglu,dtype=f64";

RunResult Trained(RunSetup setup, const std::vector<std::string>& freeze,
                  const std::vector<std::string>& train_only) {
  const GptConfig config = ParseBuiltin(kModel);
  Tensors inputs = RandomTokens(BuildGpt(config), 3);
  setup.pipeline.freeze = freeze;
  setup.pipeline.train_only = train_only;
  return CompileAndRun(BuildGpt(config), setup, inputs);
}

struct Choice {
  std::vector<std::string> freeze, train_only;
  bool Frozen(const std::string& name) const {
    auto matches = [&](const auto& globs) {
      return std::any_of(globs.begin(), globs.end(),
                         [&](const std::string& glob) { return GlobMatch(glob, name); });
    };
    return matches(freeze) || (!train_only.empty() && !matches(train_only));
  }
};
const std::vector<Choice> kChoices = {
    {{"*.wte.*"}, {}}, {{}, {"*ln_*", "*.1.mlp.*"}}, {{"*.weight"}, {}}, {{"*.1.*"}, {"*attn*"}}};

// One step of plain descent moves a parameter by its own gradient alone.
TEST(FrozenParams, OthersMoveAsTheyDoWithoutThem) {
  RunSetup setup;
  setup.pipeline.optimizer.kind = "sgd";
  setup.pipeline.optimizer.rate.lr = 0;
  const RunResult before = Trained(setup, {}, {});
  setup.pipeline.optimizer.rate.lr = 0.5;
  const RunResult all = Trained(setup, {}, {});
  for (const Choice& choice : kChoices) {
    for (auto [spec, mesh] : {std::pair("serial", ""),
                              {"megatron", "tp=2"},
                              {"megatron", "tp=4"},
                              {"megatron_sp", "dp=2,tp=2"},
                              {"megatron", "pp=2,tp=2"}}) {
      SCOPED_TRACE(StrCat(spec, " ", mesh));
      setup.spec = spec;
      setup.mesh = mesh;
      const RunResult got = Trained(setup, choice.freeze, choice.train_only);
      int frozen = 0;
      for (const auto& [name, value] : before.states) {
        if (!name.starts_with("transformer")) continue;
        const bool is_frozen = choice.Frozen(name);
        frozen += is_frozen;
        EXPECT_EQ(got.outputs.contains("grad." + name), !is_frozen) << name;
        EXPECT_LE(WorstDifference(got.states.at(name), (is_frozen ? before : all).states.at(name)),
                  1e-12)
            << name;
      }
      EXPECT_GT(frozen, 0);
    }
  }
}

TEST(FrozenParams, ManyStepsOnEveryMesh) {
  RunSetup setup;
  setup.steps = 4;
  setup.pipeline.optimizer.kind = "adamw";
  setup.pipeline.optimizer.rate.lr = 0.01;
  setup.pipeline.optimizer.clip_norm = 0.5;
  for (const Choice& choice : kChoices) {
    RunSetup plain = setup;
    plain.session.reference_kernels = true;
    const RunResult want = Trained(plain, choice.freeze, choice.train_only);
    EXPECT_LT(want.losses.back(), want.losses.front());
    for (int zero : {0, 1, 3}) {
      for (auto [mesh, microbatches] : {std::pair("dp=2,tp=2", 0), {"dp=2", 2}, {"dp=4", 0}}) {
        SCOPED_TRACE(StrCat(mesh, " zero ", zero));
        RunSetup cut = setup;
        cut.spec = "megatron";
        cut.mesh = mesh;
        cut.zero = zero;
        cut.microbatches = microbatches;
        const RunResult got = Trained(cut, choice.freeze, choice.train_only);
        for (size_t i = 0; i < want.losses.size(); ++i) {
          EXPECT_NEAR(got.losses[i], want.losses[i], 1e-9);
          EXPECT_NEAR(got.grad_norms[i], want.grad_norms[i], 1e-8);
        }
        for (const auto& [name, value] : want.states) {
          ASSERT_TRUE(got.states.contains(name)) << name;
          EXPECT_LE(WorstDifference(got.states.at(name), value, 1e-6), 1e-6) << name;
        }
      }
    }
  }
}

// Nothing goes back beyond the last layer when that alone is trained.
TEST(FrozenParams, NoGradientGoesFurtherThanItMust) {
  RunSetup setup;
  setup.spec = "megatron";
  setup.mesh = "tp=2";
  auto count = [&](const std::vector<std::string>& train_only) {
    int64_t large = 0;
    for (const Collective& c : Trained(setup, {}, train_only).collectives) {
      large += c.elements == 4 * 6 * 24;
    }
    return large;
  };
  EXPECT_EQ(count({}), 10);
  EXPECT_EQ(count({"*.1.mlp.*"}), 6);  // backward the head's alone
}

}  // namespace
}  // namespace shardc::testing
