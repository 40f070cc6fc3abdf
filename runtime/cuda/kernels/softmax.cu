// softmax and softmax_grad along one axis: a block per line of elements.
#include "runtime/cuda/kernels/vector.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

// Line i starts at i / inner * size * inner + i % inner; its elements are `inner` apart.
struct Lines {
  int64_t count, size, inner;
  bool packed;
  __device__ int64_t Base(int64_t line) const { return line / inner * size * inner + line % inner; }
};

Lines LinesOf(const KernelRequest& r, size_t bytes, bool aligned) {
  const Shape& shape = r.call.in[0].shape;
  auto axis = static_cast<size_t>(Axis(r.call.attrs->Int("axis", -1), r.call.in[0].rank()));
  Lines lines{0, shape[axis], Product(shape, axis + 1, shape.size()), false};
  lines.count = lines.size == 0 ? 0 : NumElements(shape) / lines.size;
  lines.packed = lines.inner == 1 && aligned && lines.size % static_cast<int64_t>(16 / bytes) == 0;
  return lines;
}

template <typename T>
struct Softmax {
  using W = Wide<T>;
  Lines lines;
  const T* x;
  T* y;
  __device__ void operator()(int64_t line) const {
    const int64_t base = lines.Base(line), step = lines.inner;
    SoftmaxState<W, MathOf<T>> state;
    ForColumns<T>(lines.size, lines.packed, [&](auto n, int64_t c) {
      state.Add(WidenPack(LoadPack<T, n.value>(x + base + c * step)).v);
    });
    const W max = BlockMax(state.max), scale = W(1) / BlockSum(state.SumFrom(max));
    ForColumns<T>(lines.size, lines.packed, [&](auto n, int64_t c) {
      auto v = WidenPack(LoadPack<T, n.value>(x + base + c * step));
      for (int j = 0; j < n.value; ++j) v.v[j] = MathOf<T>::Exp(v.v[j] - max) * scale;
      StorePack(y + base + c * step, NarrowPack<T>(v));
    });
  }
};

template <typename T>
struct SoftmaxGrad {
  using W = Wide<T>;
  Lines lines;
  const T *dy, *y;
  T* dx;
  __device__ void operator()(int64_t line) const {
    const int64_t base = lines.Base(line), step = lines.inner;
    W sum = 0;
    ForColumns<T>(lines.size, lines.packed, [&](auto n, int64_t c) {
      auto a = LoadPack<T, n.value>(dy + base + c * step),
           b = LoadPack<T, n.value>(y + base + c * step);
      for (int j = 0; j < n.value; ++j) sum += Widen(a.v[j]) * Widen(b.v[j]);
    });
    sum = BlockSum(sum);
    ForColumns<T>(lines.size, lines.packed, [&](auto n, int64_t c) {
      auto a = LoadPack<T, n.value>(dy + base + c * step),
           b = LoadPack<T, n.value>(y + base + c * step);
      for (int j = 0; j < n.value; ++j) a.v[j] = Narrow<T>(Widen(b.v[j]) * (Widen(a.v[j]) - sum));
      StorePack<T, n.value>(dx + base + c * step, a);
    });
  }
};

template <typename F>
KernelPtr PerLine(const F& f) {
  return MakeKernel([f, grid = RowGrid(f.lines.count, f.lines.size)](const Launch& launch) {
    LaunchKernel(launch, RowsKernel<F>, grid.blocks, grid.threads, 0, f, f.lines.count);
  });
}

KernelPtr MakeSoftmax(const KernelRequest& r) {
  return DispatchFloat(r.call.out[0].dtype, [&](auto t) {
    using T = decltype(t);
    const T* x = In<T>(r, 0);
    T* y = Out<T>(r, 0);
    return PerLine(Softmax<T>{LinesOf(r, sizeof(T), Aligned(x, 16) && Aligned(y, 16)), x, y});
  });
}
KernelPtr MakeSoftmaxGrad(const KernelRequest& r) {
  return DispatchFloat(r.call.out[0].dtype, [&](auto t) {
    using T = decltype(t);
    const T *dy = In<T>(r, 0), *y = In<T>(r, 1);
    T* dx = Out<T>(r, 0);
    bool aligned = Aligned(dy, 16) && Aligned(y, 16) && Aligned(dx, 16);
    return PerLine(SoftmaxGrad<T>{LinesOf(r, sizeof(T), aligned), dy, y, dx});
  });
}

constexpr Binding kBindings[] = {{"softmax", MakeSoftmax}, {"softmax_grad", MakeSoftmaxGrad}};

}  // namespace

std::span<const Binding> SoftmaxBindings() { return kBindings; }

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
