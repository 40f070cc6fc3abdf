#include <cstring>

#include "ir/row_major.h"
#include "runtime/cpu/bind.h"
#include "runtime/cpu/kernels/layout.h"
#include "runtime/cpu/kernels/parallel.h"

namespace shardc::cpu {
namespace {

// A strided copy with everything it needs.
struct Copy {
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  Ints src_strides, dst_strides, dims;
  int element = 0, threads = 1;

  void operator()() const {
    StridedCopy(src, src_strides, dst, dst_strides, dims, element, threads);
  }
};

Copy Between(const KernelRequest& r, const TensorView& src, const TensorView& dst) {
  Copy c;
  c.src = src.data;
  c.dst = dst.data;
  c.src_strides = DenseStrides(src.shape);
  c.dst_strides = DenseStrides(dst.shape);
  c.element = static_cast<int>(DTypeSize(src.dtype));
  c.threads = r.call.threads;
  return c;
}

bool RankFits(const TensorView& v) { return v.rank() <= kMaxRank; }

std::unique_ptr<Kernel> MakeTranspose(const KernelRequest& r) {
  const TensorView &in = r.call.in[0], &out = r.call.out[0];
  if (!RankFits(in)) return nullptr;
  Copy c = Between(r, in, out);
  const Ints& perm = r.call.attrs->IntList("perm");
  Ints strides = c.src_strides;
  for (size_t d = 0; d < perm.size(); ++d) c.src_strides[d] = strides[perm[d]];
  c.dims = out.shape;
  return MakeKernel(c);
}

std::unique_ptr<Kernel> MakeBroadcast(const KernelRequest& r) {
  const TensorView &in = r.call.in[0], &out = r.call.out[0];
  if (!RankFits(out)) return nullptr;
  Copy c = Between(r, in, out);
  c.src_strides = BroadcastStrides(in.shape, out.shape);
  c.dims = out.shape;
  return MakeKernel(c);
}

std::unique_ptr<Kernel> MakeSlice(const KernelRequest& r) {
  const TensorView &in = r.call.in[0], &out = r.call.out[0];
  if (!RankFits(in)) return nullptr;
  Copy c = Between(r, in, out);
  const Ints &starts = r.call.attrs->IntList("starts"), &steps = r.call.attrs->IntList("steps");
  int64_t offset = 0;
  for (size_t d = 0; d < in.shape.size(); ++d) {
    if (steps[d] < 1) return nullptr;
    offset += starts[d] * c.src_strides[d];
    c.src_strides[d] *= steps[d];
  }
  c.src += offset * c.element;
  c.dims = out.shape;
  return MakeKernel(c);
}

// Only zeros are filled here; other values are the reference kernel's.
std::unique_ptr<Kernel> MakePad(const KernelRequest& r) {
  const TensorView &in = r.call.in[0], &out = r.call.out[0];
  if (!RankFits(in) || r.call.attrs->Float("value", 0.0) != 0) return nullptr;
  Copy c = Between(r, in, out);
  const Ints &low = r.call.attrs->IntList("low"), &high = r.call.attrs->IntList("high");
  int64_t offset = 0;
  for (size_t d = 0; d < in.shape.size(); ++d) {
    if (low[d] < 0 || high[d] < 0) return nullptr;
    offset += low[d] * c.dst_strides[d];
  }
  c.dst += offset * c.element;
  c.dims = in.shape;
  size_t bytes = static_cast<size_t>(out.num_elements() * c.element);
  return MakeKernel([c, all = out.data, bytes] {
    std::memset(all, 0, bytes);
    c();
  });
}

std::unique_ptr<Kernel> Pieces(const KernelRequest& r, bool split) {
  const TensorView& whole = split ? r.call.in[0] : r.call.out[0];
  if (!RankFits(whole)) return nullptr;
  int64_t axis = r.call.attrs->Int("axis");
  if (axis < 0) axis += whole.rank();
  std::vector<Copy> copies;
  int64_t at = 0;
  for (const TensorView& piece : split ? r.call.out : r.call.in) {
    Copy c = split ? Between(r, whole, piece) : Between(r, piece, whole);
    int64_t offset = at * DenseStrides(whole.shape)[axis] * c.element;
    if (split) {
      c.src += offset;
    } else {
      c.dst += offset;
    }
    c.dims = piece.shape;
    at += piece.shape[axis];
    copies.push_back(std::move(c));
  }
  if (at != whole.shape[axis]) return nullptr;
  return MakeKernel([copies] {
    for (const Copy& c : copies) c();
  });
}

std::unique_ptr<Kernel> MakeConcat(const KernelRequest& r) { return Pieces(r, false); }
std::unique_ptr<Kernel> MakeSplit(const KernelRequest& r) { return Pieces(r, true); }

std::unique_ptr<Kernel> MakeReshape(const KernelRequest& r) {
  const TensorView &in = r.call.in[0], &out = r.call.out[0];
  int64_t bytes = in.num_elements() * DTypeSize(in.dtype);
  if (in.num_elements() != out.num_elements()) return nullptr;
  return MakeKernel([from = in.data, to = out.data, bytes, threads = r.call.threads] {
    ParallelFor(threads, bytes, 1 << 18, [&](int64_t begin, int64_t end) {
      std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
    });
  });
}

constexpr Binding kBindings[] = {
    {"transpose", MakeTranspose}, {"broadcast_to", MakeBroadcast},
    {"slice", MakeSlice},         {"pad", MakePad},
    {"concat", MakeConcat},       {"split", MakeSplit},
    {"reshape", MakeReshape},
};

}  // namespace

std::span<const Binding> ShapeBindings() { return kBindings; }

}  // namespace shardc::cpu
