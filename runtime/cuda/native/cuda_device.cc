#include "runtime/cuda/native/cuda_device.h"

#include <cublasLt.h>

#include <cstring>

#include "runtime/cuda/kernels/reduction.h"
#include "runtime/cuda/native/check.h"
#include "runtime/cuda/native/fill.h"

namespace shardc::cuda {
namespace {

int Attribute(cudaDeviceAttr attribute, int gpu) {
  int value = 0;
  Check(cudaDeviceGetAttribute(&value, attribute, gpu), "attribute of a GPU");
  return value;
}

[[noreturn]] void OutOfMemory(const std::string& what, int64_t bytes, const char* where) {
  throw Diagnostic("E4007", ExitCode::kMemory, what,
                   StrCat("cannot allocate ", bytes, " bytes on the ", where),
                   "use more ranks on more GPUs, or a smaller batch");
}

class CudaDevice : public Device {
 public:
  explicit CudaDevice(int index) : index_(index) {
    Activate();
    sm_count_ = Attribute(cudaDevAttrMultiProcessorCount, index);
    if (cublasLtCreate(&blas_) != CUBLAS_STATUS_SUCCESS) ThrowCuda("cublasLtCreate", "it failed");
  }
  ~CudaDevice() override {
    cudaSetDevice(index_);
    cublasLtDestroy(blas_);
  }

  void Activate() override { Check(cudaSetDevice(index_), "cudaSetDevice"); }

  std::byte* Allocate(int64_t bytes, const std::string& what) override {
    void* p = nullptr;
    cudaError_t status = cudaMalloc(&p, static_cast<size_t>(bytes));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      OutOfMemory(what, bytes, "GPU");
    }
    Check(status, "cudaMalloc for " + what);
    return static_cast<std::byte*>(p);
  }
  void Free(std::byte* p) noexcept override { cudaFree(p); }
  int64_t UsedBytes() override {
    size_t free = 0, total = 0;
    Check(cudaMemGetInfo(&free, &total), "memory of a GPU");
    return static_cast<int64_t>(total - free);
  }

  std::byte* AllocateHost(int64_t bytes, const std::string& what) override {
    void* p = nullptr;
    cudaError_t status = cudaMallocHost(&p, static_cast<size_t>(bytes));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      OutOfMemory(what, bytes, "host, within reach of the GPU");
    }
    Check(status, "cudaMallocHost for " + what);
    return static_cast<std::byte*>(p);
  }
  void FreeHost(std::byte* p) noexcept override { cudaFreeHost(p); }

