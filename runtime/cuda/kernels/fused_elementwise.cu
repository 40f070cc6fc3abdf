// fused_elementwise: the program is interpreted per thread, on a few neighbouring elements at once.
// Its values, which are found by number, are in shared memory: registers have no numbers, and local
// memory is slower.
#include "ir/scalar_program.h"
#include "runtime/cuda/kernels/vector.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

enum class Type : uint8_t { kSame, kBF16, kF16 };  // kSame: what is computed in

// How the kN elements that a thread has at once lie in an operand: beside each other, as one, or
// anyhow.
enum class Lie : uint8_t { kPacked, kSplat, kApart };

struct Operand {
  const std::byte* data;
  Type type;
  Lie lie;
  bool small;  // indices fit in 32 bits, whose division is fast
  int rank;    // of what is left when dims that the operand walks alike are merged
  int64_t dims[kMaxDims], strides[kMaxDims];
  template <typename Index>
  __device__ int64_t At(Index i) const {
    int64_t at = 0;
    SHARDC_UNROLL_BY(1)
    for (int d = rank - 1; d >= 0; --d) {
      const Index n = static_cast<Index>(dims[d]), q = d == 0 ? 0 : i / n;
      at += static_cast<int64_t>(i - q * n) * strides[d];
      i = q;
    }
    return at;
  }
  __device__ int64_t Offset(int64_t i) const {
    return small ? At(static_cast<uint32_t>(i)) : At(static_cast<uint64_t>(i));
  }
};
// Where a value is that several read, by number; what only the next step reads, or a result of the
// last one, is in registers.
constexpr int8_t kLast = -1;
struct Step {
  ScalarOp op;
  int8_t a, b, c, to;
};
struct Result {
  std::byte* data;  // dense
  int8_t from;
  Type type;
  bool packed;
};

template <typename Math, typename Fn, typename Lanes, typename... More>
__device__ __forceinline__ Lanes Map(Fn fn, const Lanes& x, const More&... more) {
  Lanes y;
  for (auto j = 0u; j < sizeof(y.v) / sizeof(y.v[0]); ++j) {
    y.v[j] = Compute<Math>(fn, x.v[j], more.v[j]...);
  }
  return y;
}

template <typename Fn, typename Lanes>
__device__ __forceinline__ Lanes Compare(Fn fn, const Lanes& a, const Lanes& b) {
  Lanes y;
  for (auto j = 0u; j < sizeof(y.v) / sizeof(y.v[0]); ++j) y.v[j] = fn(a.v[j], b.v[j]) ? 1 : 0;
  return y;
}

