#include <algorithm>
#include <limits>
#include <optional>

#include "ir/philox.h"
#include "tests/runtime/kernels/kernel_test_util.h"

namespace shardc::cpu {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

enum class Layout { kBshd, kBhsd, kFused };
enum class Mask {
  kNone,
  kAddFull,
  kAddKeys,
  kVisible,
  kVisibleScattered,
  kWindow,     // most blocks are hidden, or left as they are
  kAddWindow,  // of finite numbers, for each head another one
  kPadding,
};

struct Case {
  int64_t batch, q_heads, kv_heads, q_len, kv_len, d;
  bool causal;
  Layout layout;
  Mask mask;
  double dropout = -1;                             // the ratio; below zero there is none
  std::optional<int64_t> diagonal = std::nullopt;  // nothing: the ends of queries and keys meet
  int64_t value_dim = d;                           // of v and o; d is that of q and k
};
int64_t Diagonal(const Case& c) { return c.diagonal.value_or(c.kv_len - c.q_len); }

// One tensor [b, s, h, d] in some layout.
struct Tensor {
  std::vector<float> data;
  HeadStrides strides;
  int64_t offset = 0;
  size_t At(int64_t b, int64_t s, int64_t h, int64_t c) const {
    return static_cast<size_t>(offset + b * strides.batch + s * strides.seq + h * strides.head + c);
  }
};

Tensor Make(const Case& c, int64_t s, int64_t h, int64_t d, uint64_t seed) {
  Tensor t;
  int64_t width = h * d;
  if (c.layout == Layout::kBhsd) {
    t.strides = {h * s * d, d, s * d};
  } else {
    if (c.layout == Layout::kFused) {
      t.offset = 5;
      width += 7;  // a slice of something wider
    }
    t.strides = {s * width, width, d};
  }
  t.data = RandomVector(c.batch * s * width + t.offset, seed, 2);
  return t;
}

struct Reference {
  std::vector<double> o, lse, dq, dk, dv;  // [b, s, h, d] dense; lse [b, h, s]
};

struct MaskData {
  std::vector<float> add;
  std::vector<uint8_t> visible;
  AttentionMask mask;
  double Value(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const auto at =
        static_cast<size_t>(b * mask.batch + h * mask.head + i * mask.query + j * mask.key);
    if (mask.add != nullptr) return add[at];
    if (mask.visible != nullptr) return visible[at] != 0 ? 0 : -kInf;
    return 0;
  }
};

MaskData MakeMask(const Case& c) {
  MaskData m;
  const int64_t full = c.q_len * c.kv_len;
  switch (c.mask) {
    case Mask::kNone:
      break;
    case Mask::kAddFull:
      m.add = RandomVector(c.q_heads * full, 77, 3);
      for (size_t i = 0; i < m.add.size(); i += 5) m.add[i] = -static_cast<float>(kInf);
      m.mask.head = full;
      m.mask.query = c.kv_len;
      m.mask.key = 1;
      break;
    case Mask::kAddKeys:
      m.add = RandomVector(c.batch * c.kv_len, 78, 3);
      m.mask.batch = c.kv_len;
      m.mask.key = 1;
      break;
    case Mask::kVisible:
    case Mask::kVisibleScattered: {
      const int64_t step = c.mask == Mask::kVisible ? 1 : 3;
      m.visible.assign(static_cast<size_t>(c.batch * full * step), 0);
      for (size_t i = 0; i < m.visible.size(); ++i) m.visible[i] = i * 2654435761U % 7 > 2;
      m.mask.batch = full * step;
      m.mask.query = c.kv_len * step;
      m.mask.key = step;
      // The second query of the first batch sees nothing.
      for (int64_t j = 0; j < c.kv_len && c.q_len > 1; ++j) {
        m.visible[static_cast<size_t>(m.mask.query + j * step)] = 0;
      }
      break;
    }
    case Mask::kWindow:
      for (int64_t i = 0; i < full; ++i) {
        const int64_t query = i / c.kv_len, key = i % c.kv_len;
        m.visible.push_back(key > query - 90 && key < query + 70);
      }
      m.mask.query = c.kv_len;
      m.mask.key = 1;
      break;
    case Mask::kAddWindow:
      for (int64_t n = 0; n < c.q_heads * full; ++n) {
        const int64_t h = n / full, i = n / c.kv_len % c.q_len, j = n % c.kv_len;
        const bool seen = j <= i && i < j + 30 * (h + 1);
        m.add.push_back(seen ? -0.01F * static_cast<float>(i - j)
                             : std::numeric_limits<float>::lowest());
      }
      m.mask.head = full;
      m.mask.query = c.kv_len;
      m.mask.key = 1;
      break;
    case Mask::kPadding:
      for (int64_t n = 0; n < c.batch * c.kv_len; ++n) {
        const int64_t b = n / c.kv_len, j = n % c.kv_len;
        m.add.push_back(j < c.kv_len / (b + 2) ? 0 : std::numeric_limits<float>::lowest());
      }
      m.mask.batch = c.kv_len;
      m.mask.key = 1;
      break;
  }
  m.mask.add = m.add.empty() ? nullptr : m.add.data();
  m.mask.visible = m.visible.empty() ? nullptr : m.visible.data();
  return m;
}

// Places as those of a part that is cut along every dim but the last.
struct DropoutData {
  std::vector<int64_t> batch, head, query;
  AttentionDropout dropout;

