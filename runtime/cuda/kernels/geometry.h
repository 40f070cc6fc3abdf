// Launch geometry of the kernels: plain host functions, tested without a GPU.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "ir/row_major.h"

namespace shardc::cuda {

inline constexpr int kMaxDims = 8;
// The most threads of a block of ElementsKernel and of RowsKernel: the compiler keeps their
// registers within what so many threads may have.
inline constexpr int kElementThreads = 256;
inline constexpr int kRowThreads = 512;
inline constexpr int64_t kMaxBlocks = (int64_t{1} << 31) - 1;

struct Grid {
  int64_t blocks = 0;
  int threads = 32;
  bool operator==(const Grid&) const = default;
};

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// For ElementsKernel: at most 2^16 blocks, which stride over the rest.
Grid ElementGrid(int64_t items);
// For RowsKernel: a block of whole warps per row, about four elements a thread, at most 512
// threads.
Grid RowGrid(int64_t rows, int64_t cols);

// A box of elements walked by several operands, each with its strides; dims that all walk alike are
// merged. dims[rank - 1] is the innermost.
struct Walk {
  int rank = 0;
  int64_t dims[kMaxDims] = {};
  int64_t strides[4][kMaxDims] = {};
  bool small = true;  // fewer than 2^32 elements: indices fit in 32 bits, whose division is fast
  int64_t size() const {
    int64_t n = 1;
    for (int d = 0; d < rank; ++d) n *= dims[d];
    return n;
  }
};
// Nothing when more than kMaxDims dims are left. Dims of size 1 are dropped.
std::optional<Walk> MakeWalk(const std::vector<int64_t>& dims,
                             const std::vector<std::vector<int64_t>>& strides);

// How a reduction of `reduced` elements for each of `kept` results is spread: `chunks` partial
// results each, of `chunk` elements (the last has fewer).
struct ReducePlan {
  int64_t chunks = 1, chunk = 0;
  bool columns = false;  // a thread per result; else a block
};
// `inner_kept`: neighbours in memory belong to different results.
ReducePlan PlanReduce(int64_t kept, int64_t reduced, bool inner_kept);

// Blocks that share the rows of a matrix among them, each with sums of its own for the columns:
// about eight for each multiprocessor of a large GPU. `wide`: two, where a block takes a
// multiprocessor's registers or shared memory for itself, and its sums are as long as many rows.
int64_t RowBlocks(int64_t rows, bool wide);
// Threads of a block whose threads have at most so many columns each: whole warps.
int RowThreads(int64_t cols, int64_t columns_of_one);

// Blocks of kElementThreads threads that share the elements of an array for sums of all.
int64_t SumBlocks(int64_t count);

// Columns of a dense matrix [rows, cols] added up by blocks of kTileWarps warps: a block has
// `chunk` rows of 32 packs of columns, a lane one pack, a warp every kTileWarps-th row.
inline constexpr int kTileWarps = 8;
struct TilePlan {
  int64_t tiles = 1, chunks = 1, chunk = 0;
};
// `pack`: elements. Nothing where packs do not fit the rows or half of the lanes would idle.
std::optional<TilePlan> PlanTiles(int64_t rows, int64_t cols, int pack);

// The stable counting sort of embedding_grad: ids in chunks, with a counter per chunk and row.
struct CountingPlan {
  int64_t chunks = 0, chunk = 0;
  int64_t counters = 0, totals = 0, offsets = 0, order = 0, placed = 0,
          bytes = 0;  // offsets of the parts in the workspace
};
CountingPlan PlanCounting(int64_t ids, int64_t rows);
// Whether each chunk's ids are summed by themselves: else a GPU would idle while a few threads add
// long lists.
bool SumsByChunk(int64_t rows, const CountingPlan& plan);

}  // namespace shardc::cuda
