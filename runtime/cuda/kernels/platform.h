// What the kernels use of CUDA: launches, shared memory, warp exchange, device memory. Under
// another compiler than nvcc the same sources run on the CPU (emulation.h), in a namespace of their
// own.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#if defined(__CUDACC__)
#include <cuda_runtime.h>

#include "runtime/cuda/native/check.h"
#define SHARDC_KERNEL_SPACE device
#define SHARDC_UNROLL _Pragma("unroll")
#define SHARDC_UNROLL_BY(n) SHARDC_PRAGMA(unroll n)
#define SHARDC_PRAGMA(text) _Pragma(#text)
#else
#include "runtime/cuda/kernels/emulation.h"
#define SHARDC_KERNEL_SPACE emulated
#define SHARDC_UNROLL
#define SHARDC_UNROLL_BY(n)
#endif

#include "ir/diagnostic.h"
#include "runtime/cuda/cuda_kernel.h"
#include "runtime/cuda/kernels/geometry.h"
#include "runtime/cuda/kernels/math.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {

#if defined(__CUDACC__)

template <typename... P, typename... A>
void LaunchKernel(const Launch& launch, void (*kernel)(P...), int64_t blocks, int threads,
                  size_t shared, A... args) {
  if (blocks == 0) return;
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), shared, launch.stream>>>(
      args...);
  Check(cudaGetLastError(), "launch of a kernel");
}
// The most dynamic shared memory that launches of the kernel may use on the current GPU.
template <typename... P>
int64_t MostShared(void (*kernel)(P...)) {
  int gpu = 0, most = 0;
  cudaFuncAttributes attributes;
  Check(cudaGetDevice(&gpu), "current GPU");
  Check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, gpu),
        "shared memory of a GPU");
  Check(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)),
        "attributes of a kernel");
  return most - static_cast<int64_t>(attributes.sharedSizeBytes);
}
// Lets launches of the kernel use that much: without leave, dynamic and static shared memory
// together are at most 48 KiB. Always all of it, so that one instruction's leave does not take away
// another's. Throws when `shared` does not fit.
template <typename... P>
void AllowShared(void (*kernel)(P...), size_t shared) {
  const int64_t most = MostShared(kernel);
  if (static_cast<int64_t>(shared) > most) {
    ThrowCuda("shared memory of a kernel",
              StrCat(shared, " bytes are needed, this GPU has ", most));
  }
  Check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(most)),
        "shared memory of a kernel");
  // Not only enough for one block.
  Check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        "shared memory of a multiprocessor");
}
inline void ClearBytes(const Launch& launch, void* to, int64_t bytes) {
  if (bytes > 0) Check(cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), launch.stream), "memset");
}
inline void CopyBytes(const Launch& launch, void* to, const void* from, int64_t bytes) {
  if (bytes <= 0 || to == from) return;
  Check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice,
                        launch.stream),
        "copy");
}
inline void* AllocateDevice(int64_t bytes) {
  void* p = nullptr;
  Check(cudaMalloc(&p, static_cast<size_t>(bytes)), "memory for a table");
  return p;
}
inline void FreeDevice(void* p) { cudaFree(p); }
inline void UploadBytes(void* to, const void* from, int64_t bytes) {
  Check(cudaMemcpy(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice),
        "upload of a table");
  // From pageable memory it may return before the last bytes have arrived, and our streams do not
  // wait for the one it uses.
  Check(cudaStreamSynchronize(cudaStreamLegacy), "upload of a table");
}