  explicit DropoutData(const Case& c) {
    if (c.dropout < 0) return;
    for (int64_t b = 0; b < c.batch; ++b) batch.push_back((int64_t{3} << 33) + b * 1000003);
    for (int64_t h = 0; h < c.q_heads; ++h) head.push_back((h * h + 1) * 10007);
    // As rows of the whole keys, and in no order.
    for (int64_t i = 0; i < c.q_len; ++i) query.push_back((i * 7 % c.q_len) * c.kv_len);
    dropout.draw = {0x123456789abcdef0u, 5, 9,
                    static_cast<uint32_t>(std::min(c.dropout * 0x1p32, 0x1p32 - 1))};
    dropout.scale = c.dropout < 1 ? static_cast<float>(1 / (1 - c.dropout)) : 0;
    dropout.batch = batch.data(), dropout.head = head.data(), dropout.query = query.data();
  }
  double Factor(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (batch.empty()) return 1;
    const auto at = static_cast<uint64_t>(batch[b] + head[h] + query[i] + j);
    const DropoutDraw& d = dropout.draw;
    const auto words = Philox4x32(
        {static_cast<uint32_t>(at / 4), static_cast<uint32_t>(at >> 34), d.stream, d.step},
        {static_cast<uint32_t>(d.seed), static_cast<uint32_t>(d.seed >> 32)});
    return words[at % 4] >= d.threshold ? double{dropout.scale} : 0;
  }
};

Reference Compute(const Case& c, const Tensor& q, const Tensor& k, const Tensor& v,
                  const Tensor& d_o, const MaskData& mask, const DropoutData& dropout,
                  double scale) {
  Reference r;
  const int64_t queries = c.batch * c.q_len * c.q_heads, keys = c.batch * c.kv_len * c.kv_heads;
  r.o.assign(queries * c.value_dim, 0);
  r.dq.assign(queries * c.d, 0);
  r.dk.assign(keys * c.d, 0);
  r.dv.assign(keys * c.value_dim, 0);
  r.lse.assign(static_cast<size_t>(c.batch * c.q_heads * c.q_len), -kInf);
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t h = 0; h < c.q_heads; ++h) {
      const int64_t g = h / (c.q_heads / c.kv_heads);
      const auto qi = [&](int64_t i) { return (b * c.q_len + i) * c.q_heads + h; };
      const auto kj = [&](int64_t j) { return (b * c.kv_len + j) * c.kv_heads + g; };
      for (int64_t i = 0; i < c.q_len; ++i) {
        std::vector<double> s(static_cast<size_t>(c.kv_len), -kInf), dp(s.size(), 0);
        double max = -kInf, sum = 0;
        for (int64_t j = 0; j < c.kv_len; ++j) {
          if (c.causal && j > i + Diagonal(c)) continue;
          double dot = 0;
          for (int64_t x = 0; x < c.d; ++x) {
            dot += double{q.data[q.At(b, i, h, x)]} * k.data[k.At(b, j, g, x)];
          }
          for (int64_t x = 0; x < c.value_dim; ++x) {
            dp[j] += double{d_o.data[d_o.At(b, i, h, x)]} * v.data[v.At(b, j, g, x)];
          }
          s[j] = dot * scale + mask.Value(b, h, i, j);
          dp[j] *= dropout.Factor(b, h, i, j);
          max = std::max(max, s[j]);
        }
        if (max == -kInf) continue;
        for (double x : s) sum += std::exp(x - max);
        r.lse[(b * c.q_heads + h) * c.q_len + i] = max + std::log(sum);
        double delta = 0;
        for (int64_t j = 0; j < c.kv_len; ++j) delta += std::exp(s[j] - max) / sum * dp[j];
        for (int64_t j = 0; j < c.kv_len; ++j) {
          const double p = std::exp(s[j] - max) / sum;
          const double ds = p * (dp[j] - delta) * scale;
          const double kept = p * dropout.Factor(b, h, i, j);
          for (int64_t x = 0; x < c.d; ++x) {
            r.dq[qi(i) * c.d + x] += ds * k.data[k.At(b, j, g, x)];
            r.dk[kj(j) * c.d + x] += ds * q.data[q.At(b, i, h, x)];
          }
          for (int64_t x = 0; x < c.value_dim; ++x) {
            r.o[qi(i) * c.value_dim + x] += kept * v.data[v.At(b, j, g, x)];
            r.dv[kj(j) * c.value_dim + x] += kept * d_o.data[d_o.At(b, i, h, x)];
          }
        }
      }
    }
  }
  return r;
}

