// fused_elementwise: the program is interpreted per thread, on a few neighbouring elements at once.
// Its values, which are found by number, are in shared memory: registers have no numbers, and local
// memory is slower.
#include "ir/scalar_program.h"
#include "runtime/cuda/kernels/vector.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

enum class Type : uint8_t { kSame, kBF16, kF16 };  // kSame: what is computed in

struct Operand {
  const std::byte* data;
  int64_t strides[kMaxDims];
  Type type;
  bool packed;  // dense and aligned for kN elements at a time
};
struct Step {
  ScalarOp op;
  int8_t a, b;
};
struct Result {
  std::byte* data;  // dense
  int8_t value;
  Type type;
  bool packed;
};

template <typename W>
__device__ W Apply(ScalarOp op, W a, W b) {
  switch (op) {
    case ScalarOp::kAdd:
      return AddFn()(a, b);
    case ScalarOp::kSub:
      return SubFn()(a, b);
    case ScalarOp::kMul:
      return MulFn()(a, b);
    case ScalarOp::kDiv:
      return DivFn()(a, b);
    case ScalarOp::kPow:
      return PowFn()(a, b);
    case ScalarOp::kMin:
      return MinFn()(a, b);
    case ScalarOp::kMax:
      return MaxFn()(a, b);
    case ScalarOp::kNeg:
      return NegFn()(a);
    case ScalarOp::kAbs:
      return AbsFn()(a);
    case ScalarOp::kSqrt:
      return SqrtFn()(a);
    case ScalarOp::kRsqrt:
      return RsqrtFn()(a);
    case ScalarOp::kReciprocal:
      return ReciprocalFn()(a);
    case ScalarOp::kExp:
      return ExpFn()(a);
    case ScalarOp::kLog:
      return LogFn()(a);
    case ScalarOp::kSin:
      return SinFn()(a);
    case ScalarOp::kCos:
      return CosFn()(a);
    case ScalarOp::kTanh:
      return TanhFn()(a);
    case ScalarOp::kErf:
      return ErfFn()(a);
    case ScalarOp::kSigmoid:
      return SigmoidFn()(a);
    case ScalarOp::kRelu:
      return ReluFn()(a);
    case ScalarOp::kSilu:
      return SiluFn()(a);
    case ScalarOp::kGeluTanh:
      return GeluTanhFn()(a);
    case ScalarOp::kGeluErf:
      return GeluErfFn()(a);
    case ScalarOp::kTanhGrad:
      return TanhGradFn()(a, b);
    case ScalarOp::kSigmoidGrad:
      return SigmoidGradFn()(a, b);
    case ScalarOp::kReluGrad:
      return ReluGradFn()(a, b);
    case ScalarOp::kSiluGrad:
      return SiluGradFn()(a, b);
    case ScalarOp::kGeluTanhGrad:
      return GeluTanhGradFn()(a, b);
    case ScalarOp::kGeluErfGrad:
      return GeluErfGradFn()(a, b);
  }
  return a;
}

template <typename W>
struct Fused {
  static constexpr int kN = 4;
  static constexpr int64_t kShared = 48 << 10;  // what every GPU gives a block unasked
  int rank = 0, num_inputs = 0, num_steps = 0, num_results = 0;
  int64_t n = 0;
  int64_t dims[kMaxDims] = {};
  Operand inputs[ScalarProgram::kMaxInputs] = {};
  Step steps[ScalarProgram::kMaxSteps] = {};
  Result results[ScalarProgram::kMaxResults] = {};

  // The values of a thread, those of neighbouring threads beside each other.
  struct Values {
    W* data;
    int stride;
    __device__ explicit Values(std::byte* shared)
        : data(reinterpret_cast<W*>(shared) + threadIdx.x), stride(static_cast<int>(blockDim.x)) {}
    __device__ W& At(int value, int j) const { return data[(value * kN + j) * stride]; }
  };

  template <typename T>
  __device__ void Read(int input, int64_t begin, int count, const Values& to) const {
    const Operand& in = inputs[input];
    const T* x = reinterpret_cast<const T*>(in.data);
    if (in.packed && count == kN) {
      const Pack<T, kN> pack = LoadPack<T, kN>(x + begin);
      for (int j = 0; j < kN; ++j) to.At(input, j) = Widen(pack.v[j]);
      return;
    }
    for (int j = 0; j < count; ++j) {
      int64_t left = begin + j, at = 0;
      for (int d = rank - 1; d >= 0; --d) {
        at += left % dims[d] * in.strides[d];
        left /= dims[d];
      }
      to.At(input, j) = Widen(x[at]);
    }
  }
  template <typename T>
  __device__ void Write(const Result& out, int64_t begin, int count, const Values& from) const {
    T* y = reinterpret_cast<T*>(out.data);
    if (out.packed && count == kN) {
      Pack<T, kN> pack;
      for (int j = 0; j < kN; ++j) pack.v[j] = Narrow<T>(from.At(out.value, j));
      StorePack<T, kN>(y + begin, pack);
      return;
    }
    for (int j = 0; j < count; ++j) y[begin + j] = Narrow<T>(from.At(out.value, j));
  }

