// copy, pack, unpack, local_slice, zero_padding: the CUDA forms of runtime/movements.cc.
#include "runtime/cuda/kernels/strided_copy.h"
#include "runtime/movements.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

// The stretches that two tensors, equal in all other dims, share along a dim.
struct DimCopies {
  std::vector<StridedCopy> copies;
  bool covers = false;  // they fill the destination's dim
};
DimCopies CopyRuns(const std::byte* from, const Shape& from_shape,
                   const std::vector<Run>& from_runs, std::byte* to, const Shape& to_shape,
                   const std::vector<Run>& to_runs, size_t dim, DType dtype) {
  DimCopies out;
  int64_t filled = 0;
  for (const RunMatch& m : MatchRuns(from_runs, to_runs)) {
    StridedCopy c;
    c.element = static_cast<int>(DTypeSize(dtype));
    c.from_strides = DenseStrides(from_shape);
    c.to_strides = DenseStrides(to_shape);
    c.dims = to_shape;
    c.dims[dim] = m.size;
    c.from = from + m.from * c.from_strides[dim] * c.element;
    c.to = to + m.to * c.to_strides[dim] * c.element;
    out.copies.push_back(std::move(c));
    filled += m.size;
  }
  out.covers = filled == to_shape[dim];
  return out;
}

struct Clear {
  std::byte* to;
  int64_t bytes;
};
KernelPtr ClearThenCopy(const std::vector<Clear>& clears, const std::vector<StridedCopy>& copies) {
  auto copy = MakeStridedCopies(copies);
  if (!copy) return nullptr;
  return MakeKernel([clears, copy = std::shared_ptr(std::move(copy))](const Launch& launch) {
    for (const Clear& c : clears) ClearBytes(launch, c.to, c.bytes);
    copy->Enqueue(launch);
  });
}

KernelPtr MakeCopy(const KernelRequest& r) {
  const TensorView& in = r.call.in[0];
  return MakeStretchCopy(r.call.out[0].data, in.data, Bytes(in));
}

KernelPtr MakeLocalSlice(const KernelRequest& r) {
  const TensorView &in = r.call.in[0], &out = r.call.out[0];
  auto dim = static_cast<int>(r.call.attrs->Int("dim"));
  DimCopies c = CopyRuns(in.data, in.shape, r.call.Runs(in, dim), out.data, out.shape,
                         r.call.Runs(out, dim), static_cast<size_t>(dim), in.dtype);
  std::vector<Clear> clears;
  if (!c.covers) clears.push_back({out.data, Bytes(out)});
  return ClearThenCopy(clears, c.copies);
}

// Zero where the index along `dim` is outside its runs.
template <typename T>
struct ClearGaps {
  T* to;
  int64_t size, inner;
  Runs runs;
  __device__ void operator()(int64_t i) const {
    if (!runs.Valid(i / inner % size)) to[i] = T(0);
  }
};

KernelPtr MakeZeroPadding(const KernelRequest& r) {
  const TensorView &in = r.call.in[0], &out = r.call.out[0];
  return DispatchSize(in.dtype, [&](auto t) -> KernelPtr {
    using F = ClearGaps<decltype(t)>;
    std::vector<F> gaps;
    for (int d = 0; d < out.rank(); ++d) {
      if (Full(r, out, d)) continue;
      auto dim = static_cast<size_t>(d);
      F f{Out<decltype(t)>(r, 0),
          out.shape[dim],
          Product(out.shape, dim + 1, out.shape.size()),
          {}};
      if (!MakeRuns(r, out, d, &f.runs)) return nullptr;
      gaps.push_back(f);
    }
    return MakeKernel([gaps, n = out.num_elements(), grid = ElementGrid(out.num_elements()),
                       copy = std::shared_ptr(MakeStretchCopy(out.data, in.data, Bytes(in)))](
                          const Launch& launch) {
      copy->Enqueue(launch);
      for (const F& f : gaps)
        LaunchKernel(launch, ElementsKernel<F>, grid.blocks, grid.threads, 0, f, n);
    });
  });
}

KernelPtr MakePieces(const KernelRequest& r, bool pack) {
  PieceMoves m = PlanPieces(r, pack);
  const TensorView &whole = *m.whole, &staged = *m.staged;
  auto dim = static_cast<size_t>(m.dim);
  std::vector<StridedCopy> copies;
  bool covers = true;
  for (size_t j = 0; j < m.runs.size(); ++j) {
    std::byte* at = staged.data + static_cast<int64_t>(j) * m.piece_bytes;
    DimCopies c = pack ? CopyRuns(whole.data, whole.shape, m.whole_runs, at, m.piece, m.runs[j],
                                  dim, whole.dtype)
                       : CopyRuns(at, m.piece, m.runs[j], whole.data, whole.shape, m.whole_runs,
                                  dim, whole.dtype);
    copies.insert(copies.end(), c.copies.begin(), c.copies.end());
    covers = covers && (c.covers || !pack);
  }
  if (!pack) covers = Full(r, whole, m.dim);
  std::vector<Clear> clears;
  const TensorView& to = pack ? staged : whole;
  if (!covers) clears.push_back({to.data, Bytes(to)});
  return ClearThenCopy(clears, copies);
}
KernelPtr MakePack(const KernelRequest& r) { return MakePieces(r, true); }
KernelPtr MakeUnpack(const KernelRequest& r) { return MakePieces(r, false); }

constexpr Binding kBindings[] = {
    {"copy", MakeCopy}, {"local_slice", MakeLocalSlice}, {"zero_padding", MakeZeroPadding},
    {"pack", MakePack}, {"unpack", MakeUnpack},          {"sharding_constraint", MakeCopy},
};

}  // namespace

std::span<const Binding> MovementBindings() { return kBindings; }

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