std::vector<float> Dense(const Case& c, const Tensor& t, int64_t s, int64_t h, int64_t d) {
  std::vector<float> out;
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t i = 0; i < s; ++i) {
      for (int64_t n = 0; n < h; ++n) {
        for (int64_t x = 0; x < d; ++x) out.push_back(t.data[t.At(b, i, n, x)]);
      }
    }
  }
  return out;
}

void Check(const Case& c) {
  SCOPED_TRACE(testing::Message() << c.batch << " " << c.q_heads << "/" << c.kv_heads << " "
                                  << c.q_len << "x" << c.kv_len << " d" << c.d << "/" << c.value_dim
                                  << " causal " << c.causal << " from " << Diagonal(c) << " layout "
                                  << static_cast<int>(c.layout) << " mask "
                                  << static_cast<int>(c.mask) << " dropout " << c.dropout);
  const float scale = 1 / std::sqrt(static_cast<float>(c.d));
  const auto of_queries = [&](int64_t d, uint64_t seed) {
    return Make(c, c.q_len, c.q_heads, d, seed);
  };
  const auto of_keys = [&](int64_t d, uint64_t seed) {
    return Make(c, c.kv_len, c.kv_heads, d, seed);
  };
  const Tensor q = of_queries(c.d, 1), k = of_keys(c.d, 2);
  const Tensor v = of_keys(c.value_dim, 3), d_o = of_queries(c.value_dim, 4);
  const MaskData mask = MakeMask(c);
  const DropoutData dropout(c);
  const Reference want = Compute(c, q, k, v, d_o, mask, dropout, scale);
  ForEveryKernelSet([&](const KernelTable& kernels, int threads) {
    Tensor o = of_queries(c.value_dim, 5), dq = of_queries(c.d, 6);
    Tensor dk = of_keys(c.d, 7), dv = of_keys(c.value_dim, 8);
    std::vector<float> lse(want.lse.size(), 9);
    AttentionForwardArgs f;
    f.shape = {c.batch, c.q_heads,   c.kv_heads, c.q_len,  c.kv_len,
               c.d,     c.value_dim, scale,      c.causal, Diagonal(c)};
    f.q = q.data.data() + q.offset, f.q_strides = q.strides;
    f.k = k.data.data() + k.offset, f.k_strides = k.strides;
    f.v = v.data.data() + v.offset, f.v_strides = v.strides;
    f.mask = mask.mask;
    f.dropout = dropout.dropout;
    f.o = o.data.data() + o.offset, f.o_strides = o.strides;
    f.lse = lse.data();
    kernels.attention.forward(f, threads);
    ExpectNear(Dense(c, o, c.q_len, c.q_heads, c.value_dim), want.o, 1e-5, 1e-5, "o");
    ExpectNear(lse, want.lse, 1e-5, 1e-5, "lse");
    AttentionBackwardArgs g;
    g.shape = f.shape;
    g.q = f.q, g.q_strides = f.q_strides;
    g.k = f.k, g.k_strides = f.k_strides;
    g.v = f.v, g.v_strides = f.v_strides;
    g.mask = f.mask;
    g.dropout = f.dropout;
    g.o = f.o, g.o_strides = f.o_strides;
    g.lse = lse.data();
    g.d_o = d_o.data.data() + d_o.offset, g.d_o_strides = d_o.strides;
    g.dq = dq.data.data() + dq.offset, g.dq_strides = dq.strides;
    g.dk = dk.data.data() + dk.offset, g.dk_strides = dk.strides;
    g.dv = dv.data.data() + dv.offset, g.dv_strides = dv.strides;
    kernels.attention.backward(g, threads);
    ExpectNear(Dense(c, dq, c.q_len, c.q_heads, c.d), want.dq, 3e-5, 3e-5, "dq");
    ExpectNear(Dense(c, dk, c.kv_len, c.kv_heads, c.d), want.dk, 3e-5, 3e-5, "dk");
    ExpectNear(Dense(c, dv, c.kv_len, c.kv_heads, c.value_dim), want.dv, 3e-5, 3e-5, "dv");
    // The same bits again, and nothing written between the slices.
    const Tensor dk_first = dk, dq_first = dq, o_first = o;
    kernels.attention.forward(f, threads);
    kernels.attention.backward(g, threads);
    EXPECT_TRUE(SameBits(o.data, o_first.data));
    EXPECT_TRUE(SameBits(dk.data, dk_first.data));
    EXPECT_TRUE(SameBits(dq.data, dq_first.data));
    if (c.layout == Layout::kFused) {
      const Tensor fresh = of_keys(c.d, 7);
      for (size_t i = 0; i < 5; ++i) EXPECT_EQ(dk.data[i], fresh.data[i]);
      for (size_t i = dk.At(0, 0, 0, c.kv_heads * c.d); i < dk.At(0, 1, 0, 0); ++i) {
        EXPECT_EQ(dk.data[i], fresh.data[i]);
      }
    }
  });
}

