#include "runtime/cuda/native/trial_gpu.h"

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "ir/diagnostic.h"
#include "runtime/cuda/kernels/trial.h"
#include "runtime/cuda/native/check.h"

namespace shardc::cuda {
namespace {

// Destroyed also where a call between fails.
struct TimedEvent {
  cudaEvent_t event = nullptr;
  TimedEvent() { Check(cudaEventCreate(&event), "new event"); }
  ~TimedEvent() { cudaEventDestroy(event); }
};

class CudaTrial : public TrialGpu {
 public:
  std::string Name() override {
    int gpu = 0;
    Check(cudaGetDevice(&gpu), "current GPU");
    // To ask takes milliseconds, and every kernel that is tuned does.
    static std::mutex mutex;
    static auto& names = *new std::map<int, std::string>;
    std::lock_guard lock(mutex);
    std::string& name = names[gpu];
    if (name.empty()) {
      cudaDeviceProp properties;
      Check(cudaGetDeviceProperties(&properties, gpu), "properties of a GPU");
      name = StrCat(properties.name, " ", properties.multiProcessorCount);
    }
    return name;
  }
  std::byte* Allocate(int64_t bytes) override {
    void* p = nullptr;
    const cudaError_t status = cudaMalloc(&p, static_cast<size_t>(bytes));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return nullptr;
    }
    Check(status, "memory for a trial");
    return static_cast<std::byte*>(p);
  }
  void Free(std::byte* p) noexcept override { cudaFree(p); }
  void Fill(std::byte* to, int byte, int64_t bytes, Stream s) override {
    if (bytes > 0) Check(cudaMemsetAsync(to, byte, static_cast<size_t>(bytes), s), "fill");
  }
  void Copy(std::byte* to, const std::byte* from, int64_t bytes, Stream s) override {
    if (bytes == 0) return;
    Check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, s),
          "copy");
  }
  void Draw(const Noise& noise, Stream s) override { LaunchNoise(On(s), noise); }
  Deviation Compare(const Comparison& c, Stream s) override {
    struct Parts {
      void* data = nullptr;
      ~Parts() { cudaFree(data); }
    } parts;
    std::vector<Deviation> found(static_cast<size_t>(SumBlocks(c.count)));
    const size_t bytes = found.size() * sizeof(Deviation);
    Check(cudaMalloc(&parts.data, bytes), "memory for a trial");
    LaunchComparison(On(s), c, static_cast<Deviation*>(parts.data));
    Check(cudaMemcpyAsync(found.data(), parts.data, bytes, cudaMemcpyDeviceToHost, s), "copy");
    Check(cudaStreamSynchronize(s), "a comparison");
    return Joined(found);
  }
  double Time(const std::function<void()>& enqueue, Stream s) override {
    TimedEvent begin, end;
    float took = 0;
    Check(cudaEventRecord(begin.event, s), "record of an event");
    enqueue();
    Check(cudaEventRecord(end.event, s), "record of an event");
    Check(cudaEventSynchronize(end.event), "a kernel that is timed");
    Check(cudaEventElapsedTime(&took, begin.event, end.event), "time between events");
    return took;
  }

 private:
  static Launch On(Stream s) {
    Launch launch;
    launch.stream = s;
    return launch;
  }
};

}  // namespace

TrialGpu& ThisGpu() {
  static CudaTrial trial;
  return trial;
}

}  // namespace shardc::cuda
