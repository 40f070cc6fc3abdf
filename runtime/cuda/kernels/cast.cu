// cast between all types.
#include "runtime/cuda/kernels/batch.h"
#include "runtime/cuda/kernels/vector.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

template <typename To, typename From>
struct Cast {
  struct Tensor {
    const From* from;
    To* to;
    int64_t n;
    bool packed;
  };
  static constexpr int kN = static_cast<int>(16 / std::max(sizeof(To), sizeof(From)));
  static constexpr int kEach = 4;  // packs a thread
  static constexpr int64_t kChunk = int64_t{kBatchThreads} * kEach * kN;

  __device__ bool Begin() const { return true; }
  __device__ void operator()(bool, const Tensor& t, int64_t number) const {
    const int64_t first = number * kChunk;
    if (t.packed && first + kChunk <= t.n) {
      Pack<From, kN> x[kEach];
      SHARDC_UNROLL
      for (int j = 0; j < kEach; ++j) x[j] = LoadPack<From, kN>(t.from + At(first, j));
      SHARDC_UNROLL
      for (int j = 0; j < kEach; ++j) {
        Pack<To, kN> y;
        for (int i = 0; i < kN; ++i) y.v[i] = CastElement<To>(x[j].v[i]);
        StorePack<To, kN>(t.to + At(first, j), y);
      }
      return;
    }
    const int64_t end = first + kChunk < t.n ? first + kChunk : t.n;
    for (int64_t i = first + threadIdx.x; i < end; i += kBatchThreads) {
      t.to[i] = CastElement<To>(t.from[i]);
    }
  }
  static __device__ int64_t At(int64_t first, int j) {
    return first + (j * int64_t{kBatchThreads} + threadIdx.x) * kN;
  }
};

}  // namespace

KernelPtr MakeCasts(std::span<const KernelRequest> run) {
  const KernelCall& call = run[0].call;
  return DispatchAny(call.in[0].dtype, [&](auto from) {
    return DispatchAny(call.out[0].dtype, [&](auto to) {
      using F = Cast<decltype(to), decltype(from)>;
      std::vector<typename F::Tensor> tensors;
      for (const KernelRequest& r : run) {
        const auto* x = In<decltype(from)>(r, 0);
        auto* y = Out<decltype(to)>(r, 0);
        tensors.push_back({x, y, r.call.out[0].num_elements(), Aligned(x, 16) && Aligned(y, 16)});
      }
      return MakeBatch(F(), tensors);
    });
  });
}

namespace {
constexpr Binding kBindings[] = {{"cast", OfOne<MakeCasts>}};
}  // namespace

std::span<const Binding> CastBindings() { return kBindings; }

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
