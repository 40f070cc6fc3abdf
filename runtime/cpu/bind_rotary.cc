#include <algorithm>
#include <memory>
#include <vector>

#include "runtime/cpu/bind.h"
#include "runtime/cpu/kernels/kernel_table.h"
#include "runtime/cpu/kernels/parallel.h"

namespace shardc::cpu {
namespace {

// A dim of x's rows, and how far it moves in the tables.
struct RowDim {
  int64_t size = 1, cos = 0, sin = 0;
};

// The dims of x but the last; those of size 1 are dropped, neighbours that the tables walk alike
// are one.
std::vector<RowDim> RowDims(const Shape& x, const Shape& cos, const Shape& sin) {
  std::vector<RowDim> dims;
  auto advance = [](const Shape& table, size_t from_end, int64_t& stride) {
    const int64_t n = from_end <= table.size() ? table[table.size() - from_end] : 1;
    const int64_t own = n == 1 ? 0 : stride;
    stride *= n;
    return own;
  };
  int64_t cos_stride = cos.back(), sin_stride = sin.back();
  for (size_t d = 2; d <= x.size(); ++d) {  // from the innermost
    RowDim dim{x[x.size() - d], advance(cos, d, cos_stride), advance(sin, d, sin_stride)};
    if (dim.size == 1) continue;
    RowDim* inner = dims.empty() ? nullptr : &dims.back();
    if (inner && dim.cos == inner->cos * inner->size && dim.sin == inner->sin * inner->size) {
      inner->size *= dim.size;
    } else {
      dims.push_back(dim);
    }
  }
  if (dims.empty()) dims.emplace_back();
  std::reverse(dims.begin(), dims.end());
  return dims;
}

// Calls `turn` for stretches of rows [begin, end) along the innermost dim.
template <typename Rows, typename Turn>
void ForStretches(const Rows& all, const std::vector<RowDim>& dims, int64_t begin, int64_t end,
                  const Turn& turn) {
  const RowDim& inner = dims.back();
  for (int64_t row = begin; row < end;) {
    int64_t cos = 0, sin = 0, rest = row;
    for (size_t d = dims.size(); d-- > 0; rest /= dims[d].size) {
      cos += rest % dims[d].size * dims[d].cos;
      sin += rest % dims[d].size * dims[d].sin;
    }
    Rows part = all;
    part.rows = std::min(end - row, inner.size - row % inner.size);
    part.x += row * all.cols;
    part.y += row * all.cols;
    part.cos += cos;
    part.sin += sin;
    turn(part);
    row += part.rows;
  }
}

template <typename T, typename U>
std::unique_ptr<Kernel> Make(const KernelRequest& r,
                             void (*RotaryKernels::*turn)(const RotaryRowsOf<T, U>&)) {
  constexpr int64_t kGrain = 16384;  // elements
  const TensorView &x = r.call.in[0], &cos = r.call.in[1], &sin = r.call.in[2];
  RotaryRowsOf<T, U> args;
  args.x = x.as<const T>();
  args.y = r.call.out[0].as<U>();
  args.cos = In(r, 1);
  args.sin = In(r, 2);
  args.cols = x.shape.back();
  args.pairs = cos.shape.back();
  args.rows = Product(x.shape, 0, x.shape.size() - 1);
  const std::vector<RowDim> dims = RowDims(x.shape, cos.shape, sin.shape);
  args.cos_step = dims.back().cos;
  args.sin_step = dims.back().sin;
  args.interleaved = r.call.attrs->Bool("interleaved");
  args.inverse = r.call.attrs->Bool("inverse");
  return MakeKernel([args, dims, turn, threads = r.call.threads] {
    if (args.cols == 0) return;
    ParallelFor(threads, args.rows, kGrain / args.cols + 1, [&](int64_t begin, int64_t end) {
      ForStretches(args, dims, begin, end, Kernels().rotary.*turn);
    });
  });
}

// x, cos, sin -> y. Tables in halves, which only models in halves have, are widened with the rest.
std::unique_ptr<Kernel> MakeRotary(const KernelRequest& r) {
  const DType x = r.call.in[0].dtype, y = r.call.out[0].dtype;
  constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16;
  if (r.call.in[1].dtype != kF32) return nullptr;
  if (x == kF32 && y == kF32) return Make(r, &RotaryKernels::rows);
  if (x == kF32 && y == kBF16) return Make(r, &RotaryKernels::rows_to_bf16);
  if (x == kBF16 && y == kF32) return Make(r, &RotaryKernels::rows_from_bf16);
  if (x == kBF16 && y == kBF16) return Make(r, &RotaryKernels::rows_bf16);
  return nullptr;
}

constexpr Binding kBindings[] = {{"rotary", MakeRotary}};

}  // namespace

std::span<const Binding> RotaryBindings() { return kBindings; }

}  // namespace shardc::cpu
