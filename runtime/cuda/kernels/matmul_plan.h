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
  int64_t a_rows = 0, a_cols = 0, b_rows = 0, b_cols = 0;  // as stored; the leading dim is the rows
  int64_t batch = 1, a_stride = 0, b_stride = 0, d_stride = 0;
  // One product (of `batch` matrices) per entry: offsets in elements.
  struct Part {
    int64_t a = 0, b = 0, d = 0;
  };
  std::vector<Part> parts;
  bool empty() const { return rows == 0 || cols == 0 || batch == 0 || parts.empty(); }
};

// The plan of matmul, matmul_nt, matmul_tn or linear by local shapes. Nothing when the ranks do not
// fit.
std::optional<MatmulPlan> PlanMatmul(const std::string& op, const Attributes& attrs,
                                     const Shape& left, const Shape& right, const Shape& out);

}  // namespace shardc::cuda
