#include "runtime/cpu/widen.h"

#include <algorithm>
#include <vector>

#include "runtime/cpu/kernels/kernel_table.h"
#include "runtime/cpu/kernels/room.h"

namespace shardc::cpu {
namespace {

thread_local Room room;

bool IsHalf(const TensorView& v) { return v.dtype == DType::kF16 || v.dtype == DType::kBF16; }

// In f32, from one copy to the next.
size_t RoomFor(const TensorView& v) {
  return (static_cast<size_t>(v.num_elements()) * sizeof(float) + 63) / 64 * 64;
}

class WidenedKernel : public Kernel {
 public:
  WidenedKernel(const KernelRequest& r, Factory make) : narrow_(r), make_(make) {
    size_t bytes = 0;
    for (auto views : {r.call.in, r.call.out}) {
      for (const TensorView& v : views) bytes += IsHalf(v) ? RoomFor(v) : 0;
    }
    grown_ = room.Reserve(bytes);
    MakeInner();
  }

  bool exists() const { return inner_ != nullptr; }

  void Run() override {
    if (place_ != room.data()) MakeInner();
    const CastKernels& cast = Kernels().cast;
    const int threads = narrow_.call.threads;
    for (size_t i = 0; i < in_.size(); ++i) {
      const TensorView& from = narrow_.call.in[i];
      if (!IsHalf(from)) continue;
      (from.dtype == DType::kF16 ? cast.f16_to_f32 : cast.bf16_to_f32)(
          from.as<const uint16_t>(), in_[i].as<float>(), from.num_elements(), threads);
    }
    inner_->Run();
    for (size_t i = 0; i < out_.size(); ++i) {
      const TensorView& to = narrow_.call.out[i];
      if (!IsHalf(to)) continue;
      (to.dtype == DType::kF16 ? cast.f32_to_f16 : cast.f32_to_bf16)(
          out_[i].as<const float>(), to.as<uint16_t>(), to.num_elements(), threads);
    }
  }

  int64_t held_bytes() const override { return grown_ + inner_held_; }

 private:
  void MakeInner() {
    place_ = room.data();
    auto* at = static_cast<std::byte*>(place_);
    auto widen = [&](std::span<const TensorView> narrow, std::vector<TensorView>& wide) {
      wide.assign(narrow.begin(), narrow.end());
      for (TensorView& v : wide) {
        if (!IsHalf(v)) continue;
        v.dtype = DType::kF32;
        v.data = at;
        at += RoomFor(v);
      }
    };
    widen(narrow_.call.in, in_);
    widen(narrow_.call.out, out_);
    KernelRequest request = narrow_;
    request.call.in = in_;
    request.call.out = out_;
    inner_ = make_(request);
    // Room that the first inner kernel made grow is there for the next.
    if (inner_) inner_held_ = std::max(inner_held_, inner_->held_bytes());
  }

  KernelRequest narrow_;
  Factory make_;
  int64_t grown_ = 0, inner_held_ = 0;
  void* place_ = nullptr;             // of the room, as the inner kernel knows it
  std::vector<TensorView> in_, out_;  // what the inner kernel's call refers to
  std::unique_ptr<Kernel> inner_;
};

}  // namespace

std::unique_ptr<Kernel> MakeWidened(const KernelRequest& r, Factory make) {
  if (std::none_of(r.call.in.begin(), r.call.in.end(), IsHalf) &&
      std::none_of(r.call.out.begin(), r.call.out.end(), IsHalf)) {
    return nullptr;
  }
  auto kernel = std::make_unique<WidenedKernel>(r, make);
  return kernel->exists() ? std::move(kernel) : nullptr;
}

}  // namespace shardc::cpu
