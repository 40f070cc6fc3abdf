#include "runtime/cuda/native/cudnn_attention.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "ir/diagnostic.h"
#include "runtime/cuda/cudnn/batch_parts.h"
#include "runtime/cuda/cudnn/shared_engines.h"
#include "runtime/cuda/native/check.h"
#include "runtime/cuda/native/trial_gpu.h"
#include "runtime/cuda/rival_kernel.h"

namespace shardc::cuda {
namespace {

struct Library {
  MakeAttentionEngine* make = nullptr;
  AttentionLibraryVersion* version = nullptr;
};

// Empty when it is not there.
Library Load() {
  Library library;
  Dl_info here;
  if (std::getenv("SHARDC_NO_CUDNN")) return library;
  if (dladdr(reinterpret_cast<void*>(&Load), &here) == 0) return library;
  std::string path = here.dli_fname;
  path = path.substr(0, path.rfind('/') + 1) + "libshardc_cudnn.so";
  void* opened = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!opened) {
    if (access(path.c_str(), F_OK) == 0) {
      std::fprintf(stderr, "note: attention is by our own kernels: %s\n", dlerror());
    }
    return library;
  }
  library.make =
      reinterpret_cast<MakeAttentionEngine*>(dlsym(opened, "shardc_cudnn_make_attention"));
  library.version =
      reinterpret_cast<AttentionLibraryVersion*>(dlsym(opened, "shardc_cudnn_version"));
  return library;
}

int64_t KeyRows(const AttentionProblem& p) { return p.b * p.hkv * (p.t + p.unseen); }

class CudnnKernel : public CudaKernel {
 public:
  CudnnKernel(std::shared_ptr<AttentionEngine> engine, const AttentionProblem& problem,
              const AttentionTensors& tensors)
      : engine_(std::move(engine)), problem_(problem), tensors_(tensors) {}
  void Enqueue(const Launch& launch) override {
    if (problem_.backward && problem_.unseen > 0) {
      const int64_t rows = KeyRows(problem_);
      Zero(tensors_.dk, rows * problem_.d, launch.stream);
      Zero(tensors_.dv, rows * problem_.dv, launch.stream);
    }
    std::string failure = engine_->Run(tensors_, launch.workspace);
    if (!failure.empty()) ThrowCuda("attention", failure);
  }
  int64_t workspace_bytes() const override { return engine_->workspace_bytes(); }

 private:
  static void Zero(void* halves, int64_t count, cudaStream_t stream) {
    Check(cudaMemsetAsync(halves, 0, static_cast<size_t>(count) * 2, stream), "cudaMemsetAsync");
  }

  std::shared_ptr<AttentionEngine> engine_;
  AttentionProblem problem_;
  AttentionTensors tensors_;
};

std::string KeyOf(const AttentionProblem& p, int64_t version) {
  std::string key = StrCat(p.backward ? "attention_grad" : "attention", p.bf16 ? " bf16" : " f16",
                           p.causal ? " causal " : " ", p.b, "x", p.hq, ":", p.hkv, "x", p.s, ":",
                           p.t, "x", p.d, ":", p.dv);
  for (const auto* strides : {&p.q_strides, &p.k_strides, &p.v_strides, &p.o_strides}) {
    for (int64_t s : *strides) key += StrCat(strides == &p.q_strides ? " " : ":", s);
  }
  return StrCat(key, p.may_vary ? " may vary" : "", " cudnn ", version);
}

Rivalry RivalryOf(const AttentionProblem& p, const AttentionTensors& t) {
  const DType type = p.bf16 ? DType::kBF16 : DType::kF16;
  const int64_t q = p.b * p.hq * p.s * p.d, k = KeyRows(p) * p.d, v = KeyRows(p) * p.dv,
                o = p.b * p.hq * p.s * p.dv, statistics = p.b * p.hq * p.s;
  auto data = [](void* p) { return static_cast<std::byte*>(p); };
  Rivalry rivalry;
  if (p.together) {
    rivalry.operands = {{data(t.q), q + k + v, type}};
  } else {
    rivalry.operands = {{data(t.q), q, type}, {data(t.k), k, type}, {data(t.v), v, type}};
  }
  // Both round the probabilities to the tensors' type, and both the result; sums are in f32.
  const double unit = p.bf16 ? 0x1p-8 : 0x1p-11;
  if (p.backward) {
    rivalry.operands.push_back({data(t.grad), o, type});
    rivalry.operands.push_back({data(t.o), o, type});
    // About what the scores of such operands have, so that probabilities are of a likely size.
    rivalry.operands.push_back(
        {data(t.statistics), statistics, DType::kF32, std::log(static_cast<double>(p.t)), 0.25});
    if (p.together) {
      rivalry.results = {{data(t.dq), q + k + v, type, unit}};
    } else {
      rivalry.results = {
          {data(t.dq), q, type, unit}, {data(t.dk), k, type, unit}, {data(t.dv), v, type, unit}};
    }
  } else {
    // Statistics are never rounded, but exponentials are approximate.
    rivalry.results = {{data(t.o), o, type, unit},
                       {data(t.statistics), statistics, DType::kF32, 0x1p-14}};
  }
  return rivalry;
}

}  // namespace

std::unique_ptr<CudaKernel> BesideCudnn(std::unique_ptr<CudaKernel> ours,
                                        const AttentionProblem& problem,
                                        const AttentionTensors& tensors, int64_t scratch) {
  static const Library library = Load();
  if (!library.make || !library.version) return ours;
  Rivalry rivalry = RivalryOf(problem, tensors);
  rivalry.key = KeyOf(problem, library.version());
  const int64_t most = std::max(kMostAttentionWorkspace, scratch);
  rivalry.make = [problem, tensors, most](const Launch& launch,
                                          std::string* why_not) -> std::unique_ptr<CudaKernel> {
    static auto& engines = *new SharedEngines;
    auto shared = [&](const AttentionProblem& p, std::string* why) {
      return engines.Get(
          StrCat(KeyOf(p, library.version()), " scale ", p.scale, " on ", launch.device),
          launch.stream,
          [&](std::string* refusal) { return library.make(p, launch.stream, refusal); }, why);
    };
    std::shared_ptr<AttentionEngine> engine = MakeWithin(most, problem, shared, why_not);
    if (!engine) return nullptr;
    return std::make_unique<CudnnKernel>(std::move(engine), problem, tensors);
  };
  return MakeRivalKernel(std::move(ours), std::move(rivalry), ThisGpu());
}

}  // namespace shardc::cuda