template <typename Math, typename Lanes>
__device__ Lanes Apply(ScalarOp op, const Lanes& a, const Lanes& b, const Lanes& c) {
  switch (op) {
    case ScalarOp::kAdd:
      return Map<Math>(AddFn(), a, b);
    case ScalarOp::kSub:
      return Map<Math>(SubFn(), a, b);
    case ScalarOp::kMul:
      return Map<Math>(MulFn(), a, b);
    case ScalarOp::kDiv:
      return Map<Math>(DivFn(), a, b);
    case ScalarOp::kPow:
      return Map<Math>(PowFn(), a, b);
    case ScalarOp::kMin:
      return Map<Math>(MinFn(), a, b);
    case ScalarOp::kMax:
      return Map<Math>(MaxFn(), a, b);
    case ScalarOp::kNeg:
      return Map<Math>(NegFn(), a);
    case ScalarOp::kAbs:
      return Map<Math>(AbsFn(), a);
    case ScalarOp::kSqrt:
      return Map<Math>(SqrtFn(), a);
    case ScalarOp::kRsqrt:
      return Map<Math>(RsqrtFn(), a);
    case ScalarOp::kReciprocal:
      return Map<Math>(ReciprocalFn(), a);
    case ScalarOp::kExp:
      return Map<Math>(ExpFn(), a);
    case ScalarOp::kLog:
      return Map<Math>(LogFn(), a);
    case ScalarOp::kSin:
      return Map<Math>(SinFn(), a);
    case ScalarOp::kCos:
      return Map<Math>(CosFn(), a);
    case ScalarOp::kTanh:
      return Map<Math>(TanhFn(), a);
    case ScalarOp::kErf:
      return Map<Math>(ErfFn(), a);
    case ScalarOp::kSigmoid:
      return Map<Math>(SigmoidFn(), a);
    case ScalarOp::kRelu:
      return Map<Math>(ReluFn(), a);
    case ScalarOp::kSilu:
      return Map<Math>(SiluFn(), a);
    case ScalarOp::kGeluTanh:
      return Map<Math>(GeluTanhFn(), a);
    case ScalarOp::kGeluErf:
      return Map<Math>(GeluErfFn(), a);
    case ScalarOp::kTanhGrad:
      return Map<Math>(TanhGradFn(), a, b);
    case ScalarOp::kSigmoidGrad:
      return Map<Math>(SigmoidGradFn(), a, b);
    case ScalarOp::kReluGrad:
      return Map<Math>(ReluGradFn(), a, b);
    case ScalarOp::kSiluGrad:
      return Map<Math>(SiluGradFn(), a, b);
    case ScalarOp::kGeluTanhGrad:
      return Map<Math>(GeluTanhGradFn(), a, b);
    case ScalarOp::kGeluErfGrad:
      return Map<Math>(GeluErfGradFn(), a, b);
    case ScalarOp::kEqual:
      return Compare(EqualFn(), a, b);
    case ScalarOp::kNotEqual:
      return Compare(NotEqualFn(), a, b);
    case ScalarOp::kLess:
      return Compare(LessFn(), a, b);
    case ScalarOp::kLessEqual:
      return Compare(LessEqualFn(), a, b);
    case ScalarOp::kGreater:
      return Compare(LessFn(), b, a);
    case ScalarOp::kGreaterEqual:
      return Compare(LessEqualFn(), b, a);
    case ScalarOp::kWhere: {
      Lanes y;
      for (auto j = 0u; j < sizeof(y.v) / sizeof(y.v[0]); ++j) {
        y.v[j] = a.v[j] != 0 ? b.v[j] : c.v[j];
      }
      return y;
    }
  }
  return a;
}

template <typename W, typename Math>
struct Fused {
  // What is found out for each element's operands and steps takes longer than most steps: halves,
  // which come 16 bytes at a time, share it among more elements.
  static constexpr bool kHalves = std::is_same_v<Math, Fast>;
  static constexpr int kN = kHalves ? 8 : 4;
  using Lanes = Pack<W, kN>;
  static constexpr int64_t kShared = 48 << 10;  // what every GPU gives a block unasked
  int num_inputs = 0, num_steps = 0, num_results = 0, num_kept = 0;
  int64_t n = 0;
  Operand inputs[ScalarProgram::kMaxInputs] = {};
  Step steps[ScalarProgram::kMaxSteps] = {};
  Result results[ScalarProgram::kMaxResults] = {};

  // The values of a thread, in packs of 16 bytes; those of neighbouring threads beside each other,
  // so that they are in different banks.
  struct Values {
    static constexpr int kPacks = kN / kPack<W>;
    Pack<W, kPack<W>>* data;
    int stride;
    __device__ explicit Values(std::byte* shared)
        : data(reinterpret_cast<Pack<W, kPack<W>>*>(shared) + threadIdx.x),
          stride(static_cast<int>(blockDim.x)) {}
    __device__ __forceinline__ Lanes Get(int value) const {
      Lanes x;
      SHARDC_UNROLL
      for (int p = 0; p < kPacks; ++p) {
        const auto pack = data[(value * kPacks + p) * stride];
        for (int j = 0; j < kPack<W>; ++j) x.v[p * kPack<W> + j] = pack.v[j];
      }
      return x;
    }
    __device__ __forceinline__ void Set(int value, const Lanes& x) const {
      SHARDC_UNROLL
      for (int p = 0; p < kPacks; ++p) {
        Pack<W, kPack<W>> pack;
        for (int j = 0; j < kPack<W>; ++j) pack.v[j] = x.v[p * kPack<W> + j];
        data[(value * kPacks + p) * stride] = pack;
      }
    }
    __device__ W& At(int value, int j) const {
      return data[(value * kPacks + j / kPack<W>)*stride].v[j % kPack<W>];
    }
  };

