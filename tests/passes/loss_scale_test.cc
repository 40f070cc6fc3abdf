#include "passes/loss_scale.h"

#include <gtest/gtest.h>

#include "passes/accumulate.h"
#include "passes/loss.h"
#include "tests/ir/thrown.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

constexpr const char* kLogits = R"(graph @g(%x: f32[2, 4, 8]) -> (logits: %0) {
  %0 = neg %x : f32[2, 4, 8]
})";

// What the mean divides by, and no other number: were only one label to count, gradients scaled by
// the number of all would leave the range of f16.
TEST(LossScale, IsWhatTheMeanDividesBy) {
  for (const char* kind : {"lm", "ce", "masked_lm"}) {
    Graph graph = ParseAndVerify(kLogits);
    Value* loss = AttachLoss(graph, kind);
    const Value* scale = LossScale(graph, kind, loss, false);
    ASSERT_NE(scale, nullptr);
    const Op *min = scale->producer, *max = min->operands[0]->producer;
    EXPECT_EQ(min->name(), "min");
    EXPECT_EQ(max->name(), "max");
    EXPECT_EQ(max->operands[0], loss->producer->operands[1]);
    EXPECT_EQ(graph.FindOutput("loss_scale"), nullptr);
  }
  Graph graph = ParseAndVerify(kLogits);
  EXPECT_EQ(LossScale(graph, "dot", AttachLoss(graph, "dot"), false), nullptr);
}

// The last batch's number of labels, times the batches.
TEST(LossScale, OfAMeanOverBatches) {
  Graph graph = ParseAndVerify(kLogits);
  const Value* loss =
      AccumulateBatches(graph, {.count = 3, .where = "--accumulate"}, AttachLoss(graph, "ce"));
  const Value* scale = LossScale(graph, "ce", loss, false);
  ASSERT_NE(scale, nullptr);
  const Op* weight = scale->producer->operands[0]->producer->operands[0]->producer;
  EXPECT_EQ(weight->name(), "mul");
  EXPECT_EQ(weight->operands[0], loss->producer->operands[1]);
  EXPECT_EQ(weight->operands[1]->producer->microbatch, 2);
}

TEST(LossScale, IsTimesAStateWhereAnOptimizerReadsTheGradients) {
  Graph graph = ParseAndVerify(kLogits);
  Value* loss = AttachLoss(graph, "dot");
  Value* scale = LossScale(graph, "dot", loss, true);
  EXPECT_EQ(graph.FindOutput("loss_scale"), scale);
  Builder b(graph);
  FollowOverflows(b, graph.AddInput("finite", TensorType(DType::kBool, {})), 5);
  CheckGraph(graph, R"(
    CHECK: loss_scale: %5)
    CHECK: %3 = constant {value=tensor<f32[]: 32768>
    CHECK-NEXT: %4 = state "optimizer.loss_scale" {dtype="f32", init=1.0, shape=[]
    CHECK-NEXT: %5 = mul %3, %4
    CHECK-NEXT: %6 = state "optimizer.finite_steps" {dtype="i64", init=0.0, shape=[], phase="backward"
    CHECK: %8 = add %6, %7
    CHECK-NEXT: %9 = constant {value=tensor<i64[]: 5>
    CHECK-NEXT: %10 = greater_equal %8, %9
    CHECK: %12 = mul %4, %11
    CHECK: %14 = min %12, %13
    CHECK-NEXT: %15 = where %10, %14, %4
    CHECK: %17 = mul %4, %16
    CHECK-NEXT: %18 = where %finite, %15, %17
    CHECK-NEXT: update "optimizer.loss_scale" %18
    CHECK-NEXT: %19 = constant {value=tensor<i64[]: 0>
    CHECK-NEXT: %20 = where %10, %19, %8
    CHECK-NEXT: %21 = where %finite, %20, %19
    CHECK-NEXT: update "optimizer.finite_steps" %21)");
}

TEST(LossScale, WithoutAStateNothingFollows) {
  Graph graph = ParseAndVerify(kLogits);
  Builder b(graph);
  FollowOverflows(b, nullptr, 5);
  CheckGraph(graph, "CHECK-NOT: update");
  b.Param("optimizer.loss_scale", DType::kF32, {});
  FollowOverflows(b, nullptr, 5);
  CheckGraph(graph, "CHECK-NOT: update");
}

TEST(LossScale, TheModelMayNotHaveItsOutput) {
  ExpectThrown(
      [] {
        Graph graph = ParseAndVerify("graph @g(%x: f32[2]) -> (loss_scale: %x) {\n}");
        LossScale(graph, "dot", AttachLoss(graph, "dot"), true);
      },
      "E1603", "loss_scale");
}

}  // namespace
}  // namespace shardc::testing
