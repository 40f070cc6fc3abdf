// A CUDA runtime whose GPU, an sm_80, executes the PTX of what nvcc compiled (machine.h): linked in
// place of cudart. Work is done when it is given to a stream, or when the graph is launched that it
// was captured into. What goes wrong in a kernel is the error of its launch.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fatbinary_section.h>
#include <zstd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/runtime/cuda/fake_cublaslt.h"
#include "tests/runtime/cuda/fake_nccl.h"
#include "tests/runtime/cuda/ptx/machine.h"
#include "tests/runtime/cuda/ptx/memory.h"
#include "tests/runtime/cuda/ptx/module.h"
#include "tests/runtime/cuda/ptx/traffic.h"

namespace shardc::ptx {
namespace {

// What a block may have, unasked and at most.
constexpr int64_t kSharedUnasked = 48 << 10;
// Of an A100, or as many bytes as the variable says.
int64_t MostShared() {
  static const char* bytes = std::getenv("SHARDC_PTX_SHARED");
  return bytes ? std::atoll(bytes) : 163 << 10;
}

// A file with a fat binary as nvcc 13 writes it: headers, each followed by what it tells the size
// of. NVIDIA does not document it.
struct FatHeader {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t bytes;
};
struct FatEntry {
  uint16_t kind, version;
  uint32_t header_bytes;
  uint64_t bytes;
  uint32_t packed_bytes;  // 0: not packed
  uint32_t unknown[9];
  uint64_t unpacked_bytes;
};
constexpr uint32_t kFatMagic = 0xba55ed50;
constexpr uint16_t kPtx = 1;

std::string PtxOf(const void* image) {
  const auto* p = static_cast<const std::byte*>(image);
  FatHeader header;
  std::memcpy(&header, p, sizeof(header));
  if (header.magic != kFatMagic) throw std::runtime_error("not a fat binary");
  p += header.header_bytes;
  for (const std::byte* end = p + header.bytes; p < end;) {
    FatEntry entry;
    std::memcpy(&entry, p, sizeof(entry));
    const std::byte* data = p + entry.header_bytes;
    if (entry.kind == kPtx && entry.packed_bytes == 0) {
      return reinterpret_cast<const char*>(data);
    }
    if (entry.kind == kPtx) {
      std::string text(entry.unpacked_bytes, '\0');
      const size_t n = ZSTD_decompress(text.data(), text.size(), data, entry.packed_bytes);
      if (ZSTD_isError(n)) throw std::runtime_error(ZSTD_getErrorName(n));
      text.resize(std::strlen(text.c_str()));
      return text;
    }
    p = data + entry.bytes;
  }
  throw std::runtime_error("no PTX in the fat binary");
}

struct Binary {
  const void* image = nullptr;
  std::unique_ptr<Module> module;  // when first asked for
};

struct Function {
  Binary* binary = nullptr;
  std::string name;
  int64_t most_shared = kSharedUnasked;
  bool launched = false;
};

struct Configuration {
  dim3 grid, block;
  size_t shared = 0;
  cudaStream_t stream = nullptr;
};

using Work = std::function<void()>;
using Graph = std::vector<Work>;

struct Runtime {
  std::recursive_mutex mutex;
  std::map<const void*, Function> functions;  // by the host's function
  std::vector<std::unique_ptr<Binary>> binaries;
  DeviceMemory memory, host;
  // By stream and by event: the graph that it is captured into.
  std::map<const void*, std::shared_ptr<Graph>> captures;
};

Runtime& Get() {
  static auto& runtime = *new Runtime;
  return runtime;
}

thread_local std::vector<Configuration> configurations;
thread_local cudaError_t last = cudaSuccess;
thread_local std::string text = "no error";

cudaError_t Fail(cudaError_t error, std::string what) {
  text = std::move(what);
  return last = error;
}

// Now, or when the graph is launched that the stream is captured into.
cudaError_t Enqueue(const void* stream, Work work) {
  std::lock_guard lock(Get().mutex);
  if (auto it = Get().captures.find(stream); it != Get().captures.end()) {
    it->second->push_back(std::move(work));
    return cudaSuccess;
  }
  try {
    work();
  } catch (const std::exception& e) {
    return Fail(cudaErrorLaunchFailure, e.what());
  }
  return cudaSuccess;
}

void* Allocate(size_t bytes) {
  std::lock_guard lock(Get().mutex);
  return Get().memory.Allocate(static_cast<int64_t>(bytes));
}
void Free(void* p) {
  std::lock_guard lock(Get().mutex);
  Get().memory.Free(p);
}
bool Held(const void* p, size_t bytes) {
  std::lock_guard lock(Get().mutex);
  const auto* at = static_cast<const std::byte*>(p);
  const auto size = static_cast<int64_t>(bytes);
  return Get().memory.Holds(at, size) && !Get().host.Holds(at, size);
}
void NoteHost(const void* p, size_t bytes) {
  std::lock_guard lock(Get().mutex);
  Get().host.Add(static_cast<const std::byte*>(p), static_cast<int64_t>(bytes));
}
void ForgetHost(const void* p) {
  std::lock_guard lock(Get().mutex);
  Get().host.Remove(static_cast<const std::byte*>(p));
}
// Of a launch that is no kernel.
void RecordMove(const char* what, size_t loads, size_t stores) {
  if (!RecordsTraffic()) return;
  Traffic t;
  t.loads.bytes = t.loads.touched = static_cast<int64_t>(loads);
  t.stores.bytes = t.stores.touched = static_cast<int64_t>(stores);
  RecordTraffic(what, {0, 0, 0}, t);
}
void Run(const Kernel& k, const Grid& grid, std::span<std::byte> params) {
  if (!RecordsTraffic()) return Execute(k, grid, params, Get().memory);
  TrafficMeter meter(k, grid);
  Execute(k, grid, params, Get().memory, &meter);
  RecordTraffic(k.name, grid, meter.total());
}

cudaError_t Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                 cudaStream_t stream) {
  if ((kind != cudaMemcpyDeviceToHost && !Held(to, bytes)) ||
      (kind != cudaMemcpyHostToDevice && !Held(from, bytes))) {
    return Fail(cudaErrorInvalidValue, "memory that was not allocated is copied");
  }
  return Enqueue(stream, [=] {
    std::memmove(to, from, bytes);
    if (kind == cudaMemcpyDeviceToDevice) RecordMove("copy", bytes, bytes);
  });
}

// Streams and events are no more than their addresses.
template <typename Handle>
cudaError_t NewHandle(Handle* handle) {
  *handle = reinterpret_cast<Handle>(new char);
  return cudaSuccess;
}
template <typename Handle>
cudaError_t EndHandle(Handle handle) {
  std::lock_guard lock(Get().mutex);
  Get().captures.erase(handle);
  delete reinterpret_cast<char*>(handle);
  return cudaSuccess;
}

const Kernel& KernelOf(Function& f) {
  Binary& b = *f.binary;
  if (!b.module) {
    b.module = std::make_unique<Module>(PtxOf(b.image));
    for (const auto& [name, bytes] : b.module->variables()) {
      Get().memory.Add(bytes.data(), static_cast<int64_t>(bytes.size()));
    }
  }
  const Kernel* kernel = b.module->Find(f.name);
  if (kernel == nullptr) throw std::runtime_error("no kernel " + f.name);
  return *kernel;
}

std::vector<std::byte> ParamsOf(const Kernel& k, void* const* args) {
  std::vector<std::byte> params(static_cast<size_t>(k.param_bytes));
  for (size_t i = 0; i < k.params.size(); ++i) {
    std::memcpy(params.data() + k.params[i].offset, args[i],
                static_cast<size_t>(k.params[i].bytes));
  }
  return params;
}

// With SHARDC_PTX_LAUNCHED, a file: at its end the process writes a line for each kernel of the
// plugin, "1 NAME" or, where it was never launched, "0 NAME".
void TellLaunched() {
  const char* path = std::getenv("SHARDC_PTX_LAUNCHED");
  if (path == nullptr) return;
  std::ofstream file(path);
  for (const auto& [host, f] : Get().functions) file << f.launched << ' ' << f.name << '\n';
}

// The fakes of other libraries give their work to this one's streams.
const bool libraries_enqueue = [] {
  std::atexit(TellLaunched);
  testing::FakeCublasLt::Get().enqueue = Enqueue;
  static const testing::FakeGpus gpu = {
      [] { return static_cast<void*>(&Get()); },
      [](void*, CUstream_st* s) { return Get().captures.contains(s); },
      [](void*, CUstream_st* s, Work work) { Enqueue(s, std::move(work)); }, Allocate, Free};
  const char* folder = std::getenv("SHARDC_CUDA_LIBS");
  if (folder == nullptr) return true;
  void* nccl = dlopen((folder + std::string("/libnccl.so.2")).c_str(), RTLD_NOW | RTLD_GLOBAL);
  void* use = nccl ? dlsym(nccl, "shardc_fake_nccl_use") : nullptr;
  if (use) reinterpret_cast<testing::FakeNcclUse*>(use)(&gpu);
  return true;
}();

}  // namespace
}  // namespace shardc::ptx

