// PTX ISA 9.7.9.6 and 9.7.14: shuffles, ldmatrix, mma.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "tests/runtime/cuda/ptx/lanes.h"

namespace shardc::ptx {
namespace {

// Butterflies and lanes by number, of segments (the clamp's upper bits) that are whole warps.
template <typename F>
void Shuffle(const Instruction& i, Warp& w, F source) {
  uint64_t old[kLanes];
  std::copy_n(w.At(i.slot[static_cast<size_t>(i.results)]), kLanes, old);
  Lanes(w.mask, [&](int l) {
    const auto operand = From<uint32_t>(w.At(i.slot[static_cast<size_t>(i.results) + 1])[l]);
    const auto members = From<uint32_t>(w.At(i.slot[static_cast<size_t>(i.results) + 3])[l]);
    if ((members & w.mask) != w.mask) {
      throw std::runtime_error("a lane that is not among the shuffle's members");
    }
    if (From<uint32_t>(w.At(i.slot[static_cast<size_t>(i.results) + 2])[l]) != 31) {
      throw std::runtime_error("a shuffle within a part of the warp");
    }
    const int from = source(l, static_cast<int>(operand));
    if (((w.mask >> from) & 1) == 0)
      throw std::runtime_error("a shuffle from a lane that is not there");
    w.At(i.slot[0])[l] = From<uint32_t>(old[from]);
    if (i.results > 1) w.At(i.slot[1])[l] = 1;
  });
}
void ShuffleButterfly(const Instruction& i, Warp& w) {
  Shuffle(i, w, [](int lane, int operand) { return (lane ^ operand) & 31; });
}
void ShuffleIndex(const Instruction& i, Warp& w) {
  Shuffle(i, w, [](int, int operand) { return operand & 31; });
}

// Four matrices of 8 rows of 8 halves (16 bytes): lanes 8j to 8j+7 give the rows of matrix j.
template <bool kTransposed>
void LoadMatrices(const Instruction& i, Warp& w) {
  uint16_t matrix[4][8][8];
  for (int l = 0; l < kLanes; ++l) {
    const std::byte* row = ReachShared(i, w, w.At(i.slot[4])[l] + static_cast<uint64_t>(i.offset));
    std::memcpy(matrix[l / 8][l % 8], row, 16);
  }
  for (int l = 0; l < kLanes; ++l) {
    for (int j = 0; j < 4; ++j) {
      const int row = l / 4, column = l % 4 * 2;
      const uint16_t low = kTransposed ? matrix[j][column][row] : matrix[j][row][column],
                     high = kTransposed ? matrix[j][column + 1][row] : matrix[j][row][column + 1];
      w.At(i.slot[static_cast<size_t>(j)])[l] = uint32_t{high} << 16 | low;
    }
  }
}

// D = A B + C, A [16, 16], B [16, 8] of halves, C and D [16, 8] of f32.
template <auto kWiden>
void MultiplyMatrices(const Instruction& i, Warp& w) {
  float a[16][16], b[16][8], d[16][8];
  auto half = [&](size_t slot, int l, int k) {
    return kWiden(static_cast<uint16_t>(w.At(i.slot[slot])[l] >> (16 * k)));
  };
  for (int l = 0; l < kLanes; ++l) {
    const int group = l / 4, pair = l % 4 * 2;
    for (int k = 0; k < 2; ++k) {
      a[group][pair + k] = half(4, l, k);
      a[group + 8][pair + k] = half(5, l, k);
      a[group][pair + 8 + k] = half(6, l, k);
      a[group + 8][pair + 8 + k] = half(7, l, k);
      b[pair + k][group] = half(8, l, k);
      b[pair + 8 + k][group] = half(9, l, k);
      d[group][pair + k] = From<float>(w.At(i.slot[static_cast<size_t>(10 + k)])[l]);
      d[group + 8][pair + k] = From<float>(w.At(i.slot[static_cast<size_t>(12 + k)])[l]);
    }
  }
  for (int m = 0; m < 16; ++m) {
    for (int n = 0; n < 8; ++n) {
      float sum = 0;
      for (int k = 0; k < 16; ++k) sum += a[m][k] * b[k][n];
      d[m][n] += sum;
    }
  }
  for (int l = 0; l < kLanes; ++l) {
    const int group = l / 4, pair = l % 4 * 2;
    for (size_t k = 0; k < 2; ++k) {
      w.At(i.slot[k])[l] = Bits(d[group][static_cast<size_t>(pair) + k]);
      w.At(i.slot[2 + k])[l] = Bits(d[group + 8][static_cast<size_t>(pair) + k]);
    }
  }
}

}  // namespace

Step FindExchange(const Parts& p, std::string_view opcode) {
  if (opcode == "shfl.sync.bfly.b32") return &ShuffleButterfly;
  if (opcode == "shfl.sync.idx.b32") return &ShuffleIndex;
  if (opcode == "bar.warp.sync") return [](const Instruction&, Warp&) {};
  if (opcode == "ldmatrix.sync.aligned.m8n8.x4.shared.b16") return &LoadMatrices<false>;
  if (opcode == "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16") return &LoadMatrices<true>;
  if (p.name() == "mma" && p.Has("m16n8k16") && p.Has("row") && p.Has("col")) {
    if (opcode.ends_with("f32.f16.f16.f32")) return &MultiplyMatrices<&FromF16>;
    if (opcode.ends_with("f32.bf16.bf16.f32")) return &MultiplyMatrices<&FromBf16>;
  }
  return nullptr;
}

}  // namespace shardc::ptx
