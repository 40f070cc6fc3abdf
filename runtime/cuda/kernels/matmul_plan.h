// What cuBLASLt is asked for a product of row-major tensors: column-major matrices, the operands
// swapped.
#pragma once

#include <optional>
#include <vector>

#include "runtime/kernel.h"

namespace shardc::cuda {

// D[rows, cols] = op(A) op(B), all column-major with leading dims; A is the right operand of the
// op, B the left.
struct MatmulPlan {
  int64_t rows = 0, cols = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  // As stored. The leading dim of A is its rows; those of B and D may be more than that.
  int64_t a_rows = 0, a_cols = 0, b_rows = 0, b_cols = 0, b_ld = 0, d_ld = 0;
  int64_t batch = 1, a_stride = 0, b_stride = 0, d_stride = 0;
  // One product (of `batch` matrices) per entry: offsets in elements.
  struct Part {
    int64_t a = 0, b = 0, d = 0;
  };
  std::vector<Part> parts;
  bool empty() const { return rows == 0 || cols == 0 || batch == 0 || parts.empty(); }
};

// Copies of operands in work memory whose columns begin at multiples of 16 bytes. Tensor cores are
// fed 16 bytes at a time; where columns of halves begin anywhere, as with an odd vocabulary, a
// product may take several times as long.
struct PaddingPlan {
  struct Operand {
    int64_t ld = 0, offset = 0;  // elements; bytes. ld 0: it stays where it is
  };
  Operand a, b;
  int64_t bytes = 0;
};
// Nothing where no copy would help, for batches, and for elements wider than halves, which need no
// such care.
std::optional<PaddingPlan> PlanPadding(const MatmulPlan& plan, int64_t element_bytes);

// A product in two, one after the other, of which the first is of multiples of 8: for halves,
// cuBLASLt has the kernels that a Hopper is fast with for such sizes alone, and a vocabulary is
// often odd.
struct SplitPlan {
  MatmulPlan first, second;
  MatmulPlan::Part offset;  // of the second's operands and result
  bool sums = false;        // what is contracted was split: the second is added to the first
};
// Nothing where not exactly one size is no such multiple, where it would be of no use because
// columns begin anywhere, for batches, and for elements wider than halves.
std::optional<SplitPlan> PlanSplit(const MatmulPlan& plan, int64_t element_bytes);

// The plan of matmul, matmul_nt, matmul_tn or linear by local shapes. Nothing when the ranks do not
// fit.
std::optional<MatmulPlan> PlanMatmul(const std::string& op, const Attributes& attrs,
                                     const Shape& left, const Shape& right, const Shape& out);

}  // namespace shardc::cuda
