// Moving elements: strided copies and permutations of any element of 1, 2, 4 or 8 bytes.
#ifndef RUNTIME_CPU_KERNELS_LAYOUT_H_
#define RUNTIME_CPU_KERNELS_LAYOUT_H_

#include <cstdint>
#include <span>

namespace shardc::cpu {

inline constexpr int kMaxRank = 8;

// dst[sum i_d * dst_strides[d]] = src[sum i_d * src_strides[d]] for every index 0 <= i_d < dims[d].
// Strides count elements and may be 0 (src: broadcast) or negative. The three spans have the same
// length, at most kMaxRank. Source and destination may not overlap. Adjacent dims are merged and
// 2-d transposes blocked, so this is the fast path for slices, pads, concatenations, broadcasts,
// [b,s,h,d] <-> [b,h,s,d] and matrix transposes alike.
void StridedCopy(const void* src, std::span<const int64_t> src_strides, void* dst,
                 std::span<const int64_t> dst_strides, std::span<const int64_t> dims,
                 int element_bytes, int threads);

// dst = transpose(src, perm) as in numpy: dst dim d is src dim perm[d]; both dense row-major,
// `dims` those of src.
void Permute(const void* src, void* dst, std::span<const int64_t> dims, std::span<const int> perm,
             int element_bytes, int threads);

}  // namespace shardc::cpu

#endif  // RUNTIME_CPU_KERNELS_LAYOUT_H_
