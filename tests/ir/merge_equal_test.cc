#include "ir/merge_equal.h"

#include <gtest/gtest.h>

#include "ir/builder.h"
#include "tests/ir/cpu_time.h"

namespace shardc::testing {
namespace {

// As the steps of a scan are cut from what it scans.
TEST(MergeEqual, VeryManyPiecesOfOneValue) {
  constexpr int64_t kPieces = 40000;
  Graph graph;
  Builder b(graph);
  Value* x = graph.AddInput("x", TensorType(DType::kF32, {kPieces}));
  for (int64_t i = 0; i < kPieces; ++i)
    graph.outputs.push_back({std::to_string(i), b.Slice(x, 0, i, i + 1)});
  Value* again = b.Slice(x, 0, 7, 8);
  graph.outputs.push_back({"again", again});
  const double start = CpuSeconds();
  EXPECT_TRUE(MergeEqual(graph));
  EXPECT_LT(CpuSeconds() - start, 2);
  EXPECT_EQ(graph.num_ops(), static_cast<size_t>(kPieces));
  EXPECT_EQ(graph.FindOutput("again"), graph.FindOutput("7"));
}

}  // namespace
}  // namespace shardc::testing
