// The real Device over a CUDA runtime that does nothing but what CUDA says of errors: every call
// that does not succeed, also one that only says "not ready", is remembered until somebody asks for
// the last error. What stays behind would be taken for a failure of the next kernel's launch.
#include "runtime/cuda/native/cuda_device.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/diagnostic.h"
#include "runtime/cuda/kernels/reduction.h"
#include "runtime/cuda/native/fill.h"
#include "tests/ir/thrown.h"

namespace {

struct FakeRuntime {
  std::string failing;  // the function that gives `error`
  cudaError_t error = cudaSuccess, last = cudaSuccess;
  std::vector<std::string> of_graphs;  // calls, in their order
};
FakeRuntime runtime;
char place;  // what handles and memory point to

cudaError_t Give(const char* name) {
  if (std::string_view(name).starts_with("cudaGraph")) runtime.of_graphs.push_back(name);
  if (runtime.failing != name) return cudaSuccess;
  return runtime.last = runtime.error;
}
template <typename T>
cudaError_t Give(const char* name, T* out, T value) {
  const cudaError_t status = Give(name);
  if (status == cudaSuccess) *out = value;
  return status;
}
template <typename T>
T Handle() {
  return reinterpret_cast<T>(&place);
}

}  // namespace

extern "C" {

cudaError_t cudaGetLastError() { return std::exchange(runtime.last, cudaSuccess); }
const char* cudaGetErrorString(cudaError_t) { return "an error"; }
cudaError_t cudaGetDeviceCount(int* n) { return Give("cudaGetDeviceCount", n, 1); }
cudaError_t cudaSetDevice(int) { return Give("cudaSetDevice"); }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  return Give("cudaDeviceGetAttribute", value, 9);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  return Give("cudaGetDeviceProperties", p, {});
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = 0;
  return Give("cudaMemGetInfo", free, size_t{0});
}
cudaError_t cudaMalloc(void** p, size_t) { return Give("cudaMalloc", p, Handle<void*>()); }
cudaError_t cudaMallocHost(void** p, size_t) { return Give("cudaMallocHost", p, Handle<void*>()); }
cudaError_t cudaFree(void*) { return Give("cudaFree"); }
cudaError_t cudaFreeHost(void*) { return Give("cudaFreeHost"); }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *greatest = -5;
  return Give("cudaDeviceGetStreamPriorityRange", least, 0);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned, int) {
  return Give("cudaStreamCreateWithPriority", s, Handle<cudaStream_t>());
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return Give("cudaStreamDestroy"); }
cudaError_t cudaStreamQuery(cudaStream_t) { return Give("cudaStreamQuery"); }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return Give("cudaStreamSynchronize"); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  return Give("cudaStreamWaitEvent");
}
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  return Give("cudaStreamBeginCapture");
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* g) {
  return Give("cudaStreamEndCapture", g, Handle<cudaGraph_t>());
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  return Give("cudaStreamIsCapturing", status, cudaStreamCaptureStatusInvalidated);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* g, cudaGraph_t, unsigned long long) {
  return Give("cudaGraphInstantiate", g, Handle<cudaGraphExec_t>());
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return Give("cudaGraphUpload"); }
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return Give("cudaGraphLaunch"); }
cudaError_t cudaGraphDestroy(cudaGraph_t) { return Give("cudaGraphDestroy"); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return Give("cudaGraphExecDestroy"); }
cudaError_t cudaEventCreate(cudaEvent_t* e) {
  return Give("cudaEventCreate", e, Handle<cudaEvent_t>());
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
  return Give("cudaEventCreateWithFlags", e, Handle<cudaEvent_t>());
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return Give("cudaEventDestroy"); }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return Give("cudaEventRecord"); }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
  return Give("cudaEventElapsedTime", ms, 1.0f);
}
cudaError_t cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t) {
  return Give("cudaMemcpyAsync");
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t*) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }

}  // extern "C"

namespace shardc::cuda {

void LaunchReduction(const Launch&, const Reduction&) {}
void LaunchFill(std::byte*, int, int64_t, cudaStream_t) {}
void MemsetsToKernels(cudaGraph_t) {}

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CudaDevices : public ::testing::Test {
 protected:
  CudaDevices() : device_(OpenGpu(0)), stream_(device_->MakeStream(true)) {}
  ~CudaDevices() override { runtime = {}; }

  void Fail(const char* name, cudaError_t error) { runtime = {name, error, cudaSuccess, {}}; }
  // Whether a launch of a kernel, which looks at the last error, goes well now.
  static void ExpectNothingLeft() { EXPECT_EQ(cudaGetLastError(), cudaSuccess); }

  std::unique_ptr<Device> device_;
  Stream stream_;
};

TEST_F(CudaDevices, AStreamThatIsNotDoneIsNoError) {
  Fail("cudaStreamQuery", cudaErrorNotReady);
  EXPECT_FALSE(device_->Done(stream_));
  ExpectNothingLeft();
  runtime = {};
  EXPECT_TRUE(device_->Done(stream_));
}

TEST_F(CudaDevices, WhatIsThrownIsNotReportedAgain) {
  Fail("cudaStreamQuery", cudaErrorIllegalAddress);
  EXPECT_THROW(device_->Done(stream_), Diagnostic);
  ExpectNothingLeft();
  Fail("cudaGraphInstantiate", cudaErrorNotSupported);
  EXPECT_THROW(device_->EndCapture(stream_), Diagnostic);
  ExpectNothingLeft();
}

TEST_F(CudaDevices, WithoutMemoryItSaysWhereAndGoesOn) {
  for (const char* name : {"cudaMalloc", "cudaMallocHost"}) {
    Fail(name, cudaErrorMemoryAllocation);
    const Diagnostic d = testing::Thrown([&] {
      name == std::string("cudaMalloc") ? device_->Allocate(1 << 20, "the arena")
                                        : device_->AllocateHost(1 << 20, "the arena");
    });
    EXPECT_EQ(d.id(), "E4007");
    EXPECT_THAT(d.what(), HasSubstr("the arena"));
    ExpectNothingLeft();
  }
}

TEST_F(CudaDevices, ACaptureThatWentWrongLeavesNothing) {
  Fail("cudaStreamEndCapture", cudaErrorStreamCaptureInvalidated);
  device_->AbandonCapture(stream_);
  ExpectNothingLeft();
}

// Ranks agree that they have a graph before any launches it; none must wait for memory then.
TEST_F(CudaDevices, ACapturedGraphIsOnTheGpuBeforeItsLaunch) {
  runtime = {};
  device_->EndCapture(stream_);
  EXPECT_THAT(runtime.of_graphs,
              ElementsAre("cudaGraphInstantiate", "cudaGraphDestroy", "cudaGraphUpload"));
  for (const char* name : {"cudaGraphUpload", "cudaStreamSynchronize"}) {
    Fail(name, cudaErrorMemoryAllocation);
    EXPECT_THROW(device_->EndCapture(stream_), Diagnostic);
    EXPECT_EQ(runtime.of_graphs.back(), "cudaGraphExecDestroy");
    ExpectNothingLeft();
  }
}

TEST_F(CudaDevices, NoDriverIsE4302) {
  Fail("cudaGetDeviceCount", cudaErrorInsufficientDriver);
  EXPECT_EQ(testing::Thrown([&] { CountGpus(); }).id(), "E4302");
  ExpectNothingLeft();
}

}  // namespace
}  // namespace shardc::cuda
