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
  return in.type == FusedType::kF32 ? Form::kDirect : Form::kDense;
}

// fn(pointer to the elements).
template <typename Fn>
SHARDC_INLINE void WithType(FusedType type, const void* data, const Fn& fn) {
  switch (type) {
    case FusedType::kF32:
      return fn(static_cast<const float*>(data));
    case FusedType::kBf16:
      return fn(static_cast<const uint16_t*>(data));
    case FusedType::kBool:
      return fn(static_cast<const uint8_t*>(data));
  }
}

SHARDC_INLINE float AsFloat(float x) { return x; }
SHARDC_INLINE float AsFloat(uint16_t x) { return ToFloat(x); }
SHARDC_INLINE float AsFloat(uint8_t x) { return x != 0 ? 1.0F : 0.0F; }

template <typename T>
void LoadDense(const T* x, int64_t n, float* out) {
  ForLanes(0, n, [&](int64_t i, int64_t count) { StoreN(out + i, count, LoadN(x + i, count)); });
}
void LoadDense(const uint8_t* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = AsFloat(x[i]);
}

// The elements [begin, begin + n) of the result, in row-major order.
template <typename T>
void LoadStrided(const FusedArgs& a, const FusedInput& in, const T* x, int64_t begin, int64_t n,
                 float* out) {
  const int last = a.rank - 1;
  const int64_t row = a.dims[last], step = in.strides[last];
  int64_t column = begin % row, index[FusedArgs::kMaxDims] = {}, offset = 0, left = begin / row;
  for (int d = last - 1; d >= 0; --d) {
    index[d] = left % a.dims[d];
    offset += index[d] * in.strides[d];
    left /= a.dims[d];
  }
  for (int64_t at = 0; at < n;) {
    int64_t count = row - column;
    if (count > n - at) count = n - at;
    const T* from = x + offset + column * step;
    float* to = out + at;
    if (step == 1) {
      LoadDense(from, count, to);
    } else if (step == 0) {
      const float value = AsFloat(*from);
      for (int64_t i = 0; i < count; ++i) to[i] = value;
    } else {
      for (int64_t i = 0; i < count; ++i) to[i] = AsFloat(from[i * step]);
    }
    at += count;
    column = 0;
    // The next row: a division for each would cost more than short rows do.
    for (int d = last - 1; d >= 0; --d) {
      offset += in.strides[d];
      if (++index[d] < a.dims[d]) break;
      offset -= in.strides[d] * a.dims[d];
      index[d] = 0;
    }
  }
}

template <typename Fn>
void WithCompare(CompareOp op, const Fn& fn) {
  const auto as = [&](const auto& compare) {
    fn([&](Vec a, Vec b) { return compare(a, b) ? Splat(1) : Vec{}; });
  };
  switch (op) {
    case CompareOp::kEqual:
      return as([](Vec a, Vec b) { return a == b; });
    case CompareOp::kNotEqual:
      return as([](Vec a, Vec b) { return a != b; });
    case CompareOp::kLess:
      return as([](Vec a, Vec b) { return a < b; });
    case CompareOp::kLessEqual:
      return as([](Vec a, Vec b) { return a <= b; });
    case CompareOp::kGreater:
      return as([](Vec a, Vec b) { return a > b; });
    case CompareOp::kGreaterEqual:
      return as([](Vec a, Vec b) { return a >= b; });
  }
}

void RunStep(const FusedStep& s, const float* a, const float* b, const float* c, int64_t n,
             float* y) {
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
    case FusedStep::kCompare:
      return WithCompare(s.compare, two);
    case FusedStep::kSelect:
      return ForLanes(0, n, [&](int64_t i, int64_t k) {
        StoreN(y + i, k, LoadN(c + i, k) != Vec{} ? LoadN(a + i, k) : LoadN(b + i, k));
      });
  }
}

template <typename T>
void Put(const float* from, int64_t n, T* to) {
  ForLanes(0, n, [&](int64_t i, int64_t c) { StoreN(to + i, c, LoadN(from + i, c)); });
}
void Put(const float* from, int64_t n, uint8_t* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = from[i] != 0;
}

void Range(const FusedArgs& a, const Form* forms, int64_t begin, int64_t end) {
  static thread_local Scratch scratch;
  constexpr int kMaxValues = FusedArgs::kMaxInputs + FusedArgs::kMaxSteps;
  float* room = scratch.Get(kMaxValues * kBlock);
  const float* value[kMaxValues];
  for (int i = 0; i < a.num_inputs; ++i) {
    if (forms[i] != Form::kScalar) continue;
    const FusedInput& in = a.inputs[i];
    float x = 0;
    WithType(in.type, in.data, [&](const auto* data) { x = AsFloat(*data); });
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
      if (forms[i] == Form::kDirect) {
        value[i] = static_cast<const float*>(in.data) + at;
        continue;
      }
      WithType(in.type, in.data, [&](const auto* data) {
        forms[i] == Form::kDense ? LoadDense(data + at, n, to)
                                 : LoadStrided(a, in, data, at, n, to);
      });
    }
    // Results are written last: one may lie over an input.
    for (int s = 0; s < a.num_steps; ++s) {
      float* to = room + (a.num_inputs + s) * kBlock;
      const FusedStep& step = a.steps[s];
      RunStep(step, value[step.a], value[step.b], value[step.c], n, to);
      value[a.num_inputs + s] = to;
    }
    for (int r = 0; r < a.num_results; ++r) {
      const FusedResult& out = a.results[r];
      const float* from = value[out.value];
      switch (out.type) {
        case FusedType::kF32:
          Put(from, n, static_cast<float*>(out.data) + at);
          break;
        case FusedType::kBf16:
          Put(from, n, static_cast<uint16_t*>(out.data) + at);
          break;
        case FusedType::kBool:
          Put(from, n, static_cast<uint8_t*>(out.data) + at);
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
