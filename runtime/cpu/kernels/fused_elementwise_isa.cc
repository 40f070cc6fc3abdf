#include "runtime/cpu/kernels/elementwise_functions.h"
#include "runtime/cpu/kernels/fused_elementwise.h"
#include "runtime/cpu/kernels/parallel.h"
#include "runtime/cpu/kernels/scratch.h"

namespace shardc::cpu::SHARDC_ISA {
namespace {

// Elements of one block of a value: two dozen of them stay in the L2 cache, a few in L1.
constexpr int64_t kBlock = 1024;
constexpr int64_t kGrain = 16384;

enum class Form { kDirect, kDense, kScalar, kStrided };

// kDirect: read where it lies. Not what is also a result: another result may have overwritten it by
// the time that it is written.
Form FormOf(const FusedArgs& a, int input) {
  const FusedInput& in = a.inputs[input];
  bool dense = true, scalar = true;
  int64_t stride = 1;
  for (int d = a.rank - 1; d >= 0; --d) {
    if (a.dims[d] == 1) continue;
    dense = dense && in.strides[d] == stride;
    scalar = scalar && in.strides[d] == 0;
    stride *= a.dims[d];
  }
  if (!dense) return scalar ? Form::kScalar : Form::kStrided;
  for (int r = 0; r < a.num_results; ++r) {
    if (a.results[r].value == input) return Form::kDense;
  }
  return in.bf16 ? Form::kDense : Form::kDirect;
}

template <typename T>
void LoadDense(const T* x, int64_t n, float* out) {
  ForLanes(0, n, [&](int64_t i, int64_t count) { StoreN(out + i, count, LoadN(x + i, count)); });
}

// The elements [begin, begin + n) of the result, in row-major order.
template <typename T>
void LoadStrided(const FusedArgs& a, const FusedInput& in, const T* x, int64_t begin, int64_t n,
                 float* out) {
  const int last = a.rank - 1;
  const int64_t row = a.dims[last], step = in.strides[last];
  int64_t column = begin % row;
  for (int64_t at = begin; at < begin + n;) {
    int64_t left = at / row, offset = 0;
    for (int d = last - 1; d >= 0; --d) {
      offset += left % a.dims[d] * in.strides[d];
      left /= a.dims[d];
    }
    int64_t count = row - column;
    if (count > begin + n - at) count = begin + n - at;
    const T* from = x + offset + column * step;
    float* to = out + (at - begin);
    if (step == 1) {
      LoadDense(from, count, to);
    } else if (step == 0) {
      const float value = ToFloat(*from);
      for (int64_t i = 0; i < count; ++i) to[i] = value;
    } else {
      for (int64_t i = 0; i < count; ++i) to[i] = ToFloat(from[i * step]);
    }
    at += count;
    column = 0;
  }
}

void RunStep(const FusedStep& s, const float* a, const float* b, int64_t n, float* y) {
  const auto one = [&](const auto& fn) {
    ForLanes(0, n, [&](int64_t i, int64_t c) { StoreN(y + i, c, fn(LoadN(a + i, c))); });
  };
  const auto two = [&](const auto& fn) {
    ForLanes(0, n,
             [&](int64_t i, int64_t c) { StoreN(y + i, c, fn(LoadN(a + i, c), LoadN(b + i, c))); });
  };
  switch (s.kind) {
    case FusedStep::kUnary:
      return WithUnary(s.unary, one);
    case FusedStep::kGrad:
      return WithUnarySlope(s.grad, [&](const auto& slope) {
        two([&](Vec dy, Vec saved) { return dy * slope(saved); });
      });
    case FusedStep::kBinary:
      return WithBinary(s.binary, two);
  }
}

template <typename T>
void Put(const float* from, int64_t n, T* to) {
  ForLanes(0, n, [&](int64_t i, int64_t c) { StoreN(to + i, c, LoadN(from + i, c)); });
}

void Range(const FusedArgs& a, const Form* forms, int64_t begin, int64_t end) {
  static thread_local Scratch scratch;
  constexpr int kMaxValues = FusedArgs::kMaxInputs + FusedArgs::kMaxSteps;
  float* room = scratch.Get(kMaxValues * kBlock);
  const float* value[kMaxValues];
  for (int i = 0; i < a.num_inputs; ++i) {
    if (forms[i] != Form::kScalar) continue;
    const FusedInput& in = a.inputs[i];
    const float x = in.bf16 ? ToFloat(*static_cast<const uint16_t*>(in.data))
                            : *static_cast<const float*>(in.data);
    float* to = room + i * kBlock;
    for (int64_t k = 0; k < kBlock; ++k) to[k] = x;
    value[i] = to;
  }
  for (int64_t at = begin; at < end; at += kBlock) {
    const int64_t n = end - at < kBlock ? end - at : kBlock;
    for (int i = 0; i < a.num_inputs; ++i) {
      const FusedInput& in = a.inputs[i];
      float* to = room + i * kBlock;
      if (forms[i] == Form::kScalar) continue;
      value[i] = to;
      const auto* f32 = static_cast<const float*>(in.data);
      const auto* bf16 = static_cast<const uint16_t*>(in.data);
      if (forms[i] == Form::kDirect) {
        value[i] = f32 + at;
      } else if (forms[i] == Form::kDense) {
        in.bf16 ? LoadDense(bf16 + at, n, to) : LoadDense(f32 + at, n, to);
      } else {
        in.bf16 ? LoadStrided(a, in, bf16, at, n, to) : LoadStrided(a, in, f32, at, n, to);
      }
    }
    // Results are written last: one may lie over an input.
    for (int s = 0; s < a.num_steps; ++s) {
      float* to = room + (a.num_inputs + s) * kBlock;
      RunStep(a.steps[s], value[a.steps[s].a], value[a.steps[s].b], n, to);
      value[a.num_inputs + s] = to;
    }
    for (int r = 0; r < a.num_results; ++r) {
      const FusedResult& out = a.results[r];
      if (out.bf16) {
        Put(value[out.value], n, static_cast<uint16_t*>(out.data) + at);
      } else {
        Put(value[out.value], n, static_cast<float*>(out.data) + at);
      }
    }
  }
}

void Run(const FusedArgs& a, int threads) {
  Form forms[FusedArgs::kMaxInputs];
  for (int i = 0; i < a.num_inputs; ++i) forms[i] = FormOf(a, i);
  int64_t n = 1;
  for (int d = 0; d < a.rank; ++d) n *= a.dims[d];
  ParallelFor(
      threads, n, kGrain, [&](int64_t begin, int64_t end) { Range(a, forms, begin, end); }, 16);
}

}  // namespace

extern const FusedElementwiseKernels kFusedElementwiseKernels;
const FusedElementwiseKernels kFusedElementwiseKernels = {.run = Run};

}  // namespace shardc::cpu::SHARDC_ISA
