#include "runtime/cuda/native/trial_gpu.h"

#include <map>
#include <mutex>
#include <string>

#include "ir/diagnostic.h"
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
  void Upload(std::byte* to, const std::vector<std::byte>& from, Stream s) override {
    Copy(to, from.data(), from.size(), cudaMemcpyHostToDevice, s);
  }
  void Download(std::vector<std::byte>& to, const std::byte* from, Stream s) override {
    Copy(to.data(), from, to.size(), cudaMemcpyDeviceToHost, s);
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
  static void Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, Stream s) {
    if (bytes == 0) return;
    Check(cudaMemcpyAsync(to, from, bytes, kind, s), "copy");
    Check(cudaStreamSynchronize(s), "copy");
  }
};

}  // namespace

TrialGpu& ThisGpu() {
  static CudaTrial trial;
  return trial;
}

}  // namespace shardc::cuda
