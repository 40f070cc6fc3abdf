// adamw and sgd. Weights, gradients and moments may have types of their own.
#include "runtime/cuda/kernels/vector.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

constexpr int kEach = 4;  // elements an item

// A tensor whose float type is known at run time.
struct FloatView {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  bool packed = false;  // aligned for kEach elements at a time

  template <typename T, typename W>
  __device__ void ReadAs(int64_t i, int count, W (&out)[kEach]) const {
    const T* p = reinterpret_cast<const T*>(data) + i;
    if (packed && count == kEach) {
      auto v = LoadPack<T, kEach>(p);
      for (int j = 0; j < kEach; ++j) out[j] = static_cast<W>(Widen(v.v[j]));
    } else {
      ForEach<kEach>(count, [&](int j) { out[j] = static_cast<W>(Widen(p[j])); });
    }
  }
  template <typename T, typename W>
  __device__ void WriteAs(int64_t i, int count, const W (&in)[kEach]) const {
    T* p = reinterpret_cast<T*>(data) + i;
    if (packed && count == kEach) {
      Pack<T, kEach> v;
      for (int j = 0; j < kEach; ++j) v.v[j] = Narrow<T>(in[j]);
      StorePack<T, kEach>(p, v);
    } else {
      ForEach<kEach>(count, [&](int j) { p[j] = Narrow<T>(in[j]); });
    }
  }
  template <typename W>
  __device__ void Read(int64_t i, int count, W (&out)[kEach]) const {
    if (dtype == DType::kF32) return ReadAs<float>(i, count, out);
    if (dtype == DType::kBF16) return ReadAs<BF16>(i, count, out);
    if (dtype == DType::kF16) return ReadAs<F16>(i, count, out);
    ReadAs<double>(i, count, out);
  }
  template <typename W>
  __device__ void Write(int64_t i, int count, const W (&in)[kEach]) const {
    if (dtype == DType::kF32) return WriteAs<float>(i, count, in);
    if (dtype == DType::kBF16) return WriteAs<BF16>(i, count, in);
    if (dtype == DType::kF16) return WriteAs<F16>(i, count, in);
    WriteAs<double>(i, count, in);
  }
};
FloatView View(const TensorView& v) {
  return {v.data, v.dtype, Aligned(v.data, static_cast<size_t>(kEach * DTypeSize(v.dtype)))};
}

// A scalar of any number type.
struct ScalarView {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  template <typename T>
  __device__ double As() const {
    return static_cast<double>(Widen(*reinterpret_cast<const T*>(data)));
  }
  __device__ double Value() const {
    switch (dtype) {
      case DType::kF32:
        return As<float>();
      case DType::kF64:
        return As<double>();
      case DType::kF16:
        return As<F16>();
      case DType::kBF16:
        return As<BF16>();
      case DType::kI32:
        return As<int32_t>();
      default:
        return As<int64_t>();
    }
  }
};
ScalarView Scalar(const TensorView& v) { return {v.data, v.dtype}; }

template <typename W>
struct AdamW {
  AdamWConstants constants;
  FloatView w, g, m, v, w_out, m_out, v_out;
  ScalarView step, scale, lr;
  int64_t n;
  __device__ void operator()(int64_t items) const {
    // One item a thread, which strides by itself: the powers of the betas are costly.
    const AdamWStep<W> update(constants, step.Value(), scale.Value(), lr.Value());
    for (int64_t item = threadIdx.x + static_cast<int64_t>(blockIdx.x) * blockDim.x; item < items;
         item += static_cast<int64_t>(gridDim.x) * blockDim.x) {
      int64_t i = item * kEach;
      int count = n - i < kEach ? static_cast<int>(n - i) : kEach;
      W we[kEach], ge[kEach], me[kEach], ve[kEach];
      w.Read(i, count, we);
      g.Read(i, count, ge);
      m.Read(i, count, me);
      v.Read(i, count, ve);
      ForEach<kEach>(count, [&](int j) { update.Update(we[j], ge[j], me[j], ve[j]); });
      w_out.Write(i, count, we);
      m_out.Write(i, count, me);
      v_out.Write(i, count, ve);
    }
  }
};

