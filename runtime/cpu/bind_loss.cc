#include "ir/ops/reference_util.h"
#include "runtime/cpu/bind.h"
#include "runtime/cpu/kernels/kernel_table.h"

namespace shardc::cpu {
namespace {

// The shard of logits in operand `logits` with labels in operand `labels`. False when the
// vocabulary is not one stretch, the logits are neither f32 nor bf16, or the labels not i64.
bool Shard(const KernelRequest& r, size_t logits, size_t labels, LogitShard* shard) {
  const TensorView& x = r.call.in[logits];
  auto runs = r.call.Runs(x, x.rank() - 1);
  if (r.call.attrs->Has("classes")) runs = {{0, 0, r.call.attrs->Int("classes")}};
  const bool bf16 = x.dtype == DType::kBF16;
  if ((x.dtype != DType::kF32 && !bf16) || r.call.in[labels].dtype != DType::kI64 ||
      runs.size() > 1 || (!runs.empty() && runs[0].local != 0)) {
    return false;
  }
  if (r.call.attrs->Float("label_smoothing", 0.0) != 0) return false;
  if (bf16) {
    shard->logits_bf16 = x.as<const uint16_t>();
  } else {
    shard->logits = x.as<const float>();
  }
  shard->stride = x.shape.back();
  shard->rows = Product(x.shape, 0, x.shape.size() - 1);
  shard->valid = runs.empty() ? 0 : runs[0].size;
  shard->vocab_offset = runs.empty() ? 0 : runs[0].global;
  shard->ignore_index = r.call.attrs->Int("ignore_index", -100);
  shard->labels = r.call.in[labels].as<const int64_t>();
  return true;
}

// Labels are few.
void CheckLabels(const KernelCall& call, const TensorView& labels, int64_t vocabulary,
                 std::string_view op) {
  reference::CheckRange(call, labels, op, "labels", 0, vocabulary,
                        call.attrs->Int("ignore_index", -100));
}

std::unique_ptr<Kernel> MakeCrossEntropy(const KernelRequest& r) {
  LogitShard shard;
  if (!Shard(r, 0, 1, &shard) || shard.valid != shard.stride) return nullptr;
  return MakeKernel([shard, call = r.call, loss = Out(r, 0), lse = Out(r, 1)] {
    CheckLabels(call, call.in[1], shard.valid, "cross_entropy");
    Kernels().cross_entropy.forward(shard, loss, lse, call.threads);
  });
}

// logits, labels, max -> sumexp, target
std::unique_ptr<Kernel> MakeStats(const KernelRequest& r) {
  LogitShard shard;
  if (!Shard(r, 0, 1, &shard) || r.call.out.size() != 2) return nullptr;
  if (r.call.in[2].dtype != DType::kF32) return nullptr;
  int64_t vocabulary = r.call.GlobalDim(r.call.in[0], r.call.in[0].rank() - 1);
  return MakeKernel(
      [shard, vocabulary, call = r.call, max = In(r, 2), sum = Out(r, 0), target = Out(r, 1)] {
        CheckLabels(call, call.in[1], vocabulary, "softmax_stats");
        Kernels().cross_entropy.sum_exp(shard, max, sum, target, call.threads);
      });
}

// dloss, logits, labels, lse -> dlogits
std::unique_ptr<Kernel> MakeGrad(const KernelRequest& r) {
  LogitShard shard;
  if (!Shard(r, 1, 2, &shard) || r.call.in[0].dtype != DType::kF32) {
    return nullptr;
  }
  if (r.call.out[0].dtype == DType::kBF16) {
    return MakeKernel(
        [shard, dloss = In(r, 0), lse = In(r, 3), dx = OutBf16(r, 0), threads = r.call.threads] {
          Kernels().cross_entropy.backward_bf16(shard, dloss, lse, dx, threads);
        });
  }
  if (r.call.out[0].dtype != DType::kF32) return nullptr;
  return MakeKernel(
      [shard, dloss = In(r, 0), lse = In(r, 3), dx = Out(r, 0), threads = r.call.threads] {
        Kernels().cross_entropy.backward(shard, dloss, lse, dx, threads);
      });
}

// dloss, logits, labels -> loss, dlogits
std::unique_ptr<Kernel> MakeWithGrad(const KernelRequest& r) {
  LogitShard shard;
  if (!Shard(r, 1, 2, &shard) || r.call.in[0].dtype != DType::kF32) {
    return nullptr;
  }
  if (shard.valid != r.call.attrs->Int("classes", shard.stride)) return nullptr;
  const bool bf16 = r.call.out[1].dtype == DType::kBF16;
  if (!bf16 && r.call.out[1].dtype != DType::kF32) return nullptr;
  return MakeKernel([shard, call = r.call, dloss = In(r, 0), loss = Out(r, 0),
                     dx = bf16 ? nullptr : Out(r, 1), dx_bf16 = bf16 ? OutBf16(r, 1) : nullptr] {
    CheckLabels(call, call.in[2], shard.valid, "cross_entropy");
    Kernels().cross_entropy.with_grad(shard, dloss, loss, dx, dx_bf16, call.threads);
  });
}

constexpr Binding kBindings[] = {{"cross_entropy", MakeCrossEntropy},
                                 {"cross_entropy_with_grad", MakeWithGrad},
                                 {"softmax_stats", MakeStats},
                                 {"cross_entropy_grad", MakeGrad}};

}  // namespace

std::span<const Binding> LossBindings() { return kBindings; }

}  // namespace shardc::cpu