  // `count` elements; any numbers after them.
  template <typename T>
  __device__ void Read(int i, int64_t begin, int count, const Values& values) const {
    const Operand& in = inputs[i];
    const T* x = reinterpret_cast<const T*>(in.data);
    if (in.lie == Lie::kPacked && count == kN) {
      values.Set(i, WidenPack(LoadPack<T, kN>(x + in.Offset(begin))));
    } else if (in.lie == Lie::kSplat) {
      Lanes y;
      y.v[0] = Widen(x[in.Offset(begin)]);
      for (int j = 1; j < kN; ++j) y.v[j] = y.v[0];
      values.Set(i, y);
    } else {
      SHARDC_UNROLL_BY(1)
      for (int j = 0; j < kN; ++j) {
        values.At(i, j) = j < count ? Widen(x[in.Offset(begin + j)]) : W(0);
      }
    }
  }
  template <typename T>
  __device__ void Write(const Result& out, int64_t begin, int count, const Lanes& x) const {
    T* y = reinterpret_cast<T*>(out.data);
    if (out.packed && count == kN) {
      StorePack(y + begin, NarrowPack<T>(x));
      return;
    }
    for (int j = 0; j < kN; ++j) {
      if (j < count) y[begin + j] = Narrow<T>(x.v[j]);
    }
  }

  __device__ void operator()(int64_t item) const {
    const int64_t begin = item * kN;
    const int count = n - begin < kN ? static_cast<int>(n - begin) : kN;
    const Values values(SharedMemory());
    // Every operand is read before any result is written: one may lie over an operand.
    for (int i = 0; i < num_inputs; ++i) {
      const Type type = inputs[i].type;
      if constexpr (std::is_same_v<W, float>) {
        if (type == Type::kBF16) Read<BF16>(i, begin, count, values);
        if (type == Type::kF16) Read<F16>(i, begin, count, values);
      }
      if (type == Type::kSame && !kHalves) Read<W>(i, begin, count, values);
    }
    Lanes last;
    for (int s = 0; s < num_steps; ++s) {
      const Step& step = steps[s];
      const Lanes a = step.a == kLast ? last : values.Get(step.a);
      const Lanes b = step.b == step.a ? a : step.b == kLast ? last : values.Get(step.b);
      const Lanes c = step.c == step.a ? a : step.c == kLast ? last : values.Get(step.c);
      last = Apply<Math>(step.op, a, b, c);
      if (step.to != kLast) values.Set(step.to, last);
    }
    for (int r = 0; r < num_results; ++r) {
      const Result& out = results[r];
      const Lanes x = out.from == kLast ? last : values.Get(out.from);
      if constexpr (std::is_same_v<W, float>) {
        if (out.type == Type::kBF16) Write<BF16>(out, begin, count, x);
        if (out.type == Type::kF16) Write<F16>(out, begin, count, x);
      }
      if (out.type == Type::kSame && !kHalves) Write<W>(out, begin, count, x);
    }
  }

  // A warp's fit, however many values there are.
  static_assert((ScalarProgram::kMaxInputs + ScalarProgram::kMaxSteps) * kN * 32 * sizeof(W) <=
                kShared);
  int64_t SharedBytes(int threads) const {
    return num_kept * kN * threads * static_cast<int64_t>(sizeof(W));
  }
};

template <typename W>
bool TypeOf(DType dtype, Type* type) {
  constexpr bool kDouble = std::is_same_v<W, double>;
  *type = dtype == DType::kBF16 ? Type::kBF16 : dtype == DType::kF16 ? Type::kF16 : Type::kSame;
  return kDouble ? dtype == DType::kF64 : IsFloat(dtype) && dtype != DType::kF64;
}

// Of every value: inputs first, then what others than the next step read; or kLast.
std::vector<int8_t> Places(const ScalarProgram& program, int* kept) {
  const int values = program.inputs + static_cast<int>(program.steps.size());
  std::vector<bool> keep(static_cast<size_t>(values));
  auto read = [&](int value, int by) {
    if (value < program.inputs || value + 1 < by) keep[static_cast<size_t>(value)] = true;
  };
  for (int i = 0; i < program.inputs; ++i) read(i, values);
  for (int made = program.inputs; made < values; ++made) {
    const ScalarStep& step = program.steps[static_cast<size_t>(made - program.inputs)];
    for (int k = 0; k < InfoOf(step.op).operands; ++k)
      read(step.operands[static_cast<size_t>(k)], made);
  }
  for (int result : program.results) read(result, values);
  std::vector<int8_t> places(keep.size(), kLast);
  *kept = 0;
  for (size_t v = 0; v < keep.size(); ++v) {
    if (keep[v]) places[v] = static_cast<int8_t>((*kept)++);
  }
  return places;
}

