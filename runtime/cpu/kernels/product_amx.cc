#include <omp.h>

#include "runtime/cpu/kernels/amx.h"
#include "runtime/cpu/kernels/product.h"
#include "runtime/cpu/kernels/scratch.h"
#include "runtime/cpu/kernels/team_memory.h"
#include "runtime/cpu/kernels/vec_transpose.h"

namespace shardc::cpu::SHARDC_ISA {
namespace {

// A panel is 32 rows of op(A), or 32 columns of op(B), over a stretch of k. It is stored in steps
// of 32 along k; a step has for each part two tiles of 16 rows of 64 bytes. A tile of A has a row
// of 32 elements for each of its rows; one of B has a row of 16 pairs (even k, odd k) for each pair
// of rows of op(B), as TDPBF16PS wants them.
constexpr int64_t kPanel = 32, kTileBytes = 1024;
template <int kParts>
constexpr int64_t kStepBytes = 2 * kParts* kTileBytes;

// Measured on a Xeon with AMX, 2 MiB of L2 cache a core: some panels of one operand, held by a
// thread, stay in that cache while the panels of the other one, which all threads share, stream by.
constexpr int64_t kHeldBytes = 800 << 10, kStreamedBytes = 16 << 20, kSumBytes = 12 << 20;
template <int kParts>
constexpr int64_t kDepth = kParts == 1 ? 2048 : 1024;

// How a product is taken apart; depends on sizes only.
struct Blocks {
  int64_t depth;        // of k at a time, the last stretch may be shorter
  int64_t panel_bytes;  // at that depth
  bool streams_a;       // the smaller one; packing it takes longer, as it leaves the cache
  int64_t streamed;     // panels of it at a time
  int64_t held;         // panels of the other operand that a thread packs at a time
  int64_t others;       // all of its panels
  bool wide_sums;       // sums over several stretches of k need f32 before C is bf16
  int64_t work_bytes;
};

template <int kParts>
Blocks BlocksOf(int64_t m, int64_t n, int64_t k, bool result_bf16) {
  constexpr int64_t kTileOfSums = kPanel * kPanel * 4;
  Blocks b;
  const int64_t stretches = CeilDiv(k, kDepth<kParts>);
  b.depth = RoundUp(CeilDiv(k, stretches), 32);
  b.panel_bytes = b.depth / 32 * kStepBytes<kParts>;
  b.streams_a = m < n;
  const int64_t panels = CeilDiv(b.streams_a ? m : n, kPanel);
  b.others = CeilDiv(b.streams_a ? n : m, kPanel);
  b.held = MaxOf(1, kHeldBytes / b.panel_bytes);
  b.wide_sums = result_bf16 && stretches > 1;
  int64_t most = MaxOf(1, kStreamedBytes / b.panel_bytes);
  if (b.wide_sums) most = MinOf(most, MaxOf(4, kSumBytes / (b.others * kTileOfSums)));
  b.streamed = CeilDiv(panels, CeilDiv(panels, most));
  b.work_bytes = b.streamed * b.panel_bytes;
  if (b.wide_sums) b.work_bytes += b.others * b.streamed * kTileOfSums;
  return b;
}

__mmask16 First(int64_t n) {
  return static_cast<__mmask16>(n >= 16 ? 0xffff : n <= 0 ? 0 : (1 << n) - 1);
}

// Sixteen rows of sixteen pairs of bf16, for each part.
template <int kParts>
struct PairBlock {
  VecUint part[kParts][16];
};

// Pairs of a row become pairs of a column.
SHARDC_INLINE void Transpose(VecUint* pairs) {
  Vec rows[16];
  for (int i = 0; i < 16; ++i) rows[i] = (Vec)pairs[i];
  TransposeInPlace(rows);
  for (int i = 0; i < 16; ++i) pairs[i] = (VecUint)rows[i];
}

// The bf16 number that is nearest to x, as an f32.
SHARDC_INLINE VecUint Nearest(Vec x) { return ((VecUint)x + 0x8000) & 0xffff0000; }

// The three parts of each of 16 numbers, in the upper halves of words.
SHARDC_INLINE void Split(Vec x, VecUint* parts) {
  constexpr uint32_t kInfinity = 0x7f800000, kRoundsToInfinity = 0x7f7f8000, kQuiet = 0x00400000;
  const VecUint bits = (VecUint)x, magnitude = bits & 0x7fffffff;
  parts[0] = Nearest(x);
  Vec rest = x - (Vec)parts[0];
  if (__builtin_expect(
          _mm512_cmpge_epu32_mask((__m512i)magnitude, _mm512_set1_epi32(kRoundsToInfinity)) != 0,
          0)) {
    const VecUint upper = bits & 0xffff0000;
    parts[0] = magnitude >= kRoundsToInfinity ? upper : parts[0];
    rest = magnitude >= kInfinity ? Vec{} : x - (Vec)parts[0];
    parts[0] = magnitude > kInfinity ? parts[0] | kQuiet : parts[0];
  }
  parts[1] = Nearest(rest);
  parts[2] = Nearest(rest - (Vec)parts[1]);
}

SHARDC_INLINE Vec Load16(const float* s, __mmask16 mask) {
  return (Vec)_mm512_maskz_loadu_ps(mask, s);
}
// bf16 as words.
SHARDC_INLINE VecUint Load16(const uint16_t* s, __mmask16 mask) {
  return __builtin_convertvector((VecHalf)_mm256_maskz_loadu_epi16(mask, s), VecUint);
}

// 32 elements of one row, of which `count` exist, as 16 pairs; row [i] of the block.
SHARDC_INLINE void LoadRow(const float* s, int64_t count, PairBlock<3>& block, int i) {
  VecUint low[3], high[3];
  Split(Load16(s, First(count)), low);
  Split(Load16(s + 16, First(count - 16)), high);
  for (int p = 0; p < 3; ++p) {
    typedef uint16_t Halves __attribute__((vector_size(64)));
    block.part[p][i] = (VecUint)__builtin_shufflevector(
        (Halves)low[p], (Halves)high[p], 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
        33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63);
  }
}
SHARDC_INLINE void LoadRow(const uint16_t* s, int64_t count, PairBlock<1>& block, int i) {
  const __mmask32 mask = count >= 32 ? 0xffffffffU : count <= 0 ? 0 : (1U << count) - 1;
  block.part[0][i] = (VecUint)_mm512_maskz_loadu_epi16(mask, s);
}

// Up to 16 elements of two rows as 16 pairs.
SHARDC_INLINE void LoadRows(const float* even, const float* odd, __mmask16 even_mask,
                            __mmask16 odd_mask, PairBlock<3>& block, int i) {
  VecUint low[3], high[3];
  Split(Load16(even, even_mask), low);
  Split(Load16(odd, odd_mask), high);
  for (int p = 0; p < 3; ++p) block.part[p][i] = (low[p] >> 16) | high[p];
}
SHARDC_INLINE void LoadRows(const uint16_t* even, const uint16_t* odd, __mmask16 even_mask,
                            __mmask16 odd_mask, PairBlock<1>& block, int i) {
  block.part[0][i] = Load16(even, even_mask) | (Load16(odd, odd_mask) << 16);
}

// A panel of `width` <= 32 rows of op(A) (columns of op(B)) over k. Element (i, j) of it, j along
// k, is s[i * ld + j], or s[j * ld + i] if k_major. What is beyond is zero.
template <int kParts, bool kOfB, typename T>
void PackPanel(const T* s, int64_t ld, bool k_major, int64_t width, int64_t k, char* to) {
  PairBlock<kParts> block;
  for (int64_t j = 0; j < k; j += 32, to += kStepBytes<kParts>) {
    // Steps of a whole row are too large for the hardware to see what comes next.
    for (int64_t i = 0; i < 32 && k_major; ++i) {
      const T* next = s + (j + 32 + i) * ld;
      _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(next + 31), _MM_HINT_T0);
    }
    for (int half = 0; half < 2; ++half) {
      const int64_t i0 = half * 16, rows = width - i0;
      if (k_major) {
        const __mmask16 mask = First(rows);
        for (int i = 0; i < 16; ++i) {
          const T* even = s + (j + 2 * i) * ld + i0;
          LoadRows(even, even + ld, j + 2 * i < k ? mask : __mmask16{0},
                   j + 2 * i + 1 < k ? mask : __mmask16{0}, block, i);
        }
      } else {
        for (int i = 0; i < 16; ++i) LoadRow(s + (i0 + i) * ld + j, i < rows ? k - j : 0, block, i);
      }
      for (int p = 0; p < kParts; ++p) {
        if (k_major != kOfB) Transpose(block.part[p]);
        char* tile = to + (2 * p + half) * kTileBytes;
        for (int i = 0; i < 16; ++i) {
          *reinterpret_cast<VecUint*>(tile + i * 64) = block.part[p][i];
        }
      }
    }
  }
}

// The streamed panel that is next, on its way from memory while this one is at work; a few lines at
// a time, or what is needed first would wait for them.
constexpr int64_t kLinesAhead = 3;
struct Ahead {
  const char* at;
  SHARDC_INLINE void Fetch() {
    for (int64_t i = 0; i < kLinesAhead; ++i) _mm_prefetch(at + i * 64, _MM_HINT_T1);
    at += kLinesAhead * 64;
  }
};
// How often a product of panels fetches, for each step.
template <int kParts>
constexpr int64_t kFetches = kParts == 3 ? 4 : 1;

SHARDC_INLINE void LoadA(const char* step, int part) {
  _tile_loadd(4, step + 2 * part * kTileBytes, 64);
  _tile_loadd(5, step + (2 * part + 1) * kTileBytes, 64);
}
SHARDC_INLINE void LoadB(const char* step, int part) {
  _tile_loadd(6, step + 2 * part * kTileBytes, 64);
  _tile_loadd(7, step + (2 * part + 1) * kTileBytes, 64);
}
SHARDC_INLINE void Multiply() {
  _tile_dpbf16ps(0, 4, 6);
  _tile_dpbf16ps(1, 4, 7);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

// c[32, 32] = the product of two panels.
template <int kParts>
void PanelProduct(int64_t steps, const char* a, const char* b, float* c, int64_t ldc, Ahead ahead) {
  constexpr int64_t kStep = kStepBytes<kParts>;
  MemoryFence();
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  if constexpr (kParts == 3) {
    // The small terms before any large one, or each of them would be rounded as the large sum is.
    // From product to product one operand stays.
    for (int64_t i = 0; i < steps; ++i) {
      const char *step_a = a + i * kStep, *step_b = b + i * kStep;
      LoadA(step_a, 0);
      LoadB(step_b, 2);
      Multiply();
      ahead.Fetch();
      LoadB(step_b, 1);
      Multiply();
      ahead.Fetch();
      LoadA(step_a, 1);
      Multiply();
      ahead.Fetch();
      LoadB(step_b, 0);
      Multiply();
      ahead.Fetch();
      LoadA(step_a, 2);
      Multiply();
    }
  }
  for (int64_t i = 0; i < steps; ++i) {
    if constexpr (kParts == 1) ahead.Fetch();
    LoadA(a + i * kStep, 0);
    LoadB(b + i * kStep, 0);
    Multiply();
  }
  _tile_stored(0, c, ldc * 4);
  _tile_stored(1, c + 16, ldc * 4);
  _tile_stored(2, c + 16 * ldc, ldc * 4);
  _tile_stored(3, c + 16 * ldc + 16, ldc * 4);
  MemoryFence();
}

void Put16(float* to, __mmask16 mask, Vec v) { _mm512_mask_storeu_ps(to, mask, (__m512)v); }
void Put16(uint16_t* to, __mmask16 mask, Vec v) {
  alignas(32) uint16_t rounded[16];
  Store(rounded, v);
  _mm256_mask_storeu_epi16(to, mask, _mm256_load_si256(reinterpret_cast<__m256i*>(rounded)));
}
Vec Get16(const float* from, __mmask16 mask) { return Load16(from, mask); }
Vec Get16(const uint16_t* from, __mmask16 mask) { return (Vec)(Load16(from, mask) << 16); }

// What is added to a sum besides what its place holds.
struct Addends {
  const float* earlier = nullptr;  // [32, 32]
  const float* bias = nullptr;     // of each column
  const uint16_t* bias_bf16 = nullptr;
};

template <typename C>
void Finish(const float* sum, int64_t rows, int64_t cols, C* c, int64_t ldc, bool adds,
            const Addends& addends) {
  for (int64_t j = 0; j < kPanel; j += 16) {
    const __mmask16 mask = First(cols - j);
    Vec bias = {};
    if (addends.bias != nullptr) bias = Get16(addends.bias + j, mask);
    if (addends.bias_bf16 != nullptr) bias = Get16(addends.bias_bf16 + j, mask);
    for (int64_t r = 0; r < rows; ++r) {
      Vec x = Load(sum + r * kPanel + j) + bias;
      if (addends.earlier != nullptr) x += Load(addends.earlier + r * kPanel + j);
      if (adds) x += Get16(c + r * ldc + j, mask);
      Put16(c + r * ldc + j, mask, x);
    }
  }
}

// One stretch of k.
struct Stretch {
  int64_t k0, k, steps;
  bool first, last;
};

// The product of panel i of A and panel j of B, to where it belongs. `kept`: [32, 32], for the sum
// of the stretches, null unless that needs a place of its own.
template <int kParts, typename T>
void OneTile(const ProductArgsOf<T>& args, const Stretch& s, int64_t i, int64_t j, const char* a,
             const char* b, float* kept, Ahead ahead) {
  alignas(64) float sum[kPanel * kPanel];
  if (kept != nullptr && !s.last) {
    if (s.first) return PanelProduct<kParts>(s.steps, a, b, kept, kPanel, ahead);
    PanelProduct<kParts>(s.steps, a, b, sum, kPanel, ahead);
    return Finish(sum, kPanel, kPanel, kept, kPanel, true, {});
  }
  const int64_t row = i * kPanel, column = j * kPanel, at = row * args.ldc + column;
  const int64_t rows = MinOf(kPanel, args.m - row), cols = MinOf(kPanel, args.n - column);
  Addends add;
  add.earlier = kept;
  if (s.last && args.bias != nullptr) add.bias = args.bias + column;
  if (s.last && args.bias_bf16 != nullptr) add.bias_bf16 = args.bias_bf16 + column;
  if (args.c == nullptr) {
    PanelProduct<kParts>(s.steps, a, b, sum, kPanel, ahead);
    return Finish(sum, rows, cols, args.c_bf16 + at, args.ldc, args.accumulate, add);
  }
  const bool adds = args.accumulate || !s.first;
  const bool has_bias = add.bias != nullptr || add.bias_bf16 != nullptr;
  if (!adds && !has_bias && rows == kPanel && cols == kPanel) {
    return PanelProduct<kParts>(s.steps, a, b, args.c + at, args.ldc, ahead);
  }
  for (int64_t r = 0; r < rows && adds; ++r) {
    for (int64_t x = 0; x < cols; x += 16) __builtin_prefetch(args.c + at + r * args.ldc + x, 1);
  }
  PanelProduct<kParts>(s.steps, a, b, sum, kPanel, ahead);
  Finish(sum, rows, cols, args.c + at, args.ldc, adds, add);
}

// Where a thread's part of n things, dealt out to `count`, begins.
int64_t PartBegin(int64_t n, int64_t index, int64_t count) { return n * index / count; }

// Among how many of `threads` the held panels are dealt out; the others deal out the streamed ones
// of each of these parts. A held panel is packed by each thread that needs it, which takes as long
// as some four tiles of C.
int64_t PartsOfHeld(int64_t held, int64_t streamed, int64_t threads) {
  int64_t best = threads, least = INT64_MAX;
  for (int64_t parts = threads; parts > 0; --parts) {
    if (threads % parts != 0) continue;
    const int64_t time = CeilDiv(held, parts) * (CeilDiv(streamed, threads / parts) + 4);
    if (time < least) best = parts, least = time;
  }
  return best;
}

template <int kParts, typename T>
void Pack(const ProductArgsOf<T>& args, bool of_a, int64_t panel, const Stretch& s, char* to) {
  const int64_t at = panel * kPanel;
  if (of_a) {
    const T* from = args.a + (args.transpose_a ? s.k0 * args.lda + at : at * args.lda + s.k0);
    PackPanel<kParts, false>(from, args.lda, args.transpose_a, MinOf(kPanel, args.m - at), s.k, to);
  } else {
    const T* from = args.b + (args.transpose_b ? at * args.ldb + s.k0 : s.k0 * args.ldb + at);
    PackPanel<kParts, true>(from, args.ldb, !args.transpose_b, MinOf(kPanel, args.n - at), s.k, to);
  }
}

// The part of thread `index` of the `threads` that share one product. False without the memory for
// it: the thread then only packs, as the others rely on.
template <int kParts, typename T>
bool SharedProduct(const ProductArgsOf<T>& args, char* work, int index, int threads) {
  static thread_local Scratch scratch;
  const Blocks blocks = BlocksOf<kParts>(args.m, args.n, args.k, args.c == nullptr);
  auto* held = reinterpret_cast<char*>(scratch.GetOrNull(blocks.held * blocks.panel_bytes / 4));
  auto* sums = reinterpret_cast<float*>(work + blocks.streamed * blocks.panel_bytes);
  const int64_t all_streamed = CeilDiv(blocks.streams_a ? args.m : args.n, kPanel);
  for (int64_t first = 0; first < all_streamed; first += blocks.streamed) {
    const int64_t streamed = MinOf(blocks.streamed, all_streamed - first);
    const int64_t parts = PartsOfHeld(blocks.others, streamed, threads), rest = threads / parts;
    const int64_t o_begin = PartBegin(blocks.others, index / rest, parts);
    const int64_t o_end = PartBegin(blocks.others, index / rest + 1, parts);
    const int64_t s_begin = PartBegin(streamed, index % rest, rest);
    const int64_t s_end = PartBegin(streamed, index % rest + 1, rest);
    const int64_t groups = MaxOf(1, CeilDiv(o_end - o_begin, blocks.held));
    const int64_t group = MaxOf(1, CeilDiv(o_end - o_begin, groups));
    for (int64_t k0 = 0; k0 < args.k; k0 += blocks.depth) {
      const int64_t k = MinOf(blocks.depth, args.k - k0);
      const Stretch stretch{k0, k, CeilDiv(k, 32), k0 == 0, k0 + k == args.k};
      const int64_t bytes = stretch.steps * kStepBytes<kParts>;
      // Others may still read what was packed before, and will read what all pack here.
      if (threads > 1) {
#pragma omp barrier
      }
      for (int64_t s = PartBegin(streamed, index, threads);
           s < PartBegin(streamed, index + 1, threads); ++s) {
        Pack<kParts>(args, blocks.streams_a, first + s, stretch, work + s * bytes);
      }
      if (threads > 1) {
#pragma omp barrier
      }
      for (int64_t o0 = o_begin; held != nullptr && o0 < o_end; o0 += group) {
        const int64_t count = MinOf(group, o_end - o0);
        for (int64_t o = 0; o < count; ++o) {
          Pack<kParts>(args, !blocks.streams_a, o0 + o, stretch, held + o * bytes);
        }
        for (int64_t s = s_begin; s < s_end; ++s) {
          const char* panel = work + s * bytes;
          Ahead ahead{panel + bytes};
          for (int64_t o = 0; o < count; ++o) {
            const char* other = held + o * bytes;
            float* kept = nullptr;
            if (blocks.wide_sums) kept = sums + ((o0 + o) * blocks.streamed + s) * kPanel * kPanel;
            if (blocks.streams_a) {
              OneTile<kParts>(args, stretch, first + s, o0 + o, panel, other, kept, ahead);
            } else {
              OneTile<kParts>(args, stretch, o0 + o, first + s, other, panel, kept, ahead);
            }
            ahead.at += stretch.steps * kFetches<kParts> * kLinesAhead * 64;
          }
        }
      }
    }
  }
  return held != nullptr;
}

template <typename T>
ProductArgsOf<T> OneOf(const ProductArgsOf<T>& args, int64_t item) {
  ProductArgsOf<T> one = args;
  one.a += item * args.batch_stride_a;
  one.b += item * args.batch_stride_b;
  if (one.c != nullptr) one.c += item * args.batch_stride_c;
  if (one.c_bf16 != nullptr) one.c_bf16 += item * args.batch_stride_c;
  return one;
}

// Whether each thread makes whole products of the batch, which takes as much work memory for each.
bool ProductPerThread(int64_t batch, int threads, int64_t bytes_of_one) {
  constexpr int64_t kSmall = 1 << 20;
  return batch >= threads && bytes_of_one <= kSmall;
}

int64_t WorkBytes(int64_t m, int64_t n, int64_t k, int64_t batch, int parts, bool result_bf16,
                  int threads) {
  const int64_t bytes = parts == 1 ? BlocksOf<1>(m, n, k, result_bf16).work_bytes
                                   : BlocksOf<3>(m, n, k, result_bf16).work_bytes;
  return ProductPerThread(batch, threads, bytes) ? bytes * threads : bytes;
}

template <int kParts, typename T>
void Product(const ProductArgsOf<T>& args, void* work, int threads) {
  auto* bytes = static_cast<char*>(work);
  const int64_t bytes_of_one =
      BlocksOf<kParts>(args.m, args.n, args.k, args.c == nullptr).work_bytes;
  const bool per_thread = ProductPerThread(args.batch, threads, bytes_of_one);
  bool no_memory = false;
#pragma omp parallel num_threads(threads)
  {
    const int index = omp_get_thread_num(), team = omp_get_num_threads();
    Tiles tiles;
    bool done = true;
    for (int64_t item = per_thread ? index : 0; item < args.batch; item += per_thread ? team : 1) {
      const auto one = OneOf(args, item);
      done &= per_thread ? SharedProduct<kParts>(one, bytes + index * bytes_of_one, 0, 1)
                         : SharedProduct<kParts>(one, bytes, index, team);
    }
    if (!done) {
#pragma omp atomic write
      no_memory = true;
    }
  }
  if (no_memory) ThrowNoMemory();
}

}  // namespace

extern const ProductKernels kProductKernels;
const ProductKernels kProductKernels = {WorkBytes, Product<3, float>, Product<1, uint16_t>};

}  // namespace shardc::cpu::SHARDC_ISA