using shardc::ptx::Allocate;
using shardc::ptx::configurations;
using shardc::ptx::Copy;
using shardc::ptx::EndHandle;
using shardc::ptx::Enqueue;
using shardc::ptx::Fail;
using shardc::ptx::ForgetHost;
using shardc::ptx::Free;
using shardc::ptx::Function;
using shardc::ptx::Get;
using shardc::ptx::Graph;
using shardc::ptx::Held;
using shardc::ptx::KernelOf;
using shardc::ptx::kSharedUnasked;
using shardc::ptx::MostShared;
using shardc::ptx::NewHandle;
using shardc::ptx::NoteHost;
using shardc::ptx::ParamsOf;
using shardc::ptx::RecordMove;
using shardc::ptx::Run;

extern "C" {

// ---- Of nvcc's code: what is in a binary, and launches.

void** __cudaRegisterFatBinary(void* wrapper) {
  auto binary = std::make_unique<shardc::ptx::Binary>();
  binary->image = static_cast<const __fatBinC_Wrapper_t*>(wrapper)->data;
  Get().binaries.push_back(std::move(binary));
  return reinterpret_cast<void**>(Get().binaries.back().get());
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void** handle, const char* host, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  Get().functions[host] = {reinterpret_cast<shardc::ptx::Binary*>(handle), name};
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
  configurations.push_back({grid, block, shared, static_cast<cudaStream_t>(stream)});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  const auto c = configurations.back();
  configurations.pop_back();
  *grid = c.grid;
  *block = c.block;
  *shared = c.shared;
  *static_cast<cudaStream_t*>(stream) = c.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  *kernel = reinterpret_cast<cudaKernel_t>(&Get().functions.at(host));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** args,
                               size_t shared, cudaStream_t stream) {
  auto& f = *reinterpret_cast<Function*>(kernel);
  std::lock_guard lock(Get().mutex);
  f.launched = true;
  try {
    const shardc::ptx::Kernel& k = KernelOf(f);
    if (grid.y != 1 || grid.z != 1 || block.y != 1 || block.z != 1 || grid.x == 0) {
      return Fail(cudaErrorInvalidConfiguration, "a grid of more than one dim, or empty");
    }
    const auto dynamic = static_cast<int64_t>(shared);
    if (dynamic + k.shared_bytes > f.most_shared || block.x > k.most_threads) {
      return Fail(cudaErrorInvalidValue, "more shared memory or threads than allowed: " + f.name);
    }
    return Enqueue(stream, [&k, grid, block, dynamic, params = ParamsOf(k, args)]() mutable {
      Run(k, {grid.x, block.x, dynamic}, params);
    });
  } catch (const std::exception& e) {
    return Fail(cudaErrorLaunchFailure, e.what());
  }
}

cudaError_t cudaFuncSetAttribute(const void* host, cudaFuncAttribute attribute, int value) {
  if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;
  std::lock_guard lock(Get().mutex);
  Function& f = Get().functions.at(host);
  const int64_t most = value + KernelOf(f).shared_bytes;
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || most > MostShared()) {
    return Fail(cudaErrorInvalidValue, "shared memory of " + f.name);
  }
  f.most_shared = std::max(most, kSharedUnasked);
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* host) {
  std::lock_guard lock(Get().mutex);
  *attributes = {};
  const shardc::ptx::Kernel& k = KernelOf(Get().functions.at(host));
  attributes->sharedSizeBytes = static_cast<size_t>(k.shared_bytes);
  attributes->maxThreadsPerBlock = static_cast<int>(k.most_threads);
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int,
                                                                   size_t, unsigned) {
  *blocks = 2;
  return cudaSuccess;
}

