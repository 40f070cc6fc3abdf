// Reading ids and indices on the device.
#pragma once

#include "runtime/cuda/kernels/vector.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {

// An index tensor of i32 or i64. Reports what is out of range, never for padding.
struct IdReader {
  const void* data;
  bool wide;     // i64
  int64_t size;  // valid: [0, size), with `negative` also [-size, -1]
  bool negative;
  Fault::Kind kind;
  const int64_t* positions;  // see Positions; may be null

  __device__ int64_t Raw(int64_t i) const {
    return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
  __device__ bool Padding(int64_t i) const { return positions && positions[i] < 0; }
  // In [0, size), or -1 for padding and for what is out of range.
  __device__ int64_t Read(int64_t i, Fault* fault) const {
    return Padding(i) ? -1 : Check(i, Raw(i), fault);
  }
  // The same for an id that was read before, and is not padding.
  __device__ int64_t Check(int64_t i, int64_t v, Fault* fault) const {
    const int64_t at = negative && v < 0 ? v + size : v;
    if (at >= 0 && at < size) return at;
    ReportFault(fault, kind, positions ? positions[i] : i, v, size);
    return -1;
  }
};

inline IdReader MakeIdReader(const TensorView& ids, int64_t size, bool negative, Fault::Kind kind,
                             const DeviceTable<int64_t>& positions) {
  return {ids.data, ids.dtype == DType::kI64, size, negative, kind, positions.data()};
}

// The tuples of gather_nd: x[B..., d0.., dk-1, t...], indices[B..., m..., k].
struct IndexTuple {
  IdReader ids;
  int64_t block, per_batch, batch_stride;  // elements of t...; tuples of m...; elements of d.., t..
  int k;
  int64_t sizes[kMaxDims], strides[kMaxDims];

  // Where in x the block begins that the tuple picks, or -1 for padding and for what is out of
  // range.
  __device__ int64_t Offset(int64_t tuple, Fault* fault) const {
    int64_t from = tuple / per_batch * batch_stride;
    for (int j = 0; j < k; ++j) {
      IdReader reader = ids;
      reader.size = sizes[j];
      int64_t v = reader.Read(tuple * k + j, fault);
      if (v < 0) return -1;
      from += v * strides[j];
    }
    return from;
  }
  // Offsets in blocks from here on.
  void CountRows() {
    batch_stride /= block;
    for (int j = 0; j < k; ++j) strides[j] /= block;
    block = 1;
  }
};

// False when there are more dims than a kernel takes. The indices are operand 1.
inline bool MakeIndexTuple(const KernelRequest& r, const Shape& x,
                           const DeviceTable<int64_t>& positions, IndexTuple* out) {
  const TensorView& indices = r.call.in[1];
  auto batch = static_cast<size_t>(r.call.attrs->Int("batch_dims", 0));
  auto k = static_cast<size_t>(indices.shape.back());
  if (k > kMaxDims) return false;
  out->ids = MakeIdReader(indices, 0, true, Fault::kBadIndex, positions);
  out->block = Product(x, batch + k, x.size());
  out->per_batch = Product(indices.shape, batch, indices.shape.size() - 1);
  out->batch_stride = Product(x, batch, x.size());
  out->k = static_cast<int>(k);
  for (size_t j = 0; j < k; ++j) {
    out->sizes[j] = x[batch + j];
    out->strides[j] = Product(x, batch + j + 1, x.size());
  }
  return true;
}

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