TEST(Attention, PlainAndCausal) {
  for (bool causal : {false, true}) {
    Check({2, 3, 3, 64, 64, 16, causal, Layout::kBshd, Mask::kNone});
    Check({1, 2, 2, 131, 131, 64, causal, Layout::kFused, Mask::kNone});
    Check({1, 1, 1, 257, 257, 24, causal, Layout::kBhsd, Mask::kNone});
    Check({2, 2, 2, 1, 1, 3, causal, Layout::kBshd, Mask::kNone});
  }
}

TEST(Attention, QueryAndKeyLengthsDiffer) {
  for (bool causal : {false, true}) {
    Check({1, 2, 2, 5, 133, 17, causal, Layout::kFused, Mask::kNone});
    Check(
        {1, 2, 2, 100, 65, 20, causal, Layout::kBshd, Mask::kNone});  // causal: 35 rows see nothing
    Check({1, 1, 1, 1, 200, 32, causal, Layout::kBhsd, Mask::kNone});
  }
}

TEST(Attention, GroupedQueries) {
  for (bool causal : {false, true}) {
    Check({1, 6, 2, 70, 70, 16, causal, Layout::kFused, Mask::kNone});
    Check({1, 4, 1, 130, 130, 8, causal, Layout::kBhsd, Mask::kNone});
  }
}