// ---- Devices.

cudaError_t cudaGetDeviceCount(int* n) {
  *n = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* gpu) {
  *gpu = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int gpu) {
  return gpu == 0 ? cudaSuccess : Fail(cudaErrorInvalidDevice, "no such GPU");
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(MostShared());
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
    case cudaDevAttrComputeCapabilityMajor:
      *value = 8;
      return cudaSuccess;
    default:
      return Fail(cudaErrorInvalidValue, "unknown attribute of a GPU");
  }
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = {};
  std::strcpy(p->name, "PTX by a CPU");
  p->multiProcessorCount = 8;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return std::exchange(shardc::ptx::last, cudaSuccess); }
const char* cudaGetErrorString(cudaError_t) { return shardc::ptx::text.c_str(); }

// ---- Memory.

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = size_t{1} << 34;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** p, size_t bytes) {
  *p = Allocate(bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* p) {
  Free(p);
  return cudaSuccess;
}
// Kernels reach it, but no copy takes it for the device's.
cudaError_t cudaMallocHost(void** p, size_t bytes) {
  *p = Allocate(bytes);
  NoteHost(*p, bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) {
  ForgetHost(p);
  Free(p);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return Copy(to, from, bytes, kind, nullptr);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return Copy(to, from, bytes, kind, stream);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  if (!Held(to, bytes)) return Fail(cudaErrorInvalidValue, "memory that was not allocated is set");
  return Enqueue(stream, [=] {
    std::memset(to, value, bytes);
    RecordMove("clear", 0, bytes);
  });
}

// ---- Streams and events. The order in which work is given is one that they allow.

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned, int) { return NewHandle(s); }
cudaError_t cudaStreamDestroy(cudaStream_t s) { return EndHandle(s); }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t* e) { return NewHandle(e); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) { return NewHandle(e); }
cudaError_t cudaEventDestroy(cudaEvent_t e) { return EndHandle(e); }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
  *ms = 1;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  std::lock_guard lock(Get().mutex);
  auto& captures = Get().captures;
  captures.erase(e);
  if (auto it = captures.find(s); it != captures.end()) captures[e] = it->second;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
  std::lock_guard lock(Get().mutex);
  auto& captures = Get().captures;
  if (auto it = captures.find(e); it != captures.end()) captures[s] = it->second;
  return cudaSuccess;
}

