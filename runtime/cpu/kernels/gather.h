// Blocks of a tensor that tuples of indices pick.
#ifndef RUNTIME_CPU_KERNELS_GATHER_H_
#define RUNTIME_CPU_KERNELS_GATHER_H_

#include <cstdint>

namespace shardc::cpu {

// Of each group of x[groups, group_size], in which the indexed dims have these sizes and strides,
// tuple t of indices[groups, tuples, dims] picks the `block` elements from the sum of its indices
// times the strides on. Indices are in [-size, size), negative ones count from the end.
struct TupleArgs {
  static constexpr int kMaxDims = 8;
  const int64_t* indices = nullptr;
  int64_t groups = 0, tuples = 0;
  int dims = 0;
  int64_t sizes[kMaxDims] = {}, strides[kMaxDims] = {};  // in elements
  int64_t group_size = 0, block = 0;
};

// y[groups, tuples, block], of elements of 1, 2, 4 or 8 bytes. Returns the place of the first index
// that is out of range, or -1; then all of y is written.
int64_t GatherTuples(const TupleArgs&, const void* x, void* y, int element_bytes, int threads);

// dx is the sum of the blocks of dy[groups, tuples, block] where they were picked, in their order,
// and zero elsewhere. Returns as GatherTuples. The result does not depend on `threads`.
int64_t AddTuples(const TupleArgs&, const float* dy, float* dx, int threads);

}  // namespace shardc::cpu

#endif  // RUNTIME_CPU_KERNELS_GATHER_H_