// As in multi-head latent attention.
TEST(Attention, ValuesOfAnotherSize) {
  for (bool causal : {false, true}) {
    for (auto [d, value_dim] : {std::pair<int64_t, int64_t>{48, 32}, {17, 40}, {3, 1}}) {
      Check({.batch = 2,
             .q_heads = 4,
             .kv_heads = 2,
             .q_len = 70,
             .kv_len = 131,
             .d = d,
             .causal = causal,
             .layout = Layout::kFused,
             .mask = Mask::kVisible,
             .dropout = 0.2,
             .value_dim = value_dim});
      Check({.batch = 1,
             .q_heads = 1,
             .kv_heads = 1,
             .q_len = 130,
             .kv_len = 65,
             .d = d,
             .causal = causal,
             .layout = Layout::kBhsd,
             .mask = Mask::kNone,
             .value_dim = value_dim});
    }
  }
}

TEST(Attention, Masks) {
  for (bool causal : {false, true}) {
    for (Mask mask : {Mask::kAddFull, Mask::kAddKeys, Mask::kVisible, Mask::kVisibleScattered}) {
      Check({2, 2, 1, 67, 67, 12, causal, Layout::kBshd, mask});
      Check({1, 2, 2, 3, 90, 33, causal, Layout::kFused, mask});
    }
  }
}

TEST(Attention, MasksOfWholeBlocks) {
  for (bool causal : {false, true}) {
    for (Mask mask : {Mask::kWindow, Mask::kAddWindow, Mask::kPadding}) {
      Check({1, 2, 1, 203, 203, 12, causal, Layout::kBshd, mask});
      Check({2, 1, 1, 150, 150, 8, causal, Layout::kBhsd, mask, 0.2});
    }
  }
}