  Stream MakeStream(bool urgent) override {
    int least = 0, greatest = 0;
    Check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "priorities of streams");
    cudaStream_t s = nullptr;
    Check(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, urgent ? greatest : least),
          "new stream");
    return s;
  }
  void DestroyStream(Stream s) noexcept override { cudaStreamDestroy(s); }
  Event MakeEvent() override {
    cudaEvent_t e = nullptr;
    Check(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), "new event");
    return e;
  }
  Event MakeTimedEvent() override {
    cudaEvent_t e = nullptr;
    Check(cudaEventCreate(&e), "new event");
    return e;
  }
  double Milliseconds(Event from, Event to) override {
    float ms = 0;
    Check(cudaEventElapsedTime(&ms, from, to), "time between events");
    return ms;
  }
  void DestroyEvent(Event e) noexcept override { cudaEventDestroy(e); }
  void Record(Event e, Stream s) override { Check(cudaEventRecord(e, s), "record of an event"); }
  void Wait(Stream s, Event e) override {
    Check(cudaStreamWaitEvent(s, e, 0), "wait for an event");
  }
  bool Done(Stream s) override {
    cudaError_t status = cudaStreamQuery(s);
    if (status == cudaErrorNotReady) {
      cudaGetLastError();  // else the next launch of a kernel reports it as its own
      return false;
    }
    Check(status, "a step");
    return true;
  }
  void Synchronize(Stream s) override { Check(cudaStreamSynchronize(s), "a step"); }

  void CopyIn(std::byte* to, const std::byte* from, int64_t bytes, Stream s) override {
    CopyAny(to, from, bytes, cudaMemcpyHostToDevice, s);
  }
  void CopyOut(std::byte* to, const std::byte* from, int64_t bytes, Stream s) override {
    CopyAny(to, from, bytes, cudaMemcpyDeviceToHost, s);
  }
  void Copy(std::byte* to, const std::byte* from, int64_t bytes, Stream s) override {
    CopyAny(to, from, bytes, cudaMemcpyDeviceToDevice, s);
  }
  void Fill(std::byte* to, int byte, int64_t bytes, Stream s) override {
    LaunchFill(to, byte, bytes, s);
  }
  void Reduce(const Reduction& r, Stream s) override { LaunchReduction(LaunchOn(s), r); }

  Launch LaunchOn(Stream s) override {
    Launch launch;
    launch.stream = s;
    launch.blas = blas_;
    launch.device = index_;
    launch.sm_count = sm_count_;
    return launch;
  }

  // Thread-local: other ranks' threads may allocate and load code meanwhile.
  void BeginCapture(Stream s) override {
    Check(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), "begin of a capture");
  }
  StepGraph EndCapture(Stream s) override {
    cudaGraph_t graph = nullptr;
    Check(cudaStreamEndCapture(s, &graph), "end of a capture");
    MemsetsToKernels(graph);
    cudaGraphExec_t ready = nullptr;
    // Else all of it would have the priority of the stream that launches it.
    cudaError_t status =
        cudaGraphInstantiate(&ready, graph, cudaGraphInstantiateFlagUseNodePriority);
    cudaGraphDestroy(graph);
    Check(status, "a graph of the step");
    // What the first launch would take of the GPU may wait until it is idle, or another GPU of the
    // process, which may by then wait in a collective for this launch.
    status = cudaGraphUpload(ready, s);
    if (status == cudaSuccess) status = cudaStreamSynchronize(s);
    if (status != cudaSuccess) cudaGraphExecDestroy(ready);
    Check(status, "upload of the step's graph");
    return ready;
  }
  void AbandonCapture(Stream s) noexcept override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(s, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone) {
      cudaGraph_t graph = nullptr;
      cudaStreamEndCapture(s, &graph);
      if (graph) cudaGraphDestroy(graph);
    }
    cudaGetLastError();
  }
  void LaunchGraph(StepGraph g, Stream s) override {
    Check(cudaGraphLaunch(g, s), "launch of the step's graph");
  }
  void DestroyGraph(StepGraph g) noexcept override { cudaGraphExecDestroy(g); }

 private:
  static void CopyAny(std::byte* to, const std::byte* from, int64_t bytes, cudaMemcpyKind kind,
                      Stream s) {
    Check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, s), "copy");
  }

  int index_;
  int sm_count_ = 1;
  cublasLtHandle_t blas_ = nullptr;
};

[[noreturn]] void NoGpu(const std::string& why) {
  throw Diagnostic("E4302", ExitCode::kIo, "--backend cuda", why,
                   "run on a machine with an NVIDIA GPU and driver, or use --backend cpu");
}

}  // namespace

int CountGpus() {
  int n = 0;
  cudaError_t status = cudaGetDeviceCount(&n);
  if (status != cudaSuccess) {
    cudaGetLastError();
    NoGpu(StrCat("there is no usable GPU here: ", cudaGetErrorString(status)));
  }
  if (n == 0) NoGpu("there is no GPU here");
  return n;
}

GpuIdentity IdentifyGpu(int index) {
  cudaDeviceProp properties;
  Check(cudaGetDeviceProperties(&properties, index), "properties of a GPU");
  GpuIdentity identity;
  static_assert(sizeof(properties.uuid.bytes) == sizeof(identity));
  std::memcpy(identity.data(), properties.uuid.bytes, identity.size());
  return identity;
}

std::unique_ptr<Device> OpenGpu(int index) {
  int major = Attribute(cudaDevAttrComputeCapabilityMajor, index);
  if (major < 8) {
    int minor = Attribute(cudaDevAttrComputeCapabilityMinor, index);
    NoGpu(StrCat("GPU ", index, " is sm_", major, minor, ", older than sm_80"));
  }
  return std::make_unique<CudaDevice>(index);
}

}  // namespace shardc::cuda
