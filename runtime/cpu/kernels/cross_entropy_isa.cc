#include "runtime/cpu/kernels/cross_entropy.h"
#include "runtime/cpu/kernels/parallel.h"
#include "runtime/cpu/kernels/vec_bf16.h"

namespace shardc::cpu::SHARDC_ISA {
namespace {

constexpr int64_t kGrain = 8192;
constexpr int64_t kBlock =
    2048;  // columns of one step of the online pass: 8 KiB, read twice from L1
constexpr float kNegInf = -__builtin_inff();

// NaN, where there is one, is left out: it reaches the sum.
template <typename X>
SHARDC_INLINE float MaxOver(const X* x, int64_t count) {
  Vec m0 = Splat(kNegInf), m1 = m0;
  int64_t c = 0;
  for (; c + 2 * kLanes <= count; c += 2 * kLanes) {
    m0 = Max(Load(x + c), m0);
    m1 = Max(Load(x + c + kLanes), m1);
  }
  ForLanes(c, count, [&](int64_t i, int64_t n) { m0 = Max(LoadN(x + i, n, kNegInf), m0); });
  return MaxOf(Max(m0, m1));
}

template <typename X>
SHARDC_INLINE float MaxOrNan(const X* x, int64_t count) {
  // The largest magnitude, as the integer of its bits: that of a NaN is above that of infinity.
  VecInt largest = {};
  const auto note = [&](Vec v) __attribute__((always_inline)) {
    const VecInt bits = (VecInt)Abs(v);
    largest = bits > largest ? bits : largest;
    return v;
  };
  Vec m0 = Splat(kNegInf), m1 = m0;
  int64_t c = 0;
  for (; c + 2 * kLanes <= count; c += 2 * kLanes) {
    m0 = Max(note(Load(x + c)), m0);
    m1 = Max(note(Load(x + c + kLanes)), m1);
  }
  ForLanes(c, count, [&](int64_t i, int64_t n) { m0 = Max(note(LoadN(x + i, n, kNegInf)), m0); });
  for (int i = 0; i < kLanes; ++i) {
    if (largest[i] > 0x7f800000) return __builtin_nanf("");
  }
  return MaxOf(Max(m0, m1));
}

template <typename X>
SHARDC_INLINE float SumExpOver(const X* x, int64_t count, float max) {
  const float shift = max == kNegInf ? 0.0f : max;
  Vec s0 = {}, s1 = {};
  int64_t c = 0;
  for (; c + 2 * kLanes <= count; c += 2 * kLanes) {
    s0 += Exp(Load(x + c) - shift);
    s1 += Exp(Load(x + c + kLanes) - shift);
  }
  ForLanes(c, count, [&](int64_t i, int64_t n) { s0 += Exp(LoadN(x + i, n, kNegInf) - shift); });
  return Sum(s0 + s1);
}

struct MaxSum {
  float max;
  double sum;
};

template <typename X>
SHARDC_INLINE MaxSum Online(const X* x, int64_t count) {
  MaxSum all = {kNegInf, 0};
  for (int64_t c = 0; c < count; c += kBlock) {
    const int64_t n = count - c < kBlock ? count - c : kBlock;
    const float max = MaxOver(x + c, n);
    if (max > all.max) {
      if (all.sum != 0) all.sum *= Exp(Splat(all.max - max))[0];
      all.max = max;
    }
    all.sum += SumExpOver(x + c, n, all.max);
  }
  return all;
}

template <typename X>
SHARDC_INLINE float TargetLogit(const LogitShard& s, int64_t r, const X* x) {
  const int64_t column = s.labels[r] - s.vocab_offset;
  if (s.labels[r] == s.ignore_index || column < 0 || column >= s.valid) return 0;
  return ToFloat(x[column]);
}

template <typename X, typename Fn>
void ForRows(const LogitShard& s, const X* logits, int threads, const Fn& fn) {
  ParallelFor(threads, s.rows, 1 + kGrain / (s.stride + 1), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) fn(r, logits + r * s.stride);
  });
}
// fn(row, its logits), these as they are.
template <typename Fn>
void ForAnyRows(const LogitShard& s, int threads, const Fn& fn) {
  if (s.logits_bf16 != nullptr) {
    ForRows(s, s.logits_bf16, threads, fn);
  } else {
    ForRows(s, s.logits, threads, fn);
  }
}

