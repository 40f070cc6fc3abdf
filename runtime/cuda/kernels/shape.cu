// reshape, transpose, broadcast_to, slice, pad, concat, split.
#include "runtime/cuda/kernels/strided_copy.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

StridedCopy Between(const TensorView& from, const TensorView& to) {
  StridedCopy c;
  c.from = from.data;
  c.to = to.data;
  c.from_strides = DenseStrides(from.shape);
  c.to_strides = DenseStrides(to.shape);
  c.dims = to.shape;
  c.element = static_cast<int>(DTypeSize(from.dtype));
  return c;
}

KernelPtr MakeReshape(const KernelRequest& r) {
  const TensorView &in = r.call.in[0], &out = r.call.out[0];
  if (in.num_elements() != out.num_elements()) return nullptr;
  return MakeStretchCopy(out.data, in.data, Bytes(in));
}

KernelPtr MakeTranspose(const KernelRequest& r) {
  StridedCopy c = Between(r.call.in[0], r.call.out[0]);
  Ints own = c.from_strides;
  const Ints& perm = r.call.attrs->IntList("perm");
  for (size_t d = 0; d < perm.size(); ++d) c.from_strides[d] = own[static_cast<size_t>(perm[d])];
  return MakeStridedCopy(c);
}

KernelPtr MakeBroadcast(const KernelRequest& r) {
  const TensorView &in = r.call.in[0], &out = r.call.out[0];
  StridedCopy c = Between(in, out);
  c.from_strides = BroadcastStrides(in.shape, out.shape);
  return MakeStridedCopy(c);
}

KernelPtr MakeSlice(const KernelRequest& r) {
  StridedCopy c = Between(r.call.in[0], r.call.out[0]);
  const Ints &starts = r.call.attrs->IntList("starts"), &steps = r.call.attrs->IntList("steps");
  if (NumElements(c.dims) == 0) return NoWork();
  for (size_t d = 0; d < c.dims.size(); ++d) {
    c.from += starts[d] * c.from_strides[d] * c.element;
    c.from_strides[d] *= steps[d];
  }
  return MakeStridedCopy(c);
}

KernelPtr MakePad(const KernelRequest& r) {
  const TensorView &in = r.call.in[0], &out = r.call.out[0];
  StridedCopy c = Between(in, out);
  c.dims = in.shape;
  const Ints& low = r.call.attrs->IntList("low");
  for (size_t d = 0; d < c.dims.size(); ++d) c.to += low[d] * c.to_strides[d] * c.element;
  auto fill = MakeFill(out.data, out.num_elements(), out.dtype, r.call.attrs->Float("value"));
  auto copy = MakeStridedCopy(c);
  if (!copy) return nullptr;
  return MakeKernel([fill = std::shared_ptr(std::move(fill)),
                     copy = std::shared_ptr(std::move(copy))](const Launch& launch) {
    fill->Enqueue(launch);
    copy->Enqueue(launch);
  });
}

KernelPtr MakePieces(const KernelRequest& r, bool split) {
  const TensorView& whole = split ? r.call.in[0] : r.call.out[0];
  auto axis = static_cast<size_t>(Axis(r.call.attrs->Int("axis"), whole.rank()));
  std::vector<StridedCopy> copies;
  int64_t at = 0;
  for (const TensorView& piece : split ? r.call.out : r.call.in) {
    StridedCopy c = split ? Between(whole, piece) : Between(piece, whole);
    c.dims = piece.shape;
    if (split) {
      c.from += at * c.from_strides[axis] * c.element;
    } else {
      c.to += at * c.to_strides[axis] * c.element;
    }
    at += piece.shape[axis];
    copies.push_back(std::move(c));
  }
  if (at != whole.shape[axis]) return nullptr;
  return MakeStridedCopies(copies);
}
KernelPtr MakeConcat(const KernelRequest& r) { return MakePieces(r, false); }
KernelPtr MakeSplit(const KernelRequest& r) { return MakePieces(r, true); }

constexpr Binding kBindings[] = {
    {"reshape", MakeReshape},
    {"transpose", MakeTranspose},
    {"broadcast_to", MakeBroadcast},
    {"slice", MakeSlice},
    {"pad", MakePad},
    {"concat", MakeConcat},
    {"split", MakeSplit},
};

}  // namespace

std::span<const Binding> ShapeBindings() { return kBindings; }

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