  __device__ void operator()(int64_t item) const {
    const int64_t begin = item * kN;
    const int count = n - begin < kN ? static_cast<int>(n - begin) : kN;
    const Values v(SharedMemory());
    // Every operand is read before any result is written: one may lie over an operand.
    for (int i = 0; i < num_inputs; ++i) {
      if constexpr (std::is_same_v<W, float>) {
        if (inputs[i].type == Type::kBF16) Read<BF16>(i, begin, count, v);
        if (inputs[i].type == Type::kF16) Read<F16>(i, begin, count, v);
      }
      if (inputs[i].type == Type::kSame) Read<W>(i, begin, count, v);
    }
    for (int s = 0; s < num_steps; ++s) {
      const Step& step = steps[s];
      for (int j = 0; j < count; ++j) {
        v.At(num_inputs + s, j) = Apply(step.op, v.At(step.a, j), v.At(step.b, j));
      }
    }
    for (int r = 0; r < num_results; ++r) {
      if constexpr (std::is_same_v<W, float>) {
        if (results[r].type == Type::kBF16) Write<BF16>(results[r], begin, count, v);
        if (results[r].type == Type::kF16) Write<F16>(results[r], begin, count, v);
      }
      if (results[r].type == Type::kSame) Write<W>(results[r], begin, count, v);
    }
  }

  // A warp's fit, however many values there are.
  static_assert((ScalarProgram::kMaxInputs + ScalarProgram::kMaxSteps) * kN * 32 * sizeof(W) <=
                kShared);
  int64_t SharedBytes(int threads) const {
    return (num_inputs + num_steps) * kN * threads * static_cast<int64_t>(sizeof(W));
  }
};

template <typename W>
bool TypeOf(DType dtype, Type* type) {
  constexpr bool kDouble = std::is_same_v<W, double>;
  *type = dtype == DType::kBF16 ? Type::kBF16 : dtype == DType::kF16 ? Type::kF16 : Type::kSame;
  return kDouble ? dtype == DType::kF64 : IsFloat(dtype) && dtype != DType::kF64;
}

template <typename W>
KernelPtr Make(const KernelRequest& r) {
  using F = Fused<W>;
  ScalarProgram program = ScalarProgram::Parse(*r.call.attrs, static_cast<int>(r.call.in.size()));
  const TensorView& first = r.call.out[0];
  if (first.rank() > kMaxDims) return nullptr;
  F f;
  f.rank = first.rank();
  f.n = first.num_elements();
  std::copy(first.shape.begin(), first.shape.end(), f.dims);
  auto aligned = [](const TensorView& v) {
    return Aligned(v.data, static_cast<size_t>(DTypeSize(v.dtype)) * F::kN);
  };
  for (const TensorView& v : r.call.in) {
    Operand& in = f.inputs[f.num_inputs++];
    if (!TypeOf<W>(v.dtype, &in.type)) return nullptr;
    in.data = v.data;
    Ints strides = StretchedStrides(v.shape, first.shape);
    std::copy(strides.begin(), strides.end(), in.strides);
    in.packed = v.shape == first.shape && aligned(v);
  }
  for (const ScalarStep& s : program.steps) {
    f.steps[f.num_steps++] = {s.op, static_cast<int8_t>(s.operands[0]),
                              static_cast<int8_t>(s.operands[1])};
  }
  for (size_t i = 0; i < program.results.size(); ++i) {
    const TensorView& v = r.call.out[i];
    Result& out = f.results[f.num_results++];
    if (!TypeOf<W>(v.dtype, &out.type)) return nullptr;
    out.data = v.data;
    out.value = static_cast<int8_t>(program.results[i]);
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
  return r.call.out[0].dtype == DType::kF64 ? Make<double>(r) : Make<float>(r);
}

constexpr Binding kBindings[] = {{"fused_elementwise", MakeFused}};

}  // namespace

std::span<const Binding> FusedElementwiseBindings() { return kBindings; }

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
