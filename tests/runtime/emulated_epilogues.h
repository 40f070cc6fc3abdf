// A library of products with epilogues that runs on the CPU, and trials of it that end as a test
// wants.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cuda/epilogue_kernel.h"
#include "runtime/cuda/kernels/product.h"
#include "tests/runtime/host_trials.h"

namespace shardc::testing {

class EmulatedEpilogues : public cuda::EpilogueLibrary, public HostTrials {
 public:
  using Kernel = std::unique_ptr<cuda::CudaKernel>;

  bool wrong = false;     // the first element of what it gives is
  double took = 0.5;      // where separate kernels take 1
  int made = 0, ran = 0;  // kernels; and their runs
  // Puts a kernel that runs at once on a device that does so in its time.
  std::function<Kernel(Kernel, const cuda::FusedProduct&)> defer =
      [](Kernel k, const cuda::FusedProduct&) { return k; };

  std::string Version() override { return "loops"; }
  cuda::TrialGpu& Gpu() override { return *this; }
  Kernel Make(const cuda::FusedProduct& product, const cuda::Launch& launch,
              std::string* why_not) override {
    Kernel inner = cuda::emulated::MakeFusedProduct(product, launch, why_not);
    if (!inner) return nullptr;
    ++made;
    Kernel fused = std::make_unique<Fused>(*this, std::move(inner), product.result);
    return std::make_unique<Counted>(*this, defer(std::move(fused), product));
  }

  double Time(const std::function<void()>& enqueue, Stream s) override {
    const int before = ran;
    enqueue();
    synchronize(s);
    return ran > before ? took : 1;
  }

 private:
  class Fused : public cuda::CudaKernel {
   public:
    Fused(EmulatedEpilogues& library, Kernel inner, const TensorView& result)
        : library_(library), inner_(std::move(inner)), result_(result) {}
    void Enqueue(const cuda::Launch& launch) override {
      inner_->Enqueue(launch);
      if (!library_.wrong) return;
      const std::byte* first = result_.data;
      const bool is_three = first[DTypeSize(result_.dtype) - 1] == std::byte{0x40};
      std::memset(result_.data, is_three ? 0xc0 : 0x40,
                  static_cast<size_t>(DTypeSize(result_.dtype)));
    }

   private:
    EmulatedEpilogues& library_;
    Kernel inner_;
    TensorView result_;
  };
  class Counted : public cuda::CudaKernel {
   public:
    Counted(EmulatedEpilogues& library, Kernel inner)
        : library_(library), inner_(std::move(inner)) {}
    void Enqueue(const cuda::Launch& launch) override {
      ++library_.ran;
      inner_->Enqueue(launch);
    }

   private:
    EmulatedEpilogues& library_;
    Kernel inner_;
  };
};

}  // namespace shardc::testing
