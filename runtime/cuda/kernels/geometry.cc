#include "runtime/cuda/kernels/geometry.h"

namespace shardc::cuda {

Grid ElementGrid(int64_t items) {
  return {std::min<int64_t>(CeilDiv(items, kElementThreads), 1 << 16), kElementThreads};
}

Grid RowGrid(int64_t rows, int64_t cols) {
  int threads = 32;
  while (threads < kRowThreads && threads * 4 < cols) threads *= 2;
  return {std::min<int64_t>(rows, 1 << 20), threads};
}

std::optional<Walk> MakeWalk(const std::vector<int64_t>& dims,
                             const std::vector<std::vector<int64_t>>& strides) {
  std::vector<int64_t> merged;
  std::vector<std::vector<int64_t>> walked(strides.size());
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] == 1) continue;
    bool joins = !merged.empty();
    for (size_t k = 0; k < strides.size() && joins; ++k) {
      joins = walked[k].back() == strides[k][d] * dims[d];
    }
    if (joins) {
      merged.back() *= dims[d];
    } else {
      merged.push_back(dims[d]);
    }
    for (size_t k = 0; k < strides.size(); ++k) {
      if (joins) walked[k].pop_back();
      walked[k].push_back(strides[k][d]);
    }
  }
  Walk walk;
  if (merged.size() > kMaxDims || strides.size() > 4) return std::nullopt;
  walk.rank = static_cast<int>(merged.size());
  for (size_t d = 0; d < merged.size(); ++d) {
    walk.dims[d] = merged[d];
    for (size_t k = 0; k < strides.size(); ++k) walk.strides[k][d] = walked[k][d];
  }
  walk.small = walk.size() < (int64_t{1} << 32);
  return walk;
}

ReducePlan PlanReduce(int64_t kept, int64_t reduced, bool inner_kept) {
  ReducePlan plan;
  plan.columns = inner_kept;
  // Enough work for a large GPU, none smaller than is worth a second pass.
  const int64_t wanted = inner_kept ? int64_t{1} << 17 : 2048, least = inner_kept ? 64 : 8192;
  int64_t chunks =
      std::max<int64_t>(1, std::min(wanted / std::max<int64_t>(kept, 1), CeilDiv(reduced, least)));
  plan.chunk = std::max<int64_t>(CeilDiv(reduced, chunks), 1);
  plan.chunks = std::max<int64_t>(CeilDiv(reduced, plan.chunk), 1);
  return plan;
}

int64_t RowBlocks(int64_t rows, bool wide) { return std::min<int64_t>(rows, wide ? 264 : 1024); }

int64_t SumBlocks(int64_t count) {
  return std::clamp<int64_t>(CeilDiv(count, 16 * kElementThreads), 1, 512);
}

int RowThreads(int64_t cols, int64_t columns_of_one) {
  return static_cast<int>(CeilDiv(CeilDiv(cols, columns_of_one), 32) * 32);
}

std::optional<TilePlan> PlanTiles(int64_t rows, int64_t cols, int pack) {
  if (cols % pack != 0 || cols < 16 * pack) return std::nullopt;
  TilePlan plan;
  plan.tiles = CeilDiv(cols, 32 * pack);
  // About four blocks for each multiprocessor of a large GPU; a warp has enough rows to be worth
  // another partial result.
  constexpr int64_t kWanted = 512, kLeast = 8 * kTileWarps;
  const int64_t chunks =
      std::max<int64_t>(1, std::min(kWanted / plan.tiles, CeilDiv(rows, kLeast)));
  plan.chunk = std::max<int64_t>(CeilDiv(rows, chunks), 1);
  plan.chunks = std::max<int64_t>(CeilDiv(rows, plan.chunk), 1);
  return plan;
}

bool SumsByChunk(int64_t rows, const CountingPlan& plan) {
  // 32 equal ids in a chunk, at least, on average.
  return plan.chunks > 1 && rows * 32 <= plan.chunk;
}

CountingPlan PlanCounting(int64_t ids, int64_t rows) {
  CountingPlan plan;
  plan.chunk = 1024;
  // At most 64 MiB of counters.
  while (CeilDiv(ids, plan.chunk) * rows * 4 > (int64_t{64} << 20) && plan.chunk < ids)
    plan.chunk *= 2;
  plan.chunks = std::max<int64_t>(CeilDiv(ids, plan.chunk), 1);
  auto place = [&](int64_t bytes) {
    int64_t at = plan.bytes;
    plan.bytes += CeilDiv(bytes, 256) * 256;
    return at;
  };
  plan.counters = place(plan.chunks * rows * 4);
  plan.totals = place(rows * 4);
  plan.offsets = place(rows * 4);
  plan.order = place(ids * 4);
  plan.placed = place(4);
  return plan;
}

}  // namespace shardc::cuda