__device__ __forceinline__ std::byte* SharedMemory() {
  extern __shared__ __align__(128) unsigned char shared[];
  return reinterpret_cast<std::byte*>(shared);
}
template <typename T>
__device__ __forceinline__ T ShuffleXor(T v, int mask) {
  return __shfl_xor_sync(0xffffffffu, v, mask);
}
template <typename T>
__device__ __forceinline__ T Shuffle(T v, int from) {
  return __shfl_sync(0xffffffffu, v, from);
}
__device__ __forceinline__ void CheckAligned(const void*, size_t) {}
// In one instruction each: vectors that are assigned nvcc may write word by word.
__device__ __forceinline__ void LoadWords(const void* p, uint32_t (&w)[2]) {
  const uint2 v = *static_cast<const uint2*>(p);
  w[0] = v.x, w[1] = v.y;
}
__device__ __forceinline__ void LoadWords(const void* p, uint32_t (&w)[4]) {
  const uint4 v = *static_cast<const uint4*>(p);
  w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
}
__device__ __forceinline__ void StoreWords(void* p, const uint32_t (&w)[2]) {
  asm volatile("st.v2.b32 [%0], {%1, %2};" ::"l"(p), "r"(w[0]), "r"(w[1]) : "memory");
}
__device__ __forceinline__ void StoreWords(void* p, const uint32_t (&w)[4]) {
  asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(w[0]), "r"(w[1]), "r"(w[2]),
               "r"(w[3])
               : "memory");
}
// Copies to shared memory that go on while the thread does something else. For the thread itself
// they are there behind WaitForCopies, for others behind a barrier after that. Each CommitCopies
// ends a batch; kBatches of them, the last, may still be under way.
template <int kBytes>
__device__ __forceinline__ void CopyAhead(void* shared, const void* global) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, 16;" ::"r"(to), "l"(global) : "memory");
  } else {
    static_assert(kBytes == 8);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, 8;" ::"r"(to), "l"(global) : "memory");
  }
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kBatches>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kBatches) : "memory");
}
__device__ __forceinline__ int AtomicAdd(int* p, int v) { return atomicAdd(p, v); }
// The first to find a fault writes it.
__device__ __forceinline__ bool ClaimFault(Fault* fault, Fault::Kind kind) {
  auto* at = reinterpret_cast<unsigned long long*>(&fault->kind);
  return atomicCAS(at, 0ull, static_cast<unsigned long long>(kind)) == 0ull;
}

#else

template <typename... P, typename... A>
void LaunchKernel(const Launch&, void (*kernel)(P...), int64_t blocks, int threads, size_t shared,
                  A... args) {
  if (blocks == 0) return;
  emulation::Machine::Get().RunGrid(reinterpret_cast<const void*>(kernel), blocks, threads, shared,
                                    [=] { kernel(args...); });
}
template <typename... P>
int64_t MostShared(void (*)(P...)) {
  return static_cast<int64_t>(emulation::Machine::Get().most_shared - emulation::kStaticShared);
}
template <typename... P>
void AllowShared(void (*kernel)(P...), size_t shared) {
  emulation::Machine::Get().AllowShared(reinterpret_cast<const void*>(kernel), shared);
}
inline void ClearBytes(const Launch&, void* to, int64_t bytes) {
  if (bytes > 0) std::memset(to, 0, static_cast<size_t>(bytes));
}
inline void CopyBytes(const Launch&, void* to, const void* from, int64_t bytes) {
  if (bytes > 0) std::memmove(to, from, static_cast<size_t>(bytes));
}
inline void* AllocateDevice(int64_t bytes) { return std::malloc(static_cast<size_t>(bytes)); }
inline void FreeDevice(void* p) { std::free(p); }
inline void UploadBytes(void* to, const void* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}
inline std::byte* SharedMemory() { return emulation::AlignedShared(); }
using emulation::CheckAligned;
template <size_t N>
void LoadWords(const void* p, uint32_t (&w)[N]) {
  std::memcpy(w, p, sizeof(w));
}
template <size_t N>
void StoreWords(void* p, const uint32_t (&w)[N]) {
  std::memcpy(p, w, sizeof(w));
}
template <int kBytes>
void CopyAhead(void* shared, const void* global) {
  CheckAligned(shared, kBytes);
  CheckAligned(global, kBytes);
  std::memcpy(shared, global, kBytes);
}
inline void CommitCopies() {}
template <int kBatches>
void WaitForCopies() {}
using emulation::Shuffle;
using emulation::ShuffleXor;
inline int AtomicAdd(int* p, int v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }
inline bool ClaimFault(Fault* fault, Fault::Kind kind) {
  Fault::Kind none = Fault::kNone;
  return __atomic_compare_exchange_n(&fault->kind, &none, kind, false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED);
}

#endif