// Nothing is computed of blocks that no query sees; but where all keys of a row have the same mask,
// however low, it sees all.
TEST(Attention, HiddenBlocksAreLeftOut) {
  constexpr int64_t kSize = 200, kSeen = 64, kDim = 4;
  const float lowest = std::numeric_limits<float>::lowest(), nan = std::nanf("");
  std::vector<float> add(kSize * kSize, lowest), nowhere = add;
  for (int64_t i = 0; i < kSize; ++i) std::fill_n(add.begin() + i * kSize, kSeen, 0);
  const std::vector<float> q = RandomVector(kSize * kDim, 1), d_o = RandomVector(kSize * kDim, 2);
  std::vector<float> k = RandomVector(kSize * kDim, 3), v = RandomVector(kSize * kDim, 4);
  const std::vector<float> sane_v = v;
  std::fill(k.begin() + kSeen * kDim, k.end(), nan);
  std::fill(v.begin() + kSeen * kDim, v.end(), nan);
  ForEveryKernelSet([&](const KernelTable& kernels, int threads) {
    std::vector<float> o(kSize * kDim), lse(kSize), dq = o, dk = o, dv = o;
    const HeadStrides strides{kSize * kDim, kDim, kDim};
    AttentionForwardArgs f;
    f.shape = {1, 1, 1, kSize, kSize, kDim, kDim, 1};
    f.mask = {.add = add.data(), .query = kSize, .key = 1};
    f.q = q.data(), f.k = k.data(), f.v = v.data(), f.o = o.data(), f.lse = lse.data();
    f.q_strides = f.k_strides = f.v_strides = f.o_strides = strides;
    kernels.attention.forward(f, threads);
    AttentionBackwardArgs g;
    g.shape = f.shape, g.mask = f.mask;
    g.q = f.q, g.k = f.k, g.v = f.v, g.o = f.o, g.lse = f.lse, g.d_o = d_o.data();
    g.dq = dq.data(), g.dk = dk.data(), g.dv = dv.data();
    g.q_strides = g.k_strides = g.v_strides = g.o_strides = g.d_o_strides = strides;
    g.dq_strides = g.dk_strides = g.dv_strides = strides;
    kernels.attention.backward(g, threads);
    for (const std::vector<float>* x : {&o, &lse, &dq, &dk, &dv}) {
      EXPECT_TRUE(std::ranges::all_of(*x, [](float y) { return std::isfinite(y); }));
    }
    EXPECT_TRUE(std::all_of(dv.begin() + kSeen * kDim, dv.end(), [](float y) { return y == 0; }));
    f.mask.add = nowhere.data();
    f.k = q.data(), f.v = sane_v.data();
    kernels.attention.forward(f, threads);
    for (int64_t c = 0; c < kDim; ++c) {
      double mean = 0;
      for (int64_t j = 0; j < kSize; ++j) mean += sane_v[j * kDim + c] / double{kSize};
      EXPECT_NEAR(o[c], mean, 1e-5);
      EXPECT_NEAR(o[(kSize - 1) * kDim + c], mean, 1e-5);
    }
  });
}

// Of keys in multiples of four, of which a draw begins with a row, and not; of few queries; of
// everything and nothing.
TEST(Attention, Dropout) {
  for (bool causal : {false, true}) {
    Check({2, 3, 3, 64, 64, 16, causal, Layout::kBshd, Mask::kNone, 0.1});
    Check({1, 2, 2, 131, 131, 64, causal, Layout::kFused, Mask::kNone, 0.5});
    Check({1, 1, 1, 130, 128, 24, causal, Layout::kBhsd, Mask::kNone, 0.9});
    Check({2, 6, 2, 5, 133, 17, causal, Layout::kFused, Mask::kNone, 0.3});
    Check({1, 4, 1, 1, 200, 32, causal, Layout::kBhsd, Mask::kNone, 0.3});
    Check({1, 4, 2, 100, 65, 8, causal, Layout::kBshd, Mask::kVisible, 0.2});
    Check({2, 2, 1, 67, 67, 12, causal, Layout::kBshd, Mask::kAddFull, 0.2});
    Check({1, 1, 1, 30, 30, 3, causal, Layout::kBshd, Mask::kNone, 0.0});
    Check({1, 1, 1, 30, 30, 3, causal, Layout::kBshd, Mask::kNone, 1.0});
  }
}

// As where a rank has a part of the queries and all keys.
TEST(Attention, PartOfTheQueries) {
  for (int64_t first : {-40, -1, 0, 17, 64, 101, 300}) {
    Check({1, 2, 1, 70, 200, 24, true, Layout::kBshd, Mask::kNone, -1, first});
    Check({1, 2, 2, 65, 131, 16, true, Layout::kBhsd, Mask::kVisible, 0.2, first});
    Check({2, 1, 1, 1, 150, 8, true, Layout::kBshd, Mask::kAddFull, -1, first});
  }
}

