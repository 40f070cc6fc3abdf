// Products of small bf16 matrices with AMX tiles. Only for files compiled for AMX.
#ifndef RUNTIME_CPU_KERNELS_AMX_H_
#define RUNTIME_CPU_KERNELS_AMX_H_

#include <immintrin.h>

#include <cstdint>

#include "runtime/cpu/kernels/vec_bf16.h"

namespace shardc::cpu::SHARDC_ISA {

// GCC 12 does not know that the tile instructions read and write memory.
SHARDC_INLINE void MemoryFence() { asm volatile("" ::: "memory"); }

// While it lives, the thread's tiles are 16 rows of 64 bytes each.
class Tiles {
 public:
  Tiles() {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    for (int t = 0; t < 8; ++t) config.row_bytes[t] = 64, config.rows[t] = 16;
    MemoryFence();
    _tile_loadconfig(&config);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

// C[m, n] = A[m, k] B[k, n], or C += that with kAdd; m, n and k are multiples of 32, sums in f32.
// Strides in elements. B is stored in pairs of rows: element (i, j) at b[(i / 2) * ldb + 2 * j + i
// % 2].
template <bool kAdd>
SHARDC_INLINE void TileProduct(int64_t m, int64_t n, int64_t k, const uint16_t* a, int64_t lda,
                               const uint16_t* b, int64_t ldb, float* c, int64_t ldc) {
  MemoryFence();
  for (int64_t i = 0; i < m; i += 32) {
    for (int64_t j = 0; j < n; j += 32) {
      float* c0 = c + i * ldc + j;
      float* c1 = c0 + 16 * ldc;
      if (kAdd) {
        _tile_loadd(0, c0, ldc * 4);
        _tile_loadd(1, c0 + 16, ldc * 4);
        _tile_loadd(2, c1, ldc * 4);
        _tile_loadd(3, c1 + 16, ldc * 4);
      } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
      }
      for (int64_t p = 0; p < k; p += 32) {
        const uint16_t* bp = b + p / 2 * ldb + 2 * j;
        _tile_loadd(4, a + i * lda + p, lda * 2);
        _tile_loadd(6, bp, ldb * 2);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, bp + 32, ldb * 2);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + (i + 16) * lda + p, lda * 2);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      _tile_stored(0, c0, ldc * 4);
      _tile_stored(1, c0 + 16, ldc * 4);
      _tile_stored(2, c1, ldc * 4);
      _tile_stored(3, c1 + 16, ldc * 4);
    }
  }
  MemoryFence();
}

}  // namespace shardc::cpu::SHARDC_ISA

#endif  // RUNTIME_CPU_KERNELS_AMX_H_
