// Launch geometry: everything is covered once, within the limits of CUDA.
#include <gtest/gtest.h>

#include <numeric>

#include "runtime/cuda/kernels/geometry.h"
#include "runtime/cuda/kernels/matmul_plan.h"

namespace shardc::cuda {
namespace {

TEST(CudaGeometry, GridsAreWithinLimits) {
  for (int64_t n :
       {int64_t{0}, int64_t{1}, int64_t{255}, int64_t{257}, int64_t{1} << 24, int64_t{1} << 40}) {
    Grid g = ElementGrid(n);
    EXPECT_LE(g.blocks, kMaxBlocks);
    EXPECT_EQ(g.blocks == 0, n == 0);
    EXPECT_EQ(g.threads % 32, 0);
    // The last block has something to do.
    EXPECT_TRUE(n == 0 || (g.blocks - 1) * g.threads < n);
    for (int64_t cols : {int64_t{1}, int64_t{33}, int64_t{768}, int64_t{50257}}) {
      Grid r = RowGrid(n, cols);
      EXPECT_LE(r.blocks, std::min(n, kMaxBlocks));
      EXPECT_TRUE(r.threads % 32 == 0 && r.threads >= 32 && r.threads <= kRowThreads);
      EXPECT_EQ(r.blocks == 0, n == 0);
    }
  }
}

TEST(CudaGeometry, BlocksThatShareRowsHaveSome) {
  for (bool wide : {false, true}) {
    EXPECT_EQ(RowBlocks(0, wide), 0);
    EXPECT_EQ(RowBlocks(7, wide), 7);
    // What a block's sums take must not outweigh its rows.
    EXPECT_LE(RowBlocks(1 << 20, wide), wide ? 300 : 1024);
  }
  for (int64_t cols : {1, 31, 33, 768, 16384}) {
    const int threads = RowThreads(cols, 8);
    EXPECT_EQ(threads % 32, 0);
    EXPECT_GE(threads * 8, cols);
    EXPECT_LT((threads - 32) * 8, cols);
  }
  EXPECT_EQ(SumBlocks(0), 1);
  for (int64_t n : {int64_t{1}, int64_t{5000}, int64_t{1} << 40}) {
    EXPECT_GE(SumBlocks(n), 1);
    EXPECT_LE((SumBlocks(n) - 1) * kElementThreads, n);
  }
}

TEST(CudaGeometry, WalksMergeDimsAndVisitAll) {
  // [2, 3, 4, 5] contiguous is one dim; with a stretched operand it is as many as that needs.
  std::vector<int64_t> dims = {2, 3, 4, 5}, dense = DenseStrides(dims);
  EXPECT_EQ(MakeWalk(dims, {dense, dense})->rank, 1);
  auto walk = MakeWalk(dims, {dense, BroadcastStrides({3, 1, 5}, dims)});
  ASSERT_TRUE(walk);
  EXPECT_EQ(walk->rank, 4);
  EXPECT_EQ(MakeWalk(dims, {dense, BroadcastStrides({4, 5}, dims)})->rank, 2);
  EXPECT_EQ(MakeWalk({1, 1}, {{1, 1}})->rank, 0);
  // Offsets of the merged walk are those of the whole box, in order.
  auto two = *MakeWalk(dims, {dense, BroadcastStrides({4, 5}, dims)});
  for (int64_t i = 0; i < 120; ++i) {
    int64_t rest = i, at[2] = {0, 0};
    for (int d = two.rank - 1; d >= 0; --d) {
      for (int k = 0; k < 2; ++k) at[k] += rest % two.dims[d] * two.strides[k][d];
      rest /= two.dims[d];
    }
    EXPECT_EQ(at[0], i);
    EXPECT_EQ(at[1], i % 20);
  }
  std::vector<int64_t> nine(9, 2), odd(9);
  for (size_t d = 0; d < 9; ++d) odd[d] = d % 2 ? 0 : 1;
  EXPECT_FALSE(MakeWalk(nine, {DenseStrides(nine), odd}));
}

TEST(CudaGeometry, ReductionChunksCoverOnce) {
  for (int64_t kept : {int64_t{1}, int64_t{7}, int64_t{50257}}) {
    for (int64_t reduced :
         {int64_t{0}, int64_t{1}, int64_t{1000}, int64_t{65537}, int64_t{1} << 30}) {
      for (bool inner : {false, true}) {
        ReducePlan p = PlanReduce(kept, reduced, inner);
        EXPECT_GE(p.chunks, 1);
        EXPECT_GE(p.chunks * p.chunk, reduced);
        EXPECT_TRUE(reduced == 0 || (p.chunks - 1) * p.chunk < reduced) << "an empty chunk";
        EXPECT_LE(p.chunks * kept, std::max<int64_t>(kept, int64_t{1} << 17));
      }
    }
  }
}

TEST(CudaGeometry, TilesCoverOnce) {
  EXPECT_FALSE(PlanTiles(100, 63, 4)) << "packs across rows";
  EXPECT_FALSE(PlanTiles(100, 60, 4)) << "mostly idle lanes";
  for (int64_t cols : {int64_t{64}, int64_t{768}, int64_t{1} << 22}) {
    for (int64_t rows : {int64_t{0}, int64_t{1}, int64_t{1000}, int64_t{65536}, int64_t{1} << 30}) {
      auto p = PlanTiles(rows, cols, 4);
      ASSERT_TRUE(p);
      EXPECT_GE(p->tiles * 128, cols);
      EXPECT_LT((p->tiles - 1) * 128, cols);
      EXPECT_GE(p->chunks * p->chunk, rows);
      EXPECT_TRUE(rows == 0 || (p->chunks - 1) * p->chunk < rows) << "an empty chunk";
      EXPECT_LE(p->tiles * p->chunks, std::max<int64_t>(512, p->tiles));
    }
  }
  // A bias gradient of GPT-2 at 64 x 1024 tokens fills a large GPU.
  EXPECT_GE(PlanTiles(65536, 768, 4)->tiles * PlanTiles(65536, 768, 4)->chunks, 4 * 120);
}

TEST(CudaGeometry, CountingPartsDoNotOverlap) {
  for (int64_t ids : {int64_t{1}, int64_t{5000}, int64_t{1} << 20}) {
    for (int64_t rows : {int64_t{1}, int64_t{50257}}) {
      CountingPlan p = PlanCounting(ids, rows);
      EXPECT_GE(p.chunks * p.chunk, ids);
      EXPECT_GE(p.totals - p.counters, p.chunks * rows * 4);
      EXPECT_GE(p.offsets - p.totals, rows * 4);
      EXPECT_GE(p.order - p.offsets, rows * 4);
      EXPECT_GE(p.placed - p.order, ids * 4);
      EXPECT_GE(p.bytes - p.order, ids * 4);
      EXPECT_EQ((p.counters | p.totals | p.offsets | p.order | p.placed) % 256, 0);
    }
  }
}

TEST(CudaGeometry, ChunksAreSummedByThemselvesWhereRowsAreFew) {
  EXPECT_TRUE(SumsByChunk(2, PlanCounting(65536, 2)));  // BERT's token types
  EXPECT_FALSE(SumsByChunk(50257, PlanCounting(65536, 50257)));
  EXPECT_FALSE(SumsByChunk(2, PlanCounting(100, 2))) << "there is one chunk";
}

TEST(CudaGeometry, OddColumnsOfHalvesArePadded) {
  // dx of a vocabulary-wide product: the left operand, B, has columns of 50257.
  auto dx = PlanPadding(*PlanMatmul("matmul", {}, {8192, 50257}, {50257, 768}, {8192, 768}), 2);
  ASSERT_TRUE(dx);
  EXPECT_EQ(dx->a.ld, 0);
  EXPECT_EQ(dx->b.ld, 50264);
  EXPECT_EQ(dx->bytes, 8192 * 50264 * 2);
  auto both = PlanPadding(*PlanMatmul("matmul_nt", {}, {30, 9}, {20, 9}, {30, 20}), 2);
  ASSERT_TRUE(both);
  EXPECT_EQ(both->a.ld, 16);
  EXPECT_EQ(both->b.ld, 16);
  EXPECT_EQ(both->b.offset % 256, 0);
  EXPECT_GE(both->b.offset, 20 * 16 * 2);
  EXPECT_GE(both->bytes, both->b.offset + 30 * 16 * 2);
  EXPECT_FALSE(PlanPadding(*PlanMatmul("matmul", {}, {64, 24}, {24, 40}, {64, 40}), 2));
  EXPECT_FALSE(PlanPadding(*PlanMatmul("matmul", {}, {64, 25}, {25, 41}, {64, 41}), 4));
  EXPECT_FALSE(PlanPadding(*PlanMatmul("matmul", {}, {3, 64, 25}, {3, 25, 41}, {3, 64, 41}), 2));
}

TEST(CudaMatmulPlan, AnOddSizeOfHalvesIsSplitWhereOperandsAreAligned) {
  auto at = [](const SplitPlan& s) { return std::tuple(s.offset.a, s.offset.b, s.offset.d); };
  Attributes attrs;
  attrs.Set("length", int64_t{50264});
  auto logits = PlanSplit(*PlanMatmul("matmul_nt", attrs, {64, 24}, {50257, 24}, {64, 50264}), 2);
  ASSERT_TRUE(logits);
  EXPECT_EQ(logits->first.rows, 50256);
  EXPECT_EQ(logits->second.rows, 1);
  EXPECT_EQ(logits->second.a_cols, 1);
  EXPECT_EQ(logits->second.d_ld, 50264);
  EXPECT_EQ(at(*logits), std::tuple(50256 * 24, 0, 50256));
  EXPECT_FALSE(logits->sums);
  attrs = {};
  attrs.Set("cols", int64_t{50257});
  auto dx = PlanSplit(*PlanMatmul("matmul", attrs, {64, 50264}, {50257, 24}, {64, 24}), 2);
  ASSERT_TRUE(dx);
  EXPECT_EQ(dx->first.k, 50256);
  EXPECT_EQ(dx->first.b_rows, 50256);
  EXPECT_EQ(dx->second.a_cols, 1);
  EXPECT_EQ(at(*dx), std::tuple(50256 * 24, 50256, 0));
  EXPECT_TRUE(dx->sums);
  auto dw = PlanSplit(*PlanMatmul("matmul_tn", attrs, {64, 50264}, {64, 24}, {50257, 24}), 2);
  ASSERT_TRUE(dw);
  EXPECT_EQ(dw->first.cols, 50256);
  EXPECT_EQ(dw->second.b_rows, 1);
  EXPECT_EQ(at(*dw), std::tuple(0, 50256, 50256 * 24));

  auto matmul = [](Shape a, Shape b, Shape y) { return *PlanMatmul("matmul", {}, a, b, y); };
  EXPECT_FALSE(PlanSplit(matmul({64, 24}, {24, 40}, {64, 40}), 2));  // nothing is odd
  EXPECT_FALSE(PlanSplit(matmul({63, 24}, {24, 40}, {63, 40}), 4));  // no halves
  EXPECT_FALSE(PlanSplit(matmul({7, 24}, {24, 40}, {7, 40}), 2));    // too small
  EXPECT_FALSE(PlanSplit(matmul({64, 24}, {24, 41}, {64, 41}), 2));  // columns begin anywhere
  EXPECT_FALSE(PlanSplit(matmul({64, 23}, {23, 40}, {64, 40}), 2));
  EXPECT_FALSE(PlanSplit(*PlanMatmul("matmul_nt", {}, {64, 24}, {41, 24}, {64, 41}), 2));
  EXPECT_TRUE(PlanSplit(matmul({63, 24}, {24, 40}, {63, 40}), 2));
}

TEST(CudaGeometry, ProductsFoldRowsAndBatch) {
  auto plan = *PlanMatmul("matmul", {}, {2, 3, 5}, {5, 7}, {2, 3, 7});
  EXPECT_EQ(plan.rows, 7);
  EXPECT_EQ(plan.cols, 6);
  EXPECT_EQ(plan.batch, 1);
  plan = *PlanMatmul("matmul_nt", {}, {2, 1, 3, 5}, {4, 7, 5}, {2, 4, 3, 7});
  EXPECT_TRUE(plan.transpose_a);
  EXPECT_EQ(plan.batch * static_cast<int64_t>(plan.parts.size()), 8);
  // Every matrix of the result once.
  std::vector<int> seen(8);
  for (const auto& part : plan.parts) {
    for (int64_t i = 0; i < plan.batch; ++i) ++seen[(part.d + i * plan.d_stride) / 21];
  }
  EXPECT_EQ(seen, std::vector<int>(8, 1));
  plan = *PlanMatmul("matmul_tn", {{"batch", int64_t{1}}}, {2, 4, 3, 5}, {2, 4, 3, 7}, {2, 5, 7});
  EXPECT_EQ(plan.k, 12);
  EXPECT_EQ(plan.batch, 2);
  EXPECT_EQ(plan.d_stride, 35);
}

}  // namespace
}  // namespace shardc::cuda