// Values that a kernel needs on the device besides its operands, written once when the kernel is
// made.
template <typename T>
class DeviceTable {
 public:
  DeviceTable() = default;
  explicit DeviceTable(const std::vector<T>& values) {
    int64_t bytes = static_cast<int64_t>(values.size() * sizeof(T));
    if (bytes == 0) return;
    data_ = static_cast<T*>(AllocateDevice(bytes));
    UploadBytes(data_, values.data(), bytes);
  }
  DeviceTable(DeviceTable&& o) noexcept : data_(std::exchange(o.data_, nullptr)) {}
  DeviceTable& operator=(DeviceTable&& o) noexcept {
    std::swap(data_, o.data_);
    return *this;
  }
  ~DeviceTable() {
    if (data_) FreeDevice(data_);
  }
  const T* data() const { return data_; }

 private:
  T* data_ = nullptr;
};

__device__ __forceinline__ void ReportFault(Fault* fault, Fault::Kind kind, int64_t position,
                                            int64_t value, int64_t limit) {
  if (!fault || !ClaimFault(fault, kind)) return;
  fault->position = position;
  fault->value = value;
  fault->limit = limit;
}

// Sums and maxima over a block of whole warps; every thread gets the result. The order of the
// additions is fixed.
template <typename T, typename F>
__device__ T BlockFold(T v, T identity, F fold) {
  for (int mask = 16; mask > 0; mask /= 2) v = fold(v, ShuffleXor(v, mask));
  const int warps = static_cast<int>(blockDim.x) / 32;
  if (warps == 1) return v;
  __shared__ T parts[32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  __syncthreads();
  if (lane == 0) parts[threadIdx.x / 32] = v;
  __syncthreads();
  v = lane < warps ? parts[lane] : identity;
  for (int mask = 16; mask > 0; mask /= 2) v = fold(v, ShuffleXor(v, mask));
  return v;
}
template <typename T>
__device__ T BlockSum(T v) {
  return BlockFold(v, T(0), [](T a, T b) { return a + b; });
}
template <typename T>
__device__ T BlockMax(T v) {
  return BlockFold(v, v, [](T a, T b) { return MaxNan(a, b); });
}

// Grid-stride loop over n items with a functor. It stays where launches put it: else nvcc copies it
// to the stack of each thread where an index into it is computed.
template <typename F>
__global__ void __launch_bounds__(kElementThreads)
    ElementsKernel(const __grid_constant__ F f, int64_t n) {
  int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step)
    f(i);
}
// A block per row; f(row) may use barriers. The last row first: rows mostly are the result of a
// product, whose end may be in L2 still, and what is written last here the next product reads
// first.
template <typename F>
__global__ void __launch_bounds__(kRowThreads)
    RowsKernel(const __grid_constant__ F f, int64_t rows) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) f(rows - 1 - row);
}

// Blocks of RowsKernel<F> that share `rows` rows: as many as run at once, or have `most` threads of
// a multiprocessor. Those of another round would be few, on a GPU that is mostly idle, and take as
// long for their rows.
template <typename F>
int64_t BlocksAtOnce(int64_t rows, int threads, int64_t shared, int most = 2048) {
#if defined(__CUDACC__)
  int gpu = 0, multiprocessors = 0, each = 0;
  Check(cudaGetDevice(&gpu), "current GPU");
  Check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, gpu),
        "multiprocessors of a GPU");
  Check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, RowsKernel<F>, threads,
                                                      static_cast<size_t>(shared)),
        "blocks of a kernel that run at once");
  return std::min<int64_t>(
      rows, int64_t{multiprocessors} * std::clamp(each, 1, std::max(most / threads, 1)));
#else
  (void)threads, (void)most;
  return RowBlocks(rows, shared > 0);
#endif
}

// A kernel from a callable that enqueues.
template <typename F>
std::unique_ptr<CudaKernel> MakeKernel(F f, int64_t workspace = 0) {
  struct Holder : CudaKernel {
    Holder(F f, int64_t workspace) : f_(std::move(f)), workspace_(workspace) {}
    void Enqueue(const Launch& launch) override { f_(launch); }
    int64_t workspace_bytes() const override { return workspace_; }
    F f_;
    int64_t workspace_;
  };
  return std::make_unique<Holder>(std::move(f), workspace);
}

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
