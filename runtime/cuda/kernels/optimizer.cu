// adamw and sgd. Weights, gradients and moments may have types of their own.
#include "runtime/cuda/kernels/batch.h"
#include "runtime/cuda/kernels/scalars.h"
#include "runtime/cuda/kernels/vector.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

constexpr int kEach = 4;  // elements an item
// Of a chunk: enough to make up for the powers of the betas.
constexpr int64_t kElements = int64_t{kBatchThreads} * kEach * 8;

// Elements of a float type.
template <typename T>
struct Known {
  template <typename W>
  __device__ void Read(const std::byte* data, bool packed, int64_t i, int count,
                       W (&out)[kEach]) const {
    const T* p = reinterpret_cast<const T*>(data) + i;
    if (packed && count == kEach) {
      const auto v = LoadPack<T, kEach>(p);
      for (int j = 0; j < kEach; ++j) out[j] = static_cast<W>(Widen(v.v[j]));
    } else {
      ForEach<kEach>(count, [&](int j) { out[j] = static_cast<W>(Widen(p[j])); });
    }
  }
  template <typename W>
  __device__ void Write(std::byte* data, bool packed, int64_t i, int count,
                        const W (&in)[kEach]) const {
    T* p = reinterpret_cast<T*>(data) + i;
    if (packed && count == kEach) {
      Pack<T, kEach> v;
      for (int j = 0; j < kEach; ++j) v.v[j] = Narrow<T>(in[j]);
      StorePack<T, kEach>(p, v);
    } else {
      ForEach<kEach>(count, [&](int j) { p[j] = Narrow<T>(in[j]); });
    }
  }
};
// Of one that is known at run time.
struct Chosen {
  DType dtype = DType::kF32;
  template <typename Use>
  __device__ void Choose(const Use& use) const {
    if (dtype == DType::kF32) return use(Known<float>());
    if (dtype == DType::kBF16) return use(Known<BF16>());
    if (dtype == DType::kF16) return use(Known<F16>());
    use(Known<double>());
  }
  template <typename W>
  __device__ void Read(const std::byte* data, bool packed, int64_t i, int count,
                       W (&out)[kEach]) const {
    Choose([&](auto known) { known.Read(data, packed, i, count, out); });
  }
  template <typename W>
  __device__ void Write(std::byte* data, bool packed, int64_t i, int count,
                        const W (&in)[kEach]) const {
    Choose([&](auto known) { known.Write(data, packed, i, count, in); });
  }
};

// Arrays of n elements that a kernel walks together, the first kIn of which it reads, the others
// it writes.
template <int kIn, int kOut>
struct Arrays {
  std::byte *in[kIn], *out[kOut];
  int64_t n;
  double decay;
  bool packed;  // aligned for kEach elements at a time
};
// f(i, count) for the items of a chunk.
template <typename F>
__device__ __forceinline__ void ForItems(int64_t n, int64_t number, const F& f) {
  const int64_t first = number * kElements;
  const int64_t end = first + kElements < n ? first + kElements : n;
  for (int64_t i = first + int64_t{threadIdx.x} * kEach; i < end; i += kBatchThreads * kEach) {
    f(i, end - i < kEach ? static_cast<int>(end - i) : kEach);
  }
}

// W: what is computed in. Type: Known<float>, where all are f32, or Chosen.
template <typename W, typename Type>
struct AdamW {
  using Tensor = Arrays<4, 3>;
  static constexpr int64_t kChunk = kElements;
  struct Begun {
    W step_size, root_correction, scale;
    double rate;
  };
  AdamWConstants constants;
  AdamWStep<W> fixed;  // what the constants give: in f32 on the host, else in each turn of a loop
  ScalarView step, scale, lr;
  Type types[4];  // of in; out[0] is as in[0], the others as in[2] and in[3]

  __device__ Begun Begin() const {
    const double rate = lr.Value();
    const AdamWStep<W> now(constants, step.Value(), scale.Value(), rate);
    return {now.step_size, now.root_correction, now.scale, rate};
  }
  __device__ void operator()(const Begun& begun, const Tensor& t, int64_t number) const {
    AdamWStep<W> update = fixed;
    update.step_size = begun.step_size;
    update.root_correction = begun.root_correction;
    update.scale = begun.scale;
    update.decay = W(begun.rate * t.decay);
    const bool updates = !IsNan(begun.scale);
    ForItems(t.n, number, [&](int64_t i, int count) {
      W w[kEach] = {}, g[kEach] = {}, m[kEach] = {}, v[kEach] = {};
      types[0].Read(t.in[0], t.packed, i, count, w);
      types[1].Read(t.in[1], t.packed, i, count, g);
      types[2].Read(t.in[2], t.packed, i, count, m);
      types[3].Read(t.in[3], t.packed, i, count, v);
      for (int j = 0; j < kEach && updates; ++j) update.Update(w[j], g[j], m[j], v[j]);
      types[0].Write(t.out[0], t.packed, i, count, w);
      types[2].Write(t.out[1], t.packed, i, count, m);
      types[3].Write(t.out[2], t.packed, i, count, v);
    });
  }
};

