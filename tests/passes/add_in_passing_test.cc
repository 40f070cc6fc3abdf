#include "passes/add_in_passing.h"

#include <gtest/gtest.h>

#include "ir/builder.h"

namespace shardc {
namespace {

// A weight that is used very often has a sum of as many gradients, each of which is made in the
// memory of the one before.
TEST(AddsInPassing, LongSums) {
  constexpr int kTerms = 100'000;
  Graph graph;
  Value* x = graph.AddInput("x", TensorType(DType::kF32, {2, 2}));
  Builder b(graph);
  Value* first = b.Make("matmul_tn", {x, x});
  Value* sum = first;
  for (int i = 0; i < kTerms; ++i) sum = b.Add(sum, b.Make("matmul_tn", {x, x}));
  graph.NumberOps();
  const AddsInPassing adds(graph);
  const AddInPassing last = adds.Of(*sum->producer);
  EXPECT_EQ(last.f, sum->producer->operands[1]->producer);
  EXPECT_EQ(last.x, sum->producer->operands[0]);
  EXPECT_EQ(adds.Of(*first->producer).f, nullptr);
}

}  // namespace
}  // namespace shardc
