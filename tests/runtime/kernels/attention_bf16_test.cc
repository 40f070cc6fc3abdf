// Attention of halves, against the f32 kernels (which have tests against naive loops) on the same
// numbers.
#include "tests/runtime/kernels/emulated_amx.h"
#include "tests/runtime/kernels/halves.h"

namespace shardc::cpu {
namespace {

struct AttentionData {
  AttentionShape shape;
  HeadStrides query, key;
  AttentionMask mask = {};
  AttentionDropout dropout = {};
  HeadStrides out = OfValues(query), value = OfValues(key);

  // In the same layout.
  HeadStrides OfValues(HeadStrides s) const {
    for (int64_t* stride : {&s.batch, &s.seq, &s.head}) {
      *stride = *stride / shape.head_dim * shape.value_dim;
    }
    return s;
  }
};

// Operands of one attention in floats or halves, and its results.
template <typename T>
struct AttentionRun {
  std::vector<T> q, k, v, d_o, o, dq, dk, dv;

  void Forward(const AttentionData& a, void (*kernel)(const AttentionForwardArgsOf<T>&, int),
               std::vector<float>& lse, int threads) {
    o.resize(d_o.size());
    kernel({.shape = a.shape,
            .q = q.data(),
            .q_strides = a.query,
            .k = k.data(),
            .k_strides = a.key,
            .v = v.data(),
            .v_strides = a.value,
            .mask = a.mask,
            .dropout = a.dropout,
            .o = o.data(),
            .o_strides = a.out,
            .lse = lse.data()},
           threads);
  }
  void Backward(const AttentionData& a, void (*kernel)(const AttentionBackwardArgsOf<T>&, int),
                const std::vector<float>& lse, int threads) {
    dq.resize(q.size()), dk.resize(k.size()), dv.resize(v.size());
    kernel({.shape = a.shape,
            .q = q.data(),
            .q_strides = a.query,
            .k = k.data(),
            .k_strides = a.key,
            .v = v.data(),
            .v_strides = a.value,
            .mask = a.mask,
            .dropout = a.dropout,
            .o = o.data(),
            .o_strides = a.out,
            .lse = lse.data(),
            .d_o = d_o.data(),
            .d_o_strides = a.out,
            .dq = dq.data(),
            .dq_strides = a.query,
            .dk = dk.data(),
            .dk_strides = a.key,
            .dv = dv.data(),
            .dv_strides = a.value},
           threads);
  }
};

// The halves with the f32 kernel on the same numbers.
void CheckAttention(const AttentionData& a) {
  const AttentionShape& s = a.shape;
  const int64_t queries = s.batch * s.q_heads * s.q_len, keys = s.batch * s.kv_heads * s.kv_len;
  AttentionRun<uint16_t> half;
  half.q = RandomHalves(queries * s.head_dim, 1, 2);
  half.k = RandomHalves(keys * s.head_dim, 2, 2);
  half.v = RandomHalves(keys * s.value_dim, 3);
  half.d_o = RandomHalves(queries * s.value_dim, 4);
  AttentionRun<float> full;
  full.q = Wide(half.q), full.k = Wide(half.k), full.v = Wide(half.v), full.d_o = Wide(half.d_o);
  auto check = [&](const KernelTable& table, int threads) {
    const bool tiles = &table == &KernelsFor(Isa::kBf16) || &table == &KernelsFor(Isa::kAmx) ||
                       &table == EmulatedAmx();
    std::vector<float> lse(s.batch * s.q_heads * s.q_len), half_lse = lse;
    full.Forward(a, table.attention.forward, lse, threads);
    half.Forward(a, table.attention.forward_bf16, half_lse, threads);
    // Products of bf16 take probabilities, and their gradients, in it.
    ExpectNear(Wide(half.o), Doubles(full.o), kRounding, tiles ? 2e-3 : 1e-6, "o");
    ExpectNear(half_lse, Doubles(lse), 1e-2, 1e-2, "lse");
    // Both get the same o and lse.
    full.o = Wide(half.o);
    full.Backward(a, table.attention.backward, half_lse, threads);
    half.Backward(a, table.attention.backward_bf16, half_lse, threads);
    ExpectNear(Wide(half.dq), Doubles(full.dq), kRounding, tiles ? 1e-2 : 1e-5, "dq");
    ExpectNear(Wide(half.dk), Doubles(full.dk), kRounding, tiles ? 1e-2 : 1e-5, "dk");
    ExpectNear(Wide(half.dv), Doubles(full.dv), kRounding, tiles ? 1e-2 : 1e-5, "dv");
  };
  ForEveryKernelSet(check);
  if (EmulatedAmx()) ForTeams("emulated amx", *EmulatedAmx(), check);
}

TEST(AttentionBf16, EqualsF32Rounded) {
  for (bool causal : {false, true}) {
    int64_t s = 70, d = 24;
    AttentionShape shape{.batch = 2,
                         .q_heads = 4,
                         .kv_heads = 2,
                         .q_len = s,
                         .kv_len = s,
                         .head_dim = d,
                         .value_dim = d,
                         .scale = 0.2F,
                         .causal = causal};
    CheckAttention({shape, {4 * s * d, 4 * d, d}, {2 * s * d, 2 * d, d}});  // bshd
    CheckAttention({shape, {4 * s * d, d, s * d}, {2 * s * d, d, s * d}});  // bhsd
  }
}

// Whole blocks and parts of them; keys in multiples of four, and not.
TEST(AttentionBf16, Dropout) {
  for (bool causal : {false, true}) {
    for (auto [q, k] : {std::pair<int64_t, int64_t>{64, 64}, {70, 132}, {130, 71}, {1, 200}}) {
      AttentionShape shape{.batch = 2,
                           .q_heads = 4,
                           .kv_heads = 2,
                           .q_len = q,
                           .kv_len = k,
                           .head_dim = 24,
                           .value_dim = 24,
                           .scale = 0.2F,
                           .causal = causal,
                           .diagonal = k - q};
      std::vector<int64_t> batch = {0, 4 * q * k}, head, query;
      for (int64_t h = 0; h < 4; ++h) head.push_back(h * q * k);
      for (int64_t i = 0; i < q; ++i) query.push_back(i * k);
      AttentionDropout dropout{.draw = {7, 1, 2, 1u << 30},
                               .scale = 4.0F / 3,
                               .batch = batch.data(),
                               .head = head.data(),
                               .query = query.data()};
      CheckAttention({shape, {4 * q * 24, 4 * 24, 24}, {2 * k * 24, 2 * 24, 24}, {}, dropout});
    }
  }
}

AttentionData Bshd(const AttentionShape& s, AttentionMask mask = {}) {
  int64_t q = s.q_heads * s.head_dim, k = s.kv_heads * s.head_dim;
  return {s, {s.q_len * q, q, s.head_dim}, {s.kv_len * k, k, s.head_dim}, mask};
}

TEST(AttentionBf16, OddSizes) {
  for (int64_t d : {1, 8, 33, 64, 80, 128}) {
    for (auto [q, k] :
         {std::pair<int64_t, int64_t>{1, 1}, {1, 130}, {64, 64}, {65, 127}, {150, 31}}) {
      for (bool causal : {false, true}) {
        SCOPED_TRACE(testing::Message() << "d " << d << " q " << q << " k " << k << causal);
        CheckAttention(Bshd({.batch = 1,
                             .q_heads = 2,
                             .kv_heads = 1,
                             .q_len = q,
                             .kv_len = k,
                             .head_dim = d,
                             .value_dim = d,
                             .scale = causal ? -0.1F : 0.3F,
                             .causal = causal,
                             .diagonal = k - q}));
      }
    }
  }
}

TEST(AttentionBf16, ValuesOfAnotherSize) {
  for (auto [d, value_dim] : {std::pair<int64_t, int64_t>{48, 32}, {24, 72}, {65, 1}}) {
    for (int64_t kv_heads : {1, 2}) {
      CheckAttention(Bshd({.batch = 2,
                           .q_heads = 2,
                           .kv_heads = kv_heads,
                           .q_len = 70,
                           .kv_len = 131,
                           .head_dim = d,
                           .value_dim = value_dim,
                           .scale = 0.2F,
                           .causal = true,
                           .diagonal = 61}));
    }
  }
}

// As where a rank has a part of the queries and all keys.
TEST(AttentionBf16, PartOfTheQueries) {
  for (int64_t first : {-40, -1, 0, 17, 64, 101, 300}) {
    SCOPED_TRACE(first);
    CheckAttention(Bshd({.batch = 2,
                         .q_heads = 4,
                         .kv_heads = 2,
                         .q_len = 70,
                         .kv_len = 200,
                         .head_dim = 24,
                         .value_dim = 24,
                         .scale = 0.2F,
                         .causal = true,
                         .diagonal = first}));
  }
}

TEST(AttentionBf16, Masks) {
  constexpr int64_t kHeads = 3, kQueries = 66, kKeys = 75;
  std::vector<float> add = RandomVector(kHeads * kQueries * kKeys, 5, 2);
  std::vector<uint8_t> visible;
  for (float x : add) visible.push_back(x > -1);
  for (int64_t j = 0; j < kKeys; ++j)
    visible[static_cast<size_t>(kKeys + j)] = 0;  // a query sees none
  for (bool causal : {false, true}) {
    AttentionShape shape{.batch = 2,
                         .q_heads = kHeads,
                         .kv_heads = kHeads,
                         .q_len = kQueries,
                         .kv_len = kKeys,
                         .head_dim = 16,
                         .value_dim = 16,
                         .scale = 0.5F,
                         .causal = causal,
                         .diagonal = kKeys - kQueries};
    CheckAttention(
        Bshd(shape, {.add = add.data(), .head = kQueries * kKeys, .query = kKeys, .key = 1}));
    CheckAttention(Bshd(shape, {.add = add.data(), .query = 1}));
    CheckAttention(Bshd(shape, {.visible = visible.data(), .query = kKeys, .key = 1}));
    CheckAttention(Bshd(shape, {.visible = visible.data(), .batch = kKeys, .key = 1}));
    CheckAttention(Bshd(shape, {.visible = visible.data(), .query = 2 * kKeys, .key = 2}));
  }
}

// Windows: most blocks are hidden, or left as they are.
TEST(AttentionBf16, MasksOfWholeBlocks) {
  constexpr int64_t kHeads = 2, kSize = 261;
  std::vector<float> add;
  std::vector<uint8_t> visible;
  for (int64_t n = 0; n < kHeads * kSize * kSize; ++n) {
    const int64_t h = n / kSize / kSize, i = n / kSize % kSize, j = n % kSize;
    const bool seen = j > i - 100 && j < i + 70 * h + 1;
    visible.push_back(seen);
    add.push_back(seen ? 0.01F * static_cast<float>(h * (j - i))
                       : std::numeric_limits<float>::lowest());
  }
  for (bool causal : {false, true}) {
    const AttentionShape shape{.batch = 2,
                               .q_heads = kHeads,
                               .kv_heads = 1,
                               .q_len = kSize,
                               .kv_len = kSize,
                               .head_dim = 16,
                               .value_dim = 16,
                               .scale = 0.5F,
                               .causal = causal};
    const int64_t head = kSize * kSize;
    CheckAttention(Bshd(shape, {.add = add.data(), .head = head, .query = kSize, .key = 1}));
    CheckAttention(
        Bshd(shape, {.visible = visible.data(), .head = head, .query = kSize, .key = 1}));
    CheckAttention(Bshd(shape, {.visible = visible.data(), .query = kSize, .key = 1}));
    CheckAttention(Bshd(shape, {.add = add.data(), .key = 1}));
  }
}

}  // namespace
}  // namespace shardc::cpu
