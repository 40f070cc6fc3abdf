#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/cpu/bind.h"
#include "runtime/cpu/kernels/kernel_table.h"

namespace shardc::cpu {
namespace {

// The kernels update in place; where the plan gave other memory for the result, the operand goes
// there first.
void Move(const float* from, float* to, int64_t n) {
  if (from != to) std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
}

// Whether all operands and results are f32 but for the operand `step`, which may count in i64.
bool AllF32ButStep(const KernelRequest& r, size_t step) {
  auto f32 = [](const TensorView& v) { return v.dtype == DType::kF32; };
  for (size_t i = 0; i < r.call.in.size(); ++i) {
    if (!f32(r.call.in[i]) && (i != step || r.call.in[i].dtype != DType::kI64)) return false;
  }
  return std::all_of(r.call.out.begin(), r.call.out.end(), f32);
}

int64_t StepOf(const TensorView& v) {
  return v.dtype == DType::kI64 ? *v.as<const int64_t>()
                                : static_cast<int64_t>(*v.as<const float>());
}

// w, g, m, v, step, scale, lr -> w, m, v
std::unique_ptr<Kernel> MakeAdamW(const KernelRequest& r) {
  if (!AllF32ButStep(r, 4)) return nullptr;
  const Attributes& a = *r.call.attrs;
  AdamWArgs args;
  args.w = Out(r, 0);
  args.g = In(r, 1);
  args.m = Out(r, 1);
  args.v = Out(r, 2);
  args.n = r.call.in[0].num_elements();
  args.beta1 = a.Float("beta1");
  args.beta2 = a.Float("beta2");
  args.eps = a.Float("eps");
  args.weight_decay = a.Float("weight_decay");
  return MakeKernel([args, w = In(r, 0), m = In(r, 2), v = In(r, 3), step = r.call.in[4],
                     scale = In(r, 5), lr = In(r, 6), threads = r.call.threads]() mutable {
    Move(w, args.w, args.n);
    Move(m, args.m, args.n);
    Move(v, args.v, args.n);
    if (std::isnan(*scale)) return;
    args.step = StepOf(step);
    args.grad_scale = *scale;
    args.lr = *lr;
    Kernels().optimizer.adamw(args, threads);
  });
}

// w, g, scale, lr[, buffer, step] -> w[, buffer]
std::unique_ptr<Kernel> MakeSgd(const KernelRequest& r) {
  if (!AllF32ButStep(r, 5) || r.call.attrs->Float("dampening", 0.0) != 0) return nullptr;
  const Attributes& a = *r.call.attrs;
  SgdArgs args;
  args.w = Out(r, 0);
  args.g = In(r, 1);
  args.n = r.call.in[0].num_elements();
  args.momentum = a.Float("momentum", 0.0);
  args.weight_decay = a.Float("weight_decay", 0.0);
  args.nesterov = a.Bool("nesterov");
  bool momentum = r.call.out.size() > 1;
  if (momentum) args.momentum_buffer = Out(r, 1);
  const float* buffer = momentum ? In(r, 4) : nullptr;
  return MakeKernel([args, momentum, buffer, w = In(r, 0), scale = In(r, 2), lr = In(r, 3),
                     threads = r.call.threads]() mutable {
    Move(w, args.w, args.n);
    if (momentum) Move(buffer, args.momentum_buffer, args.n);
    if (std::isnan(*scale)) return;
    args.grad_scale = *scale;
    args.lr = *lr;
    Kernels().optimizer.sgd(args, threads);
  });
}

constexpr Binding kBindings[] = {{"adamw", MakeAdamW}, {"sgd", MakeSgd}};

}  // namespace

std::span<const Binding> OptimizerBindings() { return kBindings; }

}  // namespace shardc::cpu
