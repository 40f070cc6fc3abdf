// A kernel that throws on one rank while the others wait for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "ir/diagnostic.h"
#include "ir/op_def.h"
#include "ir/sharding_rule.h"
#include "ir/text.h"
#include "tests/exec/harness.h"
#include "tests/ir/thrown.h"
#include "tests/runtime/own_time.h"

namespace shardc::testing {
namespace {

using ::testing::HasSubstr;

// An op that no model has; it fails on rank 2 as a kernel with a bug would.
void RegisterFailingOp() {
  if (FindOpDef("test_fails_on_rank_2")) return;
  OpDef def;
  def.name = "test_fails_on_rank_2";
  def.elementwise = true;
  def.infer = [](const InferArgs& args) {
    return std::vector<TensorType>{TensorType(args[0].dtype, args[0].shape)};
  };
  def.rule = [](const Op& op) { return ElementwiseRule(op); };
  def.reference = [](const KernelCall& call) {
    if (call.rank == 2) throw std::out_of_range("index 7 of 4");
  };
  OpRegistry().Add(def);
}

TEST(FailingRank, IsNamedWithItsInstructionAndTheOthersLeave) {
  RegisterFailingOp();
  Graph graph = ParseGraph(
      "mesh []\n"
      "graph @g(%x: f32[8, 3]) -> (%y) {\n"
      "  %0 = test_fails_on_rank_2 %x : f32[8, 3]\n"
      "  %y = reduce_sum %0 {axes=[0], keepdims=false} : f32[3]\n"
      "}\n",
      "test");
  RunSetup setup;
  setup.spec = "input { match: \"x\" shard_spec { dims: 0 axes: \"dp\" } }\n";
  setup.mesh = "dp=4";
  setup.pipeline.loss = "none";
  const OwnTime time;
  const Diagnostic d = Thrown([&] {
    CompileAndRun(std::move(graph), setup, {{"x", HostTensor(DType::kF32, {8, 3})}});
  });
  EXPECT_EQ(d.id(), "E4006") << d.what();
  EXPECT_EQ(d.code(), ExitCode::kInternal);
  EXPECT_THAT(d.where(), HasSubstr("rank 2, instruction 0 (test_fails_on_rank_2"));
  EXPECT_EQ(d.message(), "index 7 of 4");
  // They wait in an all_reduce that never completes.
  EXPECT_LT(time.seconds(), 20);
}

}  // namespace
}  // namespace shardc::testing
