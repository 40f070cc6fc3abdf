#include <algorithm>

#include "runtime/cuda/native/check.h"
#include "runtime/cuda/native/fill.h"

namespace shardc::cuda {
namespace {

constexpr int64_t kPack = sizeof(uint4), kThreads = 256, kMostBlocks = 2048;

// In packs, where they are aligned; what is left over, one by one.
__global__ void FillKernel(std::byte* to, std::byte value, int64_t bytes) {
  const int64_t me = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  const int64_t all = gridDim.x * static_cast<int64_t>(blockDim.x);
  const int64_t packs = reinterpret_cast<uintptr_t>(to) % kPack == 0 ? bytes / kPack : 0;
  const unsigned word = static_cast<unsigned>(value) * 0x01010101u;
  for (int64_t i = me; i < packs; i += all) {
    reinterpret_cast<uint4*>(to)[i] = make_uint4(word, word, word, word);
  }
  for (int64_t i = packs * kPack + me; i < bytes; i += all) to[i] = value;
}

struct Grid {
  unsigned blocks, threads;
};
Grid GridFor(int64_t bytes) {
  const int64_t items = std::max<int64_t>((bytes + kPack - 1) / kPack, std::min(bytes, kPack));
  const int64_t threads = std::min<int64_t>((items + 31) / 32 * 32, kThreads);
  return {static_cast<unsigned>(std::min((items + threads - 1) / threads, kMostBlocks)),
          static_cast<unsigned>(threads)};
}

}  // namespace

void LaunchFill(std::byte* to, int byte, int64_t bytes, cudaStream_t s) {
  if (bytes == 0) return;
  const Grid grid = GridFor(bytes);
  FillKernel<<<grid.blocks, grid.threads, 0, s>>>(to, static_cast<std::byte>(byte), bytes);
  Check(cudaGetLastError(), "fill");
}

cudaError_t AddFillNode(cudaGraphNode_t* node, cudaGraph_t graph, std::byte* to, int byte,
                        int64_t bytes) {
  auto value = static_cast<std::byte>(byte);
  void* arguments[] = {&to, &value, &bytes};
  const Grid grid = GridFor(bytes);
  cudaKernelNodeParams kernel{};
  kernel.func = reinterpret_cast<void*>(&FillKernel);
  kernel.gridDim = dim3(grid.blocks);
  kernel.blockDim = dim3(grid.threads);
  kernel.kernelParams = arguments;
  return cudaGraphAddKernelNode(node, graph, nullptr, 0, &kernel);
}

}  // namespace shardc::cuda
