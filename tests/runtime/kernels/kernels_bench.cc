// Rates of the CPU kernels: bench_kernels --benchmark_filter=Attention ; SHARDC_ISA=v3 lowers the
// instruction set. The last argument of every case is the number of threads.
#include <benchmark/benchmark.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/cpu/kernels/kernel_table.h"
#include "runtime/cpu/kernels/matmul.h"
#include "runtime/cpu/kernels/matmul_bf16.h"

namespace shardc::cpu {
namespace {

std::vector<float> Data(int64_t n) {
  std::vector<float> v(static_cast<size_t>(n));
  uint32_t state = 1;
  for (float& x : v) {
    state = state * 1664525 + 1013904223;
    x = static_cast<float>(state >> 8) / static_cast<float>(1 << 23) - 1;
  }
  return v;
}

std::vector<uint16_t> HalfData(int64_t n) {
  std::vector<uint16_t> v(static_cast<size_t>(n));
  const std::vector<float> f = Data(n);
  for (size_t i = 0; i < v.size(); ++i)
    v[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(f[i]) >> 16);
  return v;
}

template <typename T>
std::vector<T> DataOf(int64_t n) {
  if constexpr (sizeof(T) == 2) {
    return HalfData(n);
  } else {
    return Data(n);
  }
}

void Rate(benchmark::State& state, const char* unit, double work) {
  state.counters[unit] = benchmark::Counter(work * static_cast<double>(state.iterations()),
                                            benchmark::Counter::kIsRate);
}

void Matmul(benchmark::State& state) {
  MatmulConfig c{.m = state.range(0), .n = state.range(1), .k = state.range(2)};
  c.transpose_a = state.range(3) == 1;
  c.transpose_b = state.range(3) == 2;
  c.pack_b = state.range(4) != 0;
  c.threads = static_cast<int>(state.range(5));
  const auto a = Data(c.m * c.k), b = Data(c.k * c.n);
  std::vector<float> out(static_cast<size_t>(c.m * c.n));
  MatmulF32 matmul = MatmulF32::Create(c);
  matmul.PackB(b.data());
  for (auto _ : state) matmul.Execute(a.data(), b.data(), nullptr, out.data());
  Rate(state, "flops", 2.0 * static_cast<double>(c.m * c.n) * static_cast<double>(c.k));
  state.SetLabel(matmul.implementation());
}
// m, n, k, transposed (1: A, 2: B), packed, threads: GPT-2 124M at 2048 tokens.
BENCHMARK(Matmul)
    ->ArgsProduct({{2048}, {2304}, {768}, {0}, {0, 1}, {1, 2}})
    ->ArgsProduct({{2048}, {768}, {3072}, {0}, {0, 1}, {1, 2}})
    ->ArgsProduct({{2048}, {50257}, {768}, {2}, {0, 1}, {1, 2}})
    ->ArgsProduct({{768}, {3072}, {2048}, {1}, {0}, {1, 2}})
    ->UseRealTime();

void MatmulHalf(benchmark::State& state) {
  MatmulBf16Config c{.m = state.range(0), .n = state.range(1), .k = state.range(2)};
  c.transpose_a = state.range(3) == 1;
  c.transpose_b = state.range(3) == 2;
  c.result_f32 = c.transpose_a;
  c.threads = static_cast<int>(state.range(4));
  const auto a = HalfData(c.m * c.k), b = HalfData(c.k * c.n);
  std::vector<float> out(static_cast<size_t>(c.m * c.n));
  auto matmul = MatmulBf16::Create(c);
  if (!matmul) return state.SkipWithError("no product in bf16 here");
  for (auto _ : state) matmul->Execute(a.data(), b.data(), nullptr, out.data());
  Rate(state, "flops", 2.0 * static_cast<double>(c.m * c.n) * static_cast<double>(c.k));
  state.SetLabel(matmul->implementation());
}
// m, n, k, transposed (1: A, 2: B), threads.
BENCHMARK(MatmulHalf)
    ->ArgsProduct({{2048}, {2304}, {768}, {0, 2}, {2}})
    ->ArgsProduct({{2048}, {768}, {3072}, {0, 2}, {2}})
    ->ArgsProduct({{768}, {768, 2304, 3072}, {2048}, {1}, {2}})
    ->ArgsProduct({{3072}, {768}, {2048}, {1}, {2}})
    ->ArgsProduct({{2048}, {50257}, {768}, {2}, {2}})
    ->ArgsProduct({{2048}, {768}, {50257}, {0}, {2}})
    ->ArgsProduct({{50257}, {768}, {2048}, {1}, {2}})
    ->UseRealTime();

// All matrix products of a forward and backward pass of GPT-2 124M, alone: what a step takes at
// least. Arguments: tokens, bf16, threads.
void Gpt2Products(benchmark::State& state) {
  struct Product {
    int64_t m, n, k;
    int transposed;  // 1: A, 2: B
    int times;
  };
  const int64_t t = state.range(0), h = 768, vocab = 50257;
  const bool half = state.range(1) != 0;
  const int threads = static_cast<int>(state.range(2));
  std::vector<Product> products;
  for (auto [in, out] : {std::pair{h, 3 * h}, {h, h}, {h, 4 * h}, {4 * h, h}}) {
    products.push_back({t, out, in, 0, 12});  // y = x w
    products.push_back({t, in, out, 2, 12});  // dx = dy w^T
    products.push_back({in, out, t, 1, 12});  // dw = x^T dy
  }
  products.push_back({t, vocab, h, 2, 1});
  products.push_back({t, h, vocab, 0, 1});
  products.push_back({vocab, h, t, 1, 1});
  std::vector<std::function<void()>> runs;
  const auto a = Data(t * vocab), b = Data(vocab * h);
  const auto ha = HalfData(t * vocab), hb = HalfData(vocab * h);
  std::vector<float> c(static_cast<size_t>(t * vocab));
  double flops = 0;
  for (const Product& p : products) {
    std::function<void()> run;
    if (half) {
      MatmulBf16Config config{.m = p.m, .n = p.n, .k = p.k};
      config.transpose_a = p.transposed == 1;
      config.transpose_b = p.transposed == 2;
      config.result_f32 = p.transposed != 0 || p.k == vocab;
      config.threads = threads;
      std::shared_ptr<MatmulBf16> matmul = MatmulBf16::Create(config);
      if (!matmul) return state.SkipWithError("no product in bf16 here");
      run = [&, matmul] { matmul->Execute(ha.data(), hb.data(), nullptr, c.data()); };
    } else {
      MatmulConfig config{.m = p.m, .n = p.n, .k = p.k};
      config.transpose_a = p.transposed == 1;
      config.transpose_b = p.transposed == 2;
      config.threads = threads;
      auto matmul = std::make_shared<MatmulF32>(MatmulF32::Create(config));
      run = [&, matmul] { matmul->Execute(a.data(), b.data(), nullptr, c.data()); };
    }
    for (int i = 0; i < p.times; ++i) runs.push_back(run);
    flops += 2.0 * static_cast<double>(p.m * p.n) * static_cast<double>(p.k) * p.times;
  }
  for (auto _ : state) {
    for (const auto& run : runs) run();
  }
  Rate(state, "flops", flops);
}
BENCHMARK(Gpt2Products)->ArgsProduct({{2048}, {0, 1}, {2}})->UseRealTime();

// Operands and results of attention on q, k and v side by side, with dropout if the fourth range is
// not zero.
template <typename T, bool kBackward, typename Kernel>
void Attention(benchmark::State& state, const Kernel& kernel) {
  const int64_t h = 12, s = state.range(0), d = state.range(1), width = 3 * h * d;
  const bool causal = state.range(2) != 0;
  const int threads = static_cast<int>(state.range(4));
  const auto qkv = DataOf<T>(s * width), d_o = DataOf<T>(s * h * d);
  auto o = DataOf<T>(s * h * d), d_qkv = DataOf<T>(s * width);
  std::vector<float> lse(h * s, 6.0F);
  const HeadStrides in{s * width, width, d}, out{s * h * d, h * d, d};
  std::vector<int64_t> batch = {0}, head(h), query(s);
  for (int64_t i = 0; i < h; ++i) head[i] = i * s * s;
  for (int64_t i = 0; i < s; ++i) query[i] = i * s;
  std::conditional_t<kBackward, AttentionBackwardArgsOf<T>, AttentionForwardArgsOf<T>> a;
  a.shape = {1, h, h, s, s, d, d, 1 / std::sqrt(static_cast<float>(d)), causal};
  if (state.range(3) != 0) {
    a.dropout = {{1, 2, 3, 1U << 29}, 8.0F / 7, batch.data(), head.data(), query.data()};
  }
  a.q = qkv.data(), a.k = a.q + h * d, a.v = a.k + h * d;
  a.q_strides = a.k_strides = a.v_strides = in;
  a.o = o.data(), a.o_strides = out, a.lse = lse.data();
  if constexpr (kBackward) {
    a.d_o = d_o.data(), a.d_o_strides = out;
    a.dq = d_qkv.data(), a.dk = a.dq + h * d, a.dv = a.dk + h * d;
    a.dq_strides = a.dk_strides = a.dv_strides = in;
  }
  for (auto _ : state) kernel(a, threads);
  const double pairs = static_cast<double>(causal ? s * (s + 1) / 2 : s * s);
  Rate(state, "flops", (kBackward ? 10 : 4) * pairs * static_cast<double>(d * h));
}
void AttentionForward(benchmark::State& state) {
  Attention<float, false>(state, Kernels().attention.forward);
}
void AttentionBackward(benchmark::State& state) {
  Attention<float, true>(state, Kernels().attention.backward);
}
void AttentionForwardBf16(benchmark::State& state) {
  Attention<uint16_t, false>(state, Kernels().attention.forward_bf16);
}
void AttentionBackwardBf16(benchmark::State& state) {
  Attention<uint16_t, true>(state, Kernels().attention.backward_bf16);
}
void AttentionCases(benchmark::internal::Benchmark* b) {
  b->ArgNames({"s", "d", "causal", "dropout", "threads"});
  b->ArgsProduct({{128, 512, 1024}, {64}, {0, 1}, {0, 1}, {1, 2}})->UseRealTime();
}
BENCHMARK(AttentionForward)->Apply(AttentionCases);
BENCHMARK(AttentionBackward)->Apply(AttentionCases);
BENCHMARK(AttentionForwardBf16)->Apply(AttentionCases);
BENCHMARK(AttentionBackwardBf16)->Apply(AttentionCases);

void LayerNorm(benchmark::State& state) {
  const int64_t rows = 2048, cols = 768;
  const auto x = Data(rows * cols), w = Data(cols);
  std::vector<float> y(x.size());
  for (auto _ : state) {
    Kernels().norm.layer_norm_forward(
        {.x = x.data(), .w = w.data(), .b = w.data(), .y = y.data(), .rows = rows, .cols = cols},
        static_cast<int>(state.range(0)));
  }
  Rate(state, "bytes", 8.0 * rows * cols);
}
BENCHMARK(LayerNorm)->Arg(1)->Arg(2)->UseRealTime();

void GeluTanh(benchmark::State& state) {
  const int64_t n = 2048 * 3072;
  const auto x = Data(n);
  std::vector<float> y(x.size());
  for (auto _ : state) {
    Kernels().elementwise.unary(UnaryOp::kGeluTanh, x.data(), y.data(), n,
                                static_cast<int>(state.range(0)));
  }
  Rate(state, "bytes", 8.0 * n);
}
BENCHMARK(GeluTanh)->Arg(1)->Arg(2)->UseRealTime();

void CrossEntropy(benchmark::State& state) {
  const int64_t rows = 512, vocab = 50257;
  const auto logits = Data(rows * vocab);
  const std::vector<int64_t> labels(rows, 7);
  std::vector<float> loss(rows), lse(rows);
  for (auto _ : state) {
    Kernels().cross_entropy.forward({logits.data(), rows, vocab, vocab, labels.data(), 0, -100},
                                    loss.data(), lse.data(), static_cast<int>(state.range(0)));
  }
  Rate(state, "bytes", 4.0 * rows * vocab);
}
BENCHMARK(CrossEntropy)->Arg(1)->Arg(2)->UseRealTime();

void AdamW(benchmark::State& state) {
  const int64_t n = 1 << 24;
  auto w = Data(n), m = Data(n), v = std::vector<float>(n, 1.0F);
  const auto g = Data(n);
  for (auto _ : state) {
    Kernels().optimizer.adamw({.w = w.data(), .g = g.data(), .m = m.data(), .v = v.data(), .n = n},
                              static_cast<int>(state.range(0)));
  }
  Rate(state, "bytes", 28.0 * n);
}
BENCHMARK(AdamW)->Arg(1)->Arg(2)->UseRealTime();

}  // namespace
}  // namespace shardc::cpu