Lie LieOf(const Walk& walk, int n, bool aligned) {
  if (walk.rank == 0) return Lie::kSplat;
  const int last = walk.rank - 1;
  const int64_t stride = walk.strides[0][last];
  // The end of the array may be less than n elements; of an inner dim it may not.
  if (last > 0 && walk.dims[last] % n != 0) return Lie::kApart;
  if (stride == 0) return Lie::kSplat;
  for (int d = 0; d < last; ++d) aligned &= walk.strides[0][d] % n == 0;
  return stride == 1 && aligned ? Lie::kPacked : Lie::kApart;
}

template <typename W, typename Math = Exact>
KernelPtr Make(const KernelRequest& r) {
  using F = Fused<W, Math>;
  ScalarProgram program = ScalarProgram::Parse(*r.call.attrs, static_cast<int>(r.call.in.size()));
  const TensorView& first = r.call.out[0];
  F f;
  f.n = first.num_elements();
  auto aligned = [](const TensorView& v) {
    return Aligned(v.data, static_cast<size_t>(DTypeSize(v.dtype)) * F::kN);
  };
  for (const TensorView& v : r.call.in) {
    Operand& in = f.inputs[f.num_inputs++];
    const auto walk = MakeWalk(first.shape, {BroadcastStrides(v.shape, first.shape)});
    if (!walk || !TypeOf<W>(v.dtype, &in.type)) return nullptr;
    in.data = v.data;
    in.small = walk->small;
    in.rank = walk->rank;
    std::copy(walk->dims, walk->dims + walk->rank, in.dims);
    std::copy(walk->strides[0], walk->strides[0] + walk->rank, in.strides);
    in.lie = LieOf(*walk, F::kN, aligned(v));
  }
  const std::vector<int8_t> places = Places(program, &f.num_kept);
  auto place = [&](int value) { return places[static_cast<size_t>(value)]; };
  for (const ScalarStep& s : program.steps) {
    const int made = program.inputs + f.num_steps;
    auto from = [&](int value) {
      return value >= program.inputs && value == made - 1 ? kLast : place(value);
    };
    const int8_t a = from(s.operands[0]);
    auto operand = [&](int k) {
      return InfoOf(s.op).operands > k ? from(s.operands[static_cast<size_t>(k)]) : a;
    };
    f.steps[f.num_steps++] = {s.op, a, operand(1), operand(2), place(made)};
  }
  for (size_t i = 0; i < program.results.size(); ++i) {
    const TensorView& v = r.call.out[i];
    Result& out = f.results[f.num_results++];
    if (!TypeOf<W>(v.dtype, &out.type)) return nullptr;
    out.data = v.data;
    out.from = place(program.results[i]);
    out.packed = aligned(v);
  }
  const int64_t items = CeilDiv(f.n, F::kN);
  Grid grid = ElementGrid(items);
  while (f.SharedBytes(grid.threads) > F::kShared) {
    grid.threads /= 2;
    grid.blocks *= 2;
  }
  return MakeKernel([f, grid, items](const Launch& launch) {
    LaunchKernel(launch, ElementsKernel<F>, grid.blocks, grid.threads,
                 static_cast<size_t>(f.SharedBytes(grid.threads)), f, items);
  });
}

KernelPtr MakeFused(const KernelRequest& r) {
  auto half = [](const TensorView& v) { return IsHalf(v.dtype); };
  if (r.call.out[0].dtype == DType::kF64) return Make<double>(r);
  return std::ranges::all_of(r.call.in, half) && std::ranges::all_of(r.call.out, half)
             ? Make<float, Fast>(r)
             : Make<float>(r);
}

constexpr Binding kBindings[] = {{"fused_elementwise", MakeFused}};

}  // namespace

std::span<const Binding> FusedElementwiseBindings() { return kBindings; }

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
