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

// Where a label lies: the shape of this rank's part of them, and what is added to a place there to
// have the one in the whole tensor.
struct Labels {
  Shape shape, origin;
  explicit Labels(const KernelRequest& r, size_t labels = 1)
      : shape(r.call.in[labels].shape), origin(shape.size()) {
    if (r.call.attrs->Has("origin")) origin = r.call.attrs->IntList("origin");
    const auto boxes = reference::ValidBoxes(r.call, r.call.in[labels]);
    if (boxes.empty()) return;
    for (size_t d = 0; d < shape.size(); ++d) origin[d] += boxes[0].global[d] - boxes[0].local[d];
  }
};

// Labels are few.
void CheckLabels(const LogitShard& s, int64_t vocabulary, const Labels& labels,
                 std::string_view op) {
  for (int64_t i = 0; i < s.rows; ++i) {
    int64_t label = s.labels[i];
    if (label == s.ignore_index || (label >= 0 && label < vocabulary)) continue;
    Shape position = labels.origin;
    int64_t rest = i;
    for (size_t d = position.size(); d-- > 0;) {
      position[d] += rest % labels.shape[d];
      rest /= labels.shape[d];
    }
    reference::ThrowOutOfRange(op, "labels", position, label, 0, vocabulary, s.ignore_index);
  }
}

std::unique_ptr<Kernel> MakeCrossEntropy(const KernelRequest& r) {
  LogitShard shard;
  if (!Shard(r, 0, 1, &shard) || shard.valid != shard.stride) return nullptr;
  return MakeKernel(
      [shard, labels = Labels(r), loss = Out(r, 0), lse = Out(r, 1), threads = r.call.threads] {
        CheckLabels(shard, shard.valid, labels, "cross_entropy");
        Kernels().cross_entropy.forward(shard, loss, lse, threads);
      });
}

// logits, labels, max -> sumexp, target
std::unique_ptr<Kernel> MakeStats(const KernelRequest& r) {
  LogitShard shard;
  if (!Shard(r, 0, 1, &shard) || r.call.out.size() != 2) return nullptr;
  if (r.call.in[2].dtype != DType::kF32) return nullptr;
  int64_t vocabulary = r.call.GlobalDim(r.call.in[0], r.call.in[0].rank() - 1);
  return MakeKernel([shard, vocabulary, labels = Labels(r), max = In(r, 2), sum = Out(r, 0),
                     target = Out(r, 1), threads = r.call.threads] {
    CheckLabels(shard, vocabulary, labels, "softmax_stats");
    Kernels().cross_entropy.sum_exp(shard, max, sum, target, threads);
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
  return MakeKernel([shard, labels = Labels(r, 2), dloss = In(r, 0), loss = Out(r, 0),
                     dx = bf16 ? nullptr : Out(r, 1), dx_bf16 = bf16 ? OutBf16(r, 1) : nullptr,
                     threads = r.call.threads] {
    CheckLabels(shard, shard.valid, labels, "cross_entropy");
    Kernels().cross_entropy.with_grad(shard, dloss, loss, dx, dx_bf16, threads);
  });
}

constexpr Binding kBindings[] = {{"cross_entropy", MakeCrossEntropy},
                                 {"cross_entropy_with_grad", MakeWithGrad},
                                 {"softmax_stats", MakeStats},
                                 {"cross_entropy_grad", MakeGrad}};

}  // namespace

std::span<const Binding> LossBindings() { return kBindings; }

}  // namespace shardc::cpu
