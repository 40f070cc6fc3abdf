// cast between all types.
#include "runtime/cuda/kernels/vector.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

template <typename To, typename From>
struct Cast {
  static constexpr int kN = static_cast<int>(16 / std::max(sizeof(To), sizeof(From)));
  const From* from;
  To* to;
  int64_t n;
  bool packed;
  __device__ void operator()(int64_t item) const {
    int64_t begin = item * kN;
    if (packed && begin + kN <= n) {
      Pack<From, kN> x = LoadPack<From, kN>(from + begin);
      Pack<To, kN> y;
      for (int j = 0; j < kN; ++j) y.v[j] = CastElement<To>(x.v[j]);
      StorePack<To, kN>(to + begin, y);
      return;
    }
    for (int64_t i = begin; i < n && i < begin + kN; ++i) to[i] = CastElement<To>(from[i]);
  }
};

KernelPtr MakeCast(const KernelRequest& r) {
  return DispatchAny(r.call.in[0].dtype, [&](auto from) {
    return DispatchAny(r.call.out[0].dtype, [&](auto to) {
      using F = Cast<decltype(to), decltype(from)>;
      F f{In<decltype(from)>(r, 0), Out<decltype(to)>(r, 0), r.call.out[0].num_elements(), false};
      f.packed = Aligned(f.from, 16) && Aligned(f.to, 16);
      int64_t items = CeilDiv(f.n, F::kN);
      return MakeKernel([f, items, grid = ElementGrid(items)](const Launch& launch) {
        LaunchKernel(launch, ElementsKernel<F>, grid.blocks, grid.threads, 0, f, items);
      });
    });
  });
}

constexpr Binding kBindings[] = {{"cast", MakeCast}};

}  // namespace

std::span<const Binding> CastBindings() { return kBindings; }

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