template <typename T>
void RowMax(const LogitShard& s, T* max, int threads) {
  ForAnyRows(s, threads, [&](int64_t r, const auto* x) { Put(max + r, MaxOrNan(x, s.valid)); });
}

void SumExp(const LogitShard& s, const float* max, float* sum, float* target, int threads) {
  ForAnyRows(s, threads, [&](int64_t r, const auto* x) {
    double total = 0;
    for (int64_t c = 0; c < s.valid; c += kBlock) {
      total += SumExpOver(x + c, s.valid - c < kBlock ? s.valid - c : kBlock, max[r]);
    }
    sum[r] = static_cast<float>(total);
    if (target != nullptr) target[r] = TargetLogit(s, r, x);
  });
}

// The loss of a row, and its lse.
template <typename X>
SHARDC_INLINE float LossOfRow(const LogitShard& s, int64_t r, const X* x, float* lse) {
  const MaxSum all = Online(x, s.valid);
  const double log_sum = __builtin_log(all.sum);
  *lse = static_cast<float>(all.max + log_sum);
  // Subtracting the target from the max first keeps what a large lse would round away.
  const double gap = static_cast<double>(all.max) - TargetLogit(s, r, x);
  return s.labels[r] == s.ignore_index ? 0.0f : static_cast<float>(gap + log_sum);
}

template <typename X, typename T>
SHARDC_INLINE void GradientOfRow(const LogitShard& s, int64_t r, const X* x, float g, float lse,
                                 T* d) {
  int64_t done = 0;
  if (s.labels[r] != s.ignore_index) {
    const int64_t column = s.labels[r] - s.vocab_offset;
    const bool here = column >= 0 && column < s.valid;
    // Read first: the gradients may take the place of the logits.
    const float target = here ? ToFloat(x[column]) : 0.0f;
    ForLanes(0, s.valid,
             [&](int64_t i, int64_t n) { StoreN(d + i, n, g * Exp(LoadN(x + i, n) - lse)); });
    if (here) Put(d + column, g * Exp(Splat(target - lse))[0] - g);
    done = s.valid;
  }
  for (int64_t c = done; c < s.stride; ++c) d[c] = 0;
}

void Forward(const LogitShard& s, float* loss, float* lse, int threads) {
  ForAnyRows(s, threads, [&](int64_t r, const auto* x) {
    float log_sum;
    loss[r] = LossOfRow(s, r, x, &log_sum);
    if (lse != nullptr) lse[r] = log_sum;
  });
}

template <typename T>
void Backward(const LogitShard& s, const float* d_loss, const float* lse, T* d_logits,
              int threads) {
  ForAnyRows(s, threads, [&](int64_t r, const auto* x) {
    GradientOfRow(s, r, x, d_loss[r], lse[r], d_logits + r * s.stride);
  });
}

void WithGrad(const LogitShard& s, const float* d_loss, float* loss, float* d_logits,
              uint16_t* d_logits_bf16, int threads) {
  ForAnyRows(s, threads, [&](int64_t r, const auto* x) {
    const float g = d_loss[r];
    float lse;
    loss[r] = LossOfRow(s, r, x, &lse);
    if (d_logits != nullptr) {
      GradientOfRow(s, r, x, g, lse, d_logits + r * s.stride);
    } else {
      GradientOfRow(s, r, x, g, lse, d_logits_bf16 + r * s.stride);
    }
  });
}

}  // namespace

extern const CrossEntropyKernels kCrossEntropyKernels;
const CrossEntropyKernels kCrossEntropyKernels = {
    .row_max = RowMax<float>,
    .row_max_bf16 = RowMax<uint16_t>,
    .sum_exp = SumExp,
    .forward = Forward,
    .backward = Backward<float>,
    .backward_bf16 = Backward<uint16_t>,
    .with_grad = WithGrad,
};

}  // namespace shardc::cpu::SHARDC_ISA
