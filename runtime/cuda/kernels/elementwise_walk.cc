#include "runtime/cuda/kernels/elementwise_walk.h"

namespace shardc::cuda {

std::optional<Walk> ElementwiseWalk(const KernelCall& call, size_t inputs) {
  if (call.in.size() != inputs) return std::nullopt;
  const Shape& out = call.out[0].shape;
  std::vector<std::vector<int64_t>> strides = {DenseStrides(out)};
  for (const TensorView& x : call.in) strides.push_back(BroadcastStrides(x.shape, out));
  return MakeWalk(out, strides);
}

bool CanPack(const KernelCall& call, const Walk& walk, int n, std::span<const size_t> sizes) {
  if (n == 1 || walk.rank == 0) return false;
  const int last = walk.rank - 1;
  if (walk.rank > 1 && walk.dims[last] % n != 0) return false;
  for (size_t k = 0; k < sizes.size(); ++k) {
    const int64_t inner = walk.strides[k][last];
    if (inner != 1 && (k == 0 || inner != 0)) return false;
    if (inner == 0) continue;
    const void* data = k == 0 ? call.out[0].data : call.in[k - 1].data;
    if (reinterpret_cast<uintptr_t>(data) % (sizes[k] * static_cast<size_t>(n)) != 0) return false;
    for (int d = 0; d < last; ++d) {
      if (walk.strides[k][d] % n != 0) return false;
    }
  }
  return true;
}

}  // namespace shardc::cuda