// Weights below the least normal number are zero, and do no harm; a negative scale turns the order.
TEST(Attention, ScoresFarApart) {
  for (bool causal : {false, true}) {
    for (float sign : {1.0F, -1.0F}) {
      const int64_t n = 100;
      std::vector<float> q(n, 1), k(n), v = RandomVector(n, 3), d_o = RandomVector(n, 4);
      std::vector<double> o(n), lse(n), dq(n), dk(n), dv(n);
      for (int64_t j = 0; j < n; ++j) k[j] = sign * 3 * static_cast<float>(j);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t keys = causal ? i + 1 : n;
        const double max = 3.0 * static_cast<double>(keys - 1);
        std::vector<double> p(keys);
        double sum = 0;
        for (int64_t j = 0; j < keys; ++j)
          sum += p[j] = std::exp(3.0 * static_cast<double>(j) - max);
        lse[i] = max + std::log(sum);
        for (int64_t j = 0; j < keys; ++j) o[i] += (p[j] /= sum) * v[j];
        for (int64_t j = 0; j < keys; ++j) {
          const double ds = sign * p[j] * d_o[i] * (v[j] - o[i]);
          dq[i] += ds * k[j];
          dk[j] += ds;
          dv[j] += p[j] * d_o[i];
        }
      }
      ForEveryKernelSet([&](const KernelTable& kernels, int threads) {
        std::vector<float> got_o(n), got_lse(n), got_dq(n), got_dk(n), got_dv(n);
        const HeadStrides strides{n, 1, 1};
        AttentionForwardArgs f;
        f.shape = {1, 1, 1, n, n, 1, 1, sign, causal};
        f.q = q.data(), f.k = k.data(), f.v = v.data(), f.o = got_o.data(), f.lse = got_lse.data();
        f.q_strides = f.k_strides = f.v_strides = f.o_strides = strides;
        kernels.attention.forward(f, threads);
        ExpectNear(got_o, o, 1e-5, 1e-5, "o");
        ExpectNear(got_lse, lse, 1e-5, 1e-5, "lse");
        AttentionBackwardArgs g;
        g.shape = f.shape;
        g.q = f.q, g.k = f.k, g.v = f.v, g.o = f.o, g.lse = f.lse, g.d_o = d_o.data();
        g.dq = got_dq.data(), g.dk = got_dk.data(), g.dv = got_dv.data();
        g.q_strides = g.k_strides = g.v_strides = g.o_strides = g.d_o_strides = strides;
        g.dq_strides = g.dk_strides = g.dv_strides = strides;
        kernels.attention.backward(g, threads);
        ExpectNear(got_dk, dk, 3e-5, 3e-5, "dk");
        ExpectNear(got_dv, dv, 3e-5, 3e-5, "dv");
        // A sum of differences of numbers near 300.
        ExpectNear(got_dq, dq, 3e-3, 3e-5, "dq");
      });
    }
  }
}

TEST(Attention, NoKeysAtAll) {
  ForEveryKernelSet([](const KernelTable& kernels, int threads) {
    std::vector<float> q = RandomVector(12, 1), o(12, 7), lse(3, 7), dq(12, 7);
    AttentionForwardArgs f;
    f.shape = {.batch = 1,
               .q_heads = 1,
               .kv_heads = 1,
               .q_len = 3,
               .kv_len = 0,
               .head_dim = 4,
               .value_dim = 4};
    f.q = q.data(), f.q_strides = {12, 4, 4};
    f.o = o.data(), f.o_strides = {12, 4, 4};
    f.lse = lse.data();
    kernels.attention.forward(f, threads);
    EXPECT_EQ(o, std::vector<float>(12, 0));
    EXPECT_EQ(lse, std::vector<float>(3, -std::numeric_limits<float>::infinity()));
    AttentionBackwardArgs g;
    g.shape = f.shape;
    g.q = g.d_o = q.data(), g.q_strides = g.d_o_strides = {12, 4, 4};
    g.o = o.data(), g.o_strides = {12, 4, 4};
    g.lse = lse.data();
    g.dq = dq.data(), g.dq_strides = {12, 4, 4};
    kernels.attention.backward(g, threads);
    EXPECT_EQ(dq, std::vector<float>(12, 0));
  });
}

}  // namespace
}  // namespace shardc::cpu
