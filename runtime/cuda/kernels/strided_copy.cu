#include "ir/host_tensor.h"
#include "runtime/cuda/kernels/strided_copy.h"
#include "runtime/cuda/kernels/vector.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

template <typename T>
struct CopyElements {
  Walk walk;
  const T* from;
  T* to;
  __device__ void operator()(int64_t i) const {
    int64_t at[2];
    Locate(walk, i, at);
    to[at[1]] = from[at[0]];
  }
};

// A transpose of the two innermost dims by way of shared memory, so that both sides are read and
// written in rows. walk: [..., rows, cols] with cols contiguous in the result and rows in the
// operand.
constexpr int kTile = 32;
template <typename T>
struct TransposeTiles {
  Walk outer;
  const T* from;
  T* to;
  int64_t rows, cols, from_col, to_row;  // strides of cols in `from` and of rows in `to`
  int64_t row_tiles, col_tiles;
  __device__ void operator()(int64_t block) const {
    __shared__ T tile[kTile][kTile + 1];
    int64_t at[2];
    int64_t r0 = block % row_tiles * kTile, rest = block / row_tiles;
    int64_t c0 = rest % col_tiles * kTile;
    Locate(outer, rest / col_tiles, at);
    const int x = static_cast<int>(threadIdx.x) % kTile, y = static_cast<int>(threadIdx.x) / kTile;
    const int step = static_cast<int>(blockDim.x) / kTile;
    for (int j = y; j < kTile; j += step) {
      if (c0 + j < cols && r0 + x < rows) tile[j][x] = from[at[0] + (c0 + j) * from_col + r0 + x];
    }
    __syncthreads();
    for (int j = y; j < kTile; j += step) {
      if (r0 + j < rows && c0 + x < cols) to[at[1] + (r0 + j) * to_row + c0 + x] = tile[x][j];
    }
    __syncthreads();
  }
};

// Where the dim that is contiguous in the operand is another than in the result, and both are long
// enough for tiles. Else null.
template <typename T>
KernelPtr MakeTiles(const T* from, T* to, const Walk& walk) {
  const int last = walk.rank - 1;
  if (walk.rank < 2 || walk.strides[1][last] != 1 || walk.strides[0][last] == 1) return nullptr;
  int row = -1;
  for (int d = 0; d < last; ++d) {
    if (walk.strides[0][d] == 1 && walk.dims[d] >= 8 && walk.dims[last] >= 8) row = d;
  }
  if (row < 0) return nullptr;
  TransposeTiles<T> f{
      {}, from, to, walk.dims[row], walk.dims[last], walk.strides[0][last], walk.strides[1][row],
      0,  0};
  f.row_tiles = CeilDiv(f.rows, kTile);
  f.col_tiles = CeilDiv(f.cols, kTile);
  for (int d = 0; d < last; ++d) {
    if (d == row) continue;
    f.outer.dims[f.outer.rank] = walk.dims[d];
    for (int k = 0; k < 2; ++k) f.outer.strides[k][f.outer.rank] = walk.strides[k][d];
    ++f.outer.rank;
  }
  int64_t tiles = f.outer.size() * f.row_tiles * f.col_tiles,
          blocks = std::min<int64_t>(tiles, 1 << 20);
  return MakeKernel([f, tiles, blocks](const Launch& launch) {
    LaunchKernel(launch, RowsKernel<TransposeTiles<T>>, blocks, 256, 0, f, tiles);
  });
}

template <typename T>
KernelPtr Make(const StridedCopy& c, const Walk& walk) {
  int64_t n = walk.size();
  const T* from = reinterpret_cast<const T*>(c.from);
  T* to = reinterpret_cast<T*>(c.to);
  if constexpr (!std::is_same_v<T, Bytes16>) {  // units are contiguous in both
    if (KernelPtr tiles = MakeTiles(from, to, walk)) return tiles;
  }
  CopyElements<T> f{walk, from, to};
  return MakeKernel([f, n, grid = ElementGrid(n)](const Launch& launch) {
    LaunchKernel(launch, ElementsKernel<CopyElements<T>>, grid.blocks, grid.threads, 0, f, n);
  });
}

// The widest unit that divides all strides, the innermost run and both addresses: the walk is then
// over such units.
int Unit(const StridedCopy& c, const Walk& walk) {
  const int last = walk.rank - 1;
  if (walk.rank == 0 || walk.strides[0][last] != 1 || walk.strides[1][last] != 1) return 1;
  for (int unit = 16 / c.element; unit > 1; unit /= 2) {
    bool fits = walk.dims[last] % unit == 0 &&
                Aligned(c.from, static_cast<size_t>(unit * c.element)) &&
                Aligned(c.to, static_cast<size_t>(unit * c.element));
    for (int d = 0; d < last; ++d)
      fits = fits && walk.strides[0][d] % unit == 0 && walk.strides[1][d] % unit == 0;
    if (fits) return unit;
  }
  return 1;
}

template <typename T>
struct FillElements {
  T* to;
  T value;
  __device__ void operator()(int64_t i) const { to[i] = value; }
};

}  // namespace

KernelPtr MakeStridedCopy(const StridedCopy& c) {
  if (NumElements(c.dims) == 0) return NoWork();
  auto found = MakeWalk(c.dims, {c.from_strides, c.to_strides});
  if (!found) return nullptr;
  Walk walk = *found;
  if (walk.rank == 0) {
    walk.rank = 1;
    walk.dims[0] = walk.strides[0][0] = walk.strides[1][0] = 1;
  }
  int unit = Unit(c, walk), last = walk.rank - 1;
  walk.dims[last] /= unit;
  for (int d = 0; d < last; ++d) {
    walk.strides[0][d] /= unit;
    walk.strides[1][d] /= unit;
  }
  switch (unit * c.element) {
    case 1:
      return Make<uint8_t>(c, walk);
    case 2:
      return Make<uint16_t>(c, walk);
    case 4:
      return Make<uint32_t>(c, walk);
    case 8:
      return Make<uint64_t>(c, walk);
    default:
      return Make<Bytes16>(c, walk);
  }
}

KernelPtr MakeStretchCopy(std::byte* to, const std::byte* from, int64_t bytes) {
  return to == from ? NoWork() : MakeStridedCopy({from, to, {bytes}, {1}, {1}, 1});
}

KernelPtr MakeStridedCopies(const std::vector<StridedCopy>& copies) {
  auto parts = std::make_shared<std::vector<KernelPtr>>();
  for (const StridedCopy& c : copies) {
    parts->push_back(MakeStridedCopy(c));
    if (!parts->back()) return nullptr;
  }
  return MakeKernel([parts](const Launch& launch) {
    for (const KernelPtr& part : *parts) part->Enqueue(launch);
  });
}

KernelPtr MakeFill(std::byte* to, int64_t elements, DType dtype, double value) {
  HostTensor bits(dtype, {1});
  bits.SetDouble(0, value);
  return DispatchSize(dtype, [&](auto t) {
    using F = FillElements<decltype(t)>;
    F f{reinterpret_cast<decltype(t)*>(to), {}};
    std::memcpy(&f.value, bits.raw(), sizeof(t));
    return MakeKernel([f, elements, grid = ElementGrid(elements)](const Launch& launch) {
      LaunchKernel(launch, ElementsKernel<F>, grid.blocks, grid.threads, 0, f, elements);
    });
  });
}

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
