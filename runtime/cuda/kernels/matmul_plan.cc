#include "runtime/cuda/kernels/matmul_plan.h"

#include "runtime/cuda/kernels/geometry.h"

namespace shardc::cuda {
namespace {

// The leading dims as one strided batch, the innermost, and a list of the others.
bool SetBatch(MatmulPlan* p, const Shape& left, const Shape& right, const Shape& out) {
  Shape lead(out.begin(), out.end() - 2);
  auto strides = [&](const Shape& s) {
    Shape mine(s.begin(), s.end() - 2);
    std::vector<int64_t> st = BroadcastStrides(mine, lead);
    for (int64_t& v : st) v *= s[s.size() - 1] * s[s.size() - 2];
    return st;
  };
  if (left.size() > out.size() || right.size() > out.size()) return false;
  auto walk = MakeWalk(lead, {strides(right), strides(left), strides(out)});
  if (!walk) return false;
  int outer = walk->rank - 1;
  if (walk->rank > 0) {
    p->batch = walk->dims[outer];
    p->a_stride = walk->strides[0][outer];
    p->b_stride = walk->strides[1][outer];
    p->d_stride = walk->strides[2][outer];
  }
  int64_t count = 1;
  for (int d = 0; d < outer; ++d) count *= walk->dims[d];
  for (int64_t i = 0; i < count; ++i) {
    MatmulPlan::Part part;
    int64_t rest = i;
    for (int d = outer - 1; d >= 0; --d) {
      int64_t index = rest % walk->dims[d];
      rest /= walk->dims[d];
      part.a += index * walk->strides[0][d];
      part.b += index * walk->strides[1][d];
      part.d += index * walk->strides[2][d];
    }
    p->parts.push_back(part);
  }
  return true;
}

}  // namespace

std::optional<PaddingPlan> PlanPadding(const MatmulPlan& plan, int64_t element_bytes) {
  constexpr int64_t kAlignment = 16, kPlace = 256;
  if (element_bytes > 2 || plan.batch != 1 || plan.parts.size() != 1) return std::nullopt;
  PaddingPlan out;
  auto pad = [&](int64_t rows, int64_t ld, int64_t cols, PaddingPlan::Operand* operand) {
    const int64_t each = kAlignment / element_bytes;
    if (ld % each == 0 || rows < each || cols < 2) return;
    operand->ld = CeilDiv(rows, each) * each;
    operand->offset = out.bytes;
    out.bytes += CeilDiv(operand->ld * cols * element_bytes, kPlace) * kPlace;
  };
  pad(plan.a_rows, plan.a_rows, plan.a_cols, &out.a);
  pad(plan.b_rows, plan.b_ld, plan.b_cols, &out.b);
  if (out.bytes == 0) return std::nullopt;
  return out;
}

std::optional<SplitPlan> PlanSplit(const MatmulPlan& plan, int64_t element_bytes) {
  constexpr int64_t kEach = 8;
  if (element_bytes > 2 || plan.batch != 1 || plan.parts.size() != 1) return std::nullopt;
  auto odd = [](int64_t size) { return size % kEach != 0; };
  if (odd(plan.rows) + odd(plan.cols) + odd(plan.k) != 1) return std::nullopt;
  if (odd(plan.a_rows) || odd(plan.b_ld) || odd(plan.d_ld)) return std::nullopt;
  SplitPlan s{plan, plan, {}, odd(plan.k)};
  // The size, and where it is among those that are stored.
  auto split = [&](int64_t MatmulPlan::*size, std::initializer_list<int64_t MatmulPlan::*> stored) {
    const int64_t first = plan.*size / kEach * kEach;
    s.first.*size = first;
    s.second.*size -= first;
    for (auto dim : stored) {
      s.first.*dim = s.first.*size;
      s.second.*dim = s.second.*size;
    }
    return first;
  };
  int64_t first = 0;
  if (odd(plan.rows)) {  // A is transposed: its columns
    first = split(&MatmulPlan::rows, {&MatmulPlan::a_cols});
    s.offset = {first * plan.a_rows, 0, first};
  } else if (odd(plan.cols)) {
    first =
        split(&MatmulPlan::cols, {plan.transpose_b ? &MatmulPlan::b_rows : &MatmulPlan::b_cols});
    s.offset = {0, plan.transpose_b ? first : first * plan.b_ld, first * plan.d_ld};
  } else {  // A is not
    first = split(&MatmulPlan::k, {&MatmulPlan::a_cols,
                                   plan.transpose_b ? &MatmulPlan::b_cols : &MatmulPlan::b_rows});
    s.offset = {first * plan.a_rows, plan.transpose_b ? first * plan.b_ld : first, 0};
  }
  if (first == 0) return std::nullopt;
  return s;
}

std::optional<MatmulPlan> PlanMatmul(const std::string& op, const Attributes& attrs,
                                     const Shape& left, const Shape& right, const Shape& out) {
  if (left.size() < 2 || right.size() < 2 || out.size() < 2) return std::nullopt;
  MatmulPlan p;
  if (op == "matmul_tn") {
    auto batch = static_cast<size_t>(attrs.Int("batch", 0));
    const int64_t k = Product(left, batch, left.size() - 1), m = attrs.Int("cols", left.back()),
                  n = right.back();
    p.rows = n;
    p.cols = m;
    p.k = k;
    p.transpose_b = true;
    p.a_rows = n;
    p.b_rows = m;
    p.b_ld = left.back();
    p.d_ld = n;
    p.a_cols = p.b_cols = k;
    p.batch = Product(left, 0, batch);
    p.a_stride = k * n;
    p.b_stride = k * p.b_ld;
    p.d_stride = m * n;
    p.parts = {{}};
    return p;
  }
  bool nt = op == "matmul_nt" || (op == "linear" && attrs.Bool("nt"));
  p.k = attrs.Int("cols", left.back());
  p.rows = right[right.size() - (nt ? 2 : 1)];
  p.b_ld = left.back();
  p.d_ld = out.back();
  p.transpose_a = nt;
  p.a_rows = nt ? p.k : p.rows;
  p.a_cols = nt ? p.rows : p.k;
  p.b_rows = p.k;
  bool folds = right.size() == 2;  // all rows of the left operand in one matrix
  p.cols = p.b_cols = folds ? Product(left, 0, left.size() - 1) : left[left.size() - 2];
  if (folds) {
    p.parts = {{}};
    return p;
  }
  if (!SetBatch(&p, left, right, out)) return std::nullopt;
  return p;
}

}  // namespace shardc::cuda