template <typename W, typename Type>
struct Sgd {
  using Tensor = Arrays<3, 2>;  // the last of each is null without a buffer
  static constexpr int64_t kChunk = kElements;
  struct Begun {
    W scale, rate;
    bool first;
  };
  SgdConstants constants;
  ScalarView scale, lr, step;
  bool buffered;
  Type types[3];  // of in, as which out is

  __device__ Begun Begin() const {
    return {static_cast<W>(scale.Value()), static_cast<W>(lr.Value()),
            buffered && step.Value() <= 1};
  }
  __device__ void operator()(const Begun& begun, const Tensor& t, int64_t number) const {
    SgdConstants own = constants;
    own.weight_decay = t.decay;
    const bool updates = !IsNan(begun.scale);
    ForItems(t.n, number, [&](int64_t i, int count) {
      W w[kEach] = {}, g[kEach] = {}, b[kEach] = {};
      types[0].Read(t.in[0], t.packed, i, count, w);
      types[1].Read(t.in[1], t.packed, i, count, g);
      if (buffered) types[2].Read(t.in[2], t.packed, i, count, b);
      for (int j = 0; j < kEach && updates; ++j) {
        SgdUpdate(own, buffered, begun.first, begun.scale, begun.rate, w[j], g[j], b[j]);
      }
      types[0].Write(t.out[0], t.packed, i, count, w);
      if (buffered) types[2].Write(t.out[1], t.packed, i, count, b);
    });
  }
};

// fn(W(), Type[]) for operands of these types.
template <typename Fn>
KernelPtr DispatchTypes(const std::vector<DType>& types, Fn fn) {
  auto is = [](DType type) { return [type](DType t) { return t == type; }; };
  if (std::ranges::all_of(types, is(DType::kF32))) {
    return fn(float(), [](size_t) { return Known<float>(); });
  }
  auto chosen = [&](size_t i) { return Chosen{types[i < types.size() ? i : 0]}; };
  // Whether any result is f64: then all is computed in it. The gradient is none.
  for (size_t i = 0; i < types.size(); ++i) {
    if (i != 1 && types[i] == DType::kF64) return fn(double(), chosen);
  }
  return fn(float(), chosen);
}

// Of the operands `in` and all results.
template <int kIn, int kOut>
std::vector<Arrays<kIn, kOut>> ArraysOf(std::span<const KernelRequest> run,
                                        const std::vector<size_t>& in) {
  std::vector<Arrays<kIn, kOut>> all;
  for (const KernelRequest& r : run) {
    Arrays<kIn, kOut> a{};
    a.n = r.call.in[0].num_elements();
    a.decay = r.call.attrs->Float("weight_decay", 0.0);
    a.packed = true;
    auto take = [&](const TensorView& v) {
      a.packed &= Aligned(v.data, static_cast<size_t>(kEach * DTypeSize(v.dtype)));
      return v.data;
    };
    for (size_t i = 0; i < in.size(); ++i) a.in[i] = take(r.call.in[in[i]]);
    for (size_t i = 0; i < r.call.out.size(); ++i) a.out[i] = take(r.call.out[i]);
    all.push_back(a);
  }
  return all;
}

std::vector<DType> TypesOf(const KernelRequest& r, const std::vector<size_t>& in) {
  std::vector<DType> types;
  for (size_t i : in) types.push_back(r.call.in[i].dtype);
  return types;
}

}  // namespace

// w, g, m, v, step, scale, lr -> w, m, v
KernelPtr MakeAdamWs(std::span<const KernelRequest> run) {
  const Attributes& a = *run[0].call.attrs;
  const auto& in = run[0].call.in;
  const std::vector<size_t> arrays = {0, 1, 2, 3};
  return DispatchTypes(TypesOf(run[0], arrays), [&](auto w, auto type) {
    const AdamWConstants constants{a.Float("beta1"), a.Float("beta2"), a.Float("eps"), 0};
    const AdamW<decltype(w), decltype(type(0))> f{
        constants,     AdamWStep<decltype(w)>(constants, 1, 0, 0), Scalar(in[4]), Scalar(in[5]),
        Scalar(in[6]), {type(0), type(1), type(2), type(3)}};
    return MakeBatch(f, ArraysOf<4, 3>(run, arrays));
  });
}

// w, g, scale, lr[, buffer, step] -> w[, buffer]
KernelPtr MakeSgds(std::span<const KernelRequest> run) {
  const Attributes& a = *run[0].call.attrs;
  const auto& in = run[0].call.in;
  const bool buffered = in.size() == 6;
  std::vector<size_t> arrays = {0, 1};
  if (buffered) arrays.push_back(4);
  return DispatchTypes(TypesOf(run[0], arrays), [&](auto w, auto type) {
    const Sgd<decltype(w), decltype(type(0))> f{
        {a.Float("momentum", 0.0), a.Float("dampening", 0.0), 0, a.Bool("nesterov")},
        Scalar(in[2]),
        Scalar(in[3]),
        buffered ? Scalar(in[5]) : ScalarView(),
        buffered,
        {type(0), type(1), type(2)}};
    return MakeBatch(f, ArraysOf<3, 2>(run, arrays));
  });
}

namespace {
constexpr Binding kBindings[] = {{"adamw", OfOne<MakeAdamWs>}, {"sgd", OfOne<MakeSgds>}};
}  // namespace

std::span<const Binding> OptimizerBindings() { return kBindings; }

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