// ---- Graphs.

static cudaError_t NoNodes() { return Fail(cudaErrorNotSupported, "a graph here has no nodes"); }

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
  std::lock_guard lock(Get().mutex);
  Get().captures[s] = std::make_shared<Graph>();
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus* status) {
  std::lock_guard lock(Get().mutex);
  *status =
      Get().captures.contains(s) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* graph) {
  std::lock_guard lock(Get().mutex);
  auto it = Get().captures.find(s);
  if (it == Get().captures.end()) return Fail(cudaErrorInvalidValue, "no capture");
  const std::shared_ptr<Graph> captured = it->second;
  std::erase_if(Get().captures, [&](const auto& entry) { return entry.second == captured; });
  *graph = reinterpret_cast<cudaGraph_t>(new Graph(*captured));
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned long long) {
  *ready = reinterpret_cast<cudaGraphExec_t>(new Graph(*reinterpret_cast<Graph*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t ready, cudaStream_t s) {
  return Enqueue(s, [ready] {
    for (const auto& work : *reinterpret_cast<Graph*>(ready)) work();
  });
}
// Its nodes are nobody's business.
cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t*, size_t* n) {
  *n = 0;
  return cudaSuccess;
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t, cudaGraphNodeType*) { return NoNodes(); }
cudaError_t cudaGraphMemsetNodeGetParams(cudaGraphNode_t, cudaMemsetParams*) { return NoNodes(); }
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*,
                                         size_t*) {
  return NoNodes();
}
cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*,
                                           size_t*) {
  return NoNodes();
}
cudaError_t cudaGraphAddDependencies(cudaGraph_t, const cudaGraphNode_t*, const cudaGraphNode_t*,
                                     const cudaGraphEdgeData*, size_t) {
  return NoNodes();
}
cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t*, cudaGraph_t, const cudaGraphNode_t*, size_t,
                                   const cudaKernelNodeParams*) {
  return NoNodes();
}
cudaError_t cudaGraphDestroyNode(cudaGraphNode_t) { return NoNodes(); }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Graph*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t ready) {
  delete reinterpret_cast<Graph*>(ready);
  return cudaSuccess;
}

}  // extern "C"
