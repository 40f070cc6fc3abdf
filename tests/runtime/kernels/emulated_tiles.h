// AMX's tiles of bf16 in C++ for AVX-512, in place of the compiler's: sources of the kernels that
// include runtime/cpu/kernels/amx.h run with them on machines that have no AMX. Included before all
// else. What is undefined or faults on a processor (a tile that was not set up, sizes that do not
// fit) ends the process. Sums below the smallest normal number are kept here, and zero there.
//
// Intel, "Architecture Instruction Set Extensions Programming Reference", chapter 3.
#ifndef TESTS_RUNTIME_KERNELS_EMULATED_TILES_H_
#define TESTS_RUNTIME_KERNELS_EMULATED_TILES_H_

#include <immintrin.h>

#include <cstdint>

namespace shardc::cpu::emulated_tiles {

struct Tile {
  int rows = 0, row_bytes = 0;  // 0: not set up
  alignas(64) uint8_t bytes[16][64];

  float& f32(int row, int column) { return reinterpret_cast<float*>(bytes[row])[column]; }
  // What is below the smallest normal number is zero, as on the processor.
  float Bf16(int row, int column) const {
    const uint32_t bits =
        static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(bytes[row])[column]) << 16;
    return __builtin_bit_cast(float, (bits & 0x7f800000) ? bits : bits & 0x80000000);
  }
};
inline thread_local Tile tiles[8];

inline Tile& SetUp(int t) {
  if (tiles[t].rows == 0) __builtin_trap();
  return tiles[t];
}

inline void LoadConfig(const void* config) {
  const auto* bytes = static_cast<const uint8_t*>(config);
  if (bytes[0] != 1) __builtin_trap();
  for (int t = 0; t < 8; ++t) {
    tiles[t].row_bytes = bytes[16 + 2 * t] | bytes[17 + 2 * t] << 8;
    tiles[t].rows = bytes[48 + t];
    if (tiles[t].row_bytes > 64 || tiles[t].rows > 16) __builtin_trap();
    if ((tiles[t].row_bytes == 0) != (tiles[t].rows == 0)) __builtin_trap();
    __builtin_memset(tiles[t].bytes, 0, sizeof tiles[t].bytes);
  }
}
inline void Release() {
  for (Tile& t : tiles) t.rows = t.row_bytes = 0;
}
inline void Zero(int t) { __builtin_memset(SetUp(t).bytes, 0, sizeof tiles[t].bytes); }
inline void Load(int t, const void* base, int64_t stride) {
  Zero(t);
  for (int i = 0; i < tiles[t].rows; ++i) {
    __builtin_memcpy(tiles[t].bytes[i], static_cast<const uint8_t*>(base) + i * stride,
                     static_cast<size_t>(tiles[t].row_bytes));
  }
}
inline void Store(int t, void* base, int64_t stride) {
  const Tile& tile = SetUp(t);
  for (int i = 0; i < tile.rows; ++i) {
    __builtin_memcpy(static_cast<uint8_t*>(base) + i * stride, tile.bytes[i],
                     static_cast<size_t>(tile.row_bytes));
  }
}
// C += A B, B in pairs of rows: the sums over even and over odd k begin at zero, and are added to C
// last.
inline void DotBf16(int c, int a, int b) {
  Tile& sum = SetUp(c);
  const Tile &left = SetUp(a), &right = SetUp(b);
  if (left.rows != sum.rows || right.row_bytes != sum.row_bytes ||
      left.row_bytes != 4 * right.rows) {
    __builtin_trap();
  }
  float even[16][16], odd[16][16];
  for (int p = 0; p < right.rows; ++p) {
    for (int j = 0; j < 16; ++j)
      even[p][j] = right.Bf16(p, 2 * j), odd[p][j] = right.Bf16(p, 2 * j + 1);
  }
  for (int i = 0; i < sum.rows; ++i) {
    float even_sums[16] = {}, odd_sums[16] = {};
    for (int p = 0; p < right.rows; ++p) {
      const float x = left.Bf16(i, 2 * p), y = left.Bf16(i, 2 * p + 1);
      for (int j = 0; j < 16; ++j) {
        even_sums[j] = __builtin_fmaf(x, even[p][j], even_sums[j]);
        odd_sums[j] = __builtin_fmaf(y, odd[p][j], odd_sums[j]);
      }
    }
    for (int j = 0; j < sum.row_bytes / 4; ++j) sum.f32(i, j) += even_sums[j] + odd_sums[j];
  }
}

// AVX512_BF16's rounding, which every processor with AMX has.
inline __m256i Round(__m512 v) {
  typedef uint32_t Words __attribute__((vector_size(64)));
  typedef uint16_t Halves __attribute__((vector_size(32)));
  const Words bits = (Words)v, magnitude = bits & 0x7fffffff;
  const Words rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const Words flushed = magnitude < 0x00800000 ? bits >> 31 << 15 : rounded;
  const Words nan = bits >> 16 | 0x40;
  return (__m256i) __builtin_convertvector(magnitude > 0x7f800000 ? nan : flushed, Halves);
}

}  // namespace shardc::cpu::emulated_tiles

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig shardc::cpu::emulated_tiles::LoadConfig
#define _tile_release shardc::cpu::emulated_tiles::Release
#define _tile_zero shardc::cpu::emulated_tiles::Zero
#define _tile_loadd shardc::cpu::emulated_tiles::Load
#define _tile_stored shardc::cpu::emulated_tiles::Store
#define _tile_dpbf16ps shardc::cpu::emulated_tiles::DotBf16
#define _mm512_cvtneps_pbh shardc::cpu::emulated_tiles::Round

#endif  // TESTS_RUNTIME_KERNELS_EMULATED_TILES_H_
