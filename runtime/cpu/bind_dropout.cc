#include <algorithm>
#include <memory>

#include "ir/dropout.h"
#include "runtime/cpu/bind.h"
#include "runtime/cpu/draw_of.h"
#include "runtime/cpu/kernels/kernel_table.h"
#include "runtime/cpu/kernels/parallel.h"

namespace shardc::cpu {
namespace {

// Elements that lie one after the other here and in the whole tensor.
struct Stretch {
  int64_t local = 0, global = 0, size = 0;
};

std::vector<Stretch> StretchesOf(const KernelCall& call) {
  const DropoutPlaces places = PlacesOf(call);
  std::vector<Stretch> stretches;
  const auto rows = static_cast<int64_t>(places.rows.size());
  const int64_t width = rows == 0 ? 0 : call.in[0].num_elements() / rows;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t begin = places.rows[row];
    if (begin < 0) continue;
    for (const Run& run : places.columns) {
      const Stretch next{row * width + run.local, begin + run.global, run.size};
      Stretch* last = stretches.empty() ? nullptr : &stretches.back();
      if (last && last->local + last->size == next.local &&
          last->global + last->size == next.global) {
        last->size += next.size;
      } else {
        stretches.push_back(next);
      }
    }
  }
  return stretches;
}

// Pieces that threads share out evenly.
std::vector<Stretch> Cut(const std::vector<Stretch>& stretches, int64_t largest) {
  std::vector<Stretch> pieces;
  for (const Stretch& s : stretches) {
    for (int64_t at = 0; at < s.size; at += largest) {
      pieces.push_back({s.local + at, s.global + at, std::min(largest, s.size - at)});
    }
  }
  return pieces;
}

// Of f32 results, from operands that are not read where `x` is null.
std::unique_ptr<Kernel> MakeDrawing(const KernelRequest& r, const float* x,
                                    void (*draw)(const DropoutArgs&)) {
  const TensorView &step = r.call.in[1], &y = r.call.out[0];
  constexpr int64_t kPiece = 16384;
  auto pieces = std::make_shared<const std::vector<Stretch>>(Cut(StretchesOf(r.call), kPiece));
  int64_t covered = 0;
  for (const Stretch& s : *pieces) covered += s.size;
  const DropoutMask mask = MaskOf(*r.call.attrs);
  DropoutArgs args;
  args.draw = DrawOf(mask);
  args.scale = static_cast<float>(mask.scale);
  return MakeKernel([args, pieces, x, step, y, draw, padded = covered < y.num_elements(),
                     threads = r.call.threads] {
    DropoutArgs a = args;
    a.draw.step = StepIn(step);
    float* to = y.as<float>();
    // In place, the padding is zero as it is.
    if (padded && x != to) std::fill_n(to, y.num_elements(), 0.0f);
    const auto n = static_cast<int64_t>(pieces->size());
    ParallelFor(threads, n, 1, [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        const Stretch& s = (*pieces)[p];
        DropoutArgs piece = a;
        if (x != nullptr) piece.x = x + s.local;
        piece.y = to + s.local;
        piece.n = s.size;
        piece.first = s.global;
        draw(piece);
      }
    });
  });
}

// x, step -> y
std::unique_ptr<Kernel> MakeDropout(const KernelRequest& r) {
  const TensorView &x = r.call.in[0], &y = r.call.out[0];
  if (x.dtype != DType::kF32 || y.dtype != DType::kF32) return nullptr;
  return MakeDrawing(r, x.as<const float>(), Kernels().dropout.stretch);
}

// like, step -> y
std::unique_ptr<Kernel> MakeUniform(const KernelRequest& r) {
  if (r.call.out[0].dtype != DType::kF32) return nullptr;
  return MakeDrawing(r, nullptr, Kernels().dropout.uniform);
}

constexpr Binding kBindings[] = {{"dropout", MakeDropout}, {"random_uniform", MakeUniform}};

}  // namespace

std::span<const Binding> DropoutBindings() { return kBindings; }

}  // namespace shardc::cpu