template <typename W>
struct Sgd {
  SgdConstants constants;
  FloatView w, g, buffer, w_out, buffer_out;
  ScalarView scale, lr, step;
  bool buffered;
  int64_t n;
  __device__ void operator()(int64_t items) const {
    const W factor = static_cast<W>(scale.Value()), rate = static_cast<W>(lr.Value());
    const bool first = buffered && step.Value() <= 1;
    for (int64_t item = threadIdx.x + static_cast<int64_t>(blockIdx.x) * blockDim.x; item < items;
         item += static_cast<int64_t>(gridDim.x) * blockDim.x) {
      int64_t i = item * kEach;
      int count = n - i < kEach ? static_cast<int>(n - i) : kEach;
      W we[kEach], ge[kEach], be[kEach] = {};
      w.Read(i, count, we);
      g.Read(i, count, ge);
      if (buffered) buffer.Read(i, count, be);
      ForEach<kEach>(count, [&](int j) {
        SgdUpdate(constants, buffered, first, factor, rate, we[j], ge[j], be[j]);
      });
      w_out.Write(i, count, we);
      if (buffered) buffer_out.Write(i, count, be);
    }
  }
};

template <typename F>
__global__ void __launch_bounds__(kElementThreads) StepKernel(F f, int64_t items) {
  f(items);
}
template <typename F>
KernelPtr Make(const F& f) {
  int64_t items = CeilDiv(f.n, kEach);
  Grid grid = ElementGrid(items);
  grid.blocks = std::min<int64_t>(grid.blocks, 2048);
  return MakeKernel([f, grid, items](const Launch& launch) {
    LaunchKernel(launch, StepKernel<F>, grid.blocks, grid.threads, 0, f, items);
  });
}

// Whether any of them is f64: then all is computed in it.
bool Double(const KernelRequest& r) {
  return std::any_of(r.call.out.begin(), r.call.out.end(),
                     [](const TensorView& v) { return v.dtype == DType::kF64; });
}

// w, g, m, v, step, scale, lr -> w, m, v
template <typename W>
KernelPtr MakeAdamWOf(const KernelRequest& r) {
  const Attributes& a = *r.call.attrs;
  auto &in = r.call.in, &out = r.call.out;
  return Make(
      AdamW<W>{{a.Float("beta1"), a.Float("beta2"), a.Float("eps"), a.Float("weight_decay")},
               View(in[0]),
               View(in[1]),
               View(in[2]),
               View(in[3]),
               View(out[0]),
               View(out[1]),
               View(out[2]),
               Scalar(in[4]),
               Scalar(in[5]),
               Scalar(in[6]),
               in[0].num_elements()});
}
KernelPtr MakeAdamW(const KernelRequest& r) {
  return Double(r) ? MakeAdamWOf<double>(r) : MakeAdamWOf<float>(r);
}

// w, g, scale, lr[, buffer, step] -> w[, buffer]
template <typename W>
KernelPtr MakeSgdOf(const KernelRequest& r) {
  const Attributes& a = *r.call.attrs;
  auto &in = r.call.in, &out = r.call.out;
  bool buffered = in.size() == 6;
  return Make(Sgd<W>{{a.Float("momentum", 0.0), a.Float("dampening", 0.0),
                      a.Float("weight_decay", 0.0), a.Bool("nesterov")},
                     View(in[0]),
                     View(in[1]),
                     buffered ? View(in[4]) : FloatView(),
                     View(out[0]),
                     buffered ? View(out[1]) : FloatView(),
                     Scalar(in[2]),
                     Scalar(in[3]),
                     buffered ? Scalar(in[5]) : ScalarView(),
                     buffered,
                     in[0].num_elements()});
}
KernelPtr MakeSgd(const KernelRequest& r) {
  return Double(r) ? MakeSgdOf<double>(r) : MakeSgdOf<float>(r);
}

constexpr Binding kBindings[] = {{"adamw", MakeAdamW}, {"sgd", MakeSgd}};

}  // namespace

std::span<const Binding> OptimizerBindings() { return kBindings; }

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
