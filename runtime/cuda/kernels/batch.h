// One launch for several tensors, of one element or of many millions: they are cut into chunks of
// one size, of which each block takes every so-manieth. What is done with a chunk does not depend
// on the others, so that results have the same bits wherever a tensor stands.
#pragma once

#include <vector>

#include "runtime/cuda/kernels/bind.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {

// Kernels of the runs of joined.h, by the op of the first instruction; null when there is none.
using JoinedFactory = KernelPtr (*)(std::span<const KernelRequest>);
KernelPtr MakeAdamWs(std::span<const KernelRequest> run);
KernelPtr MakeSgds(std::span<const KernelRequest> run);
KernelPtr MakeCasts(std::span<const KernelRequest> run);
KernelPtr MakeSquares(std::span<const KernelRequest> run);
KernelPtr MakeJoinedKernelFor(std::span<const KernelRequest> run);  // table.cu
std::span<const Binding> SumSquaresBindings();

inline constexpr int kBatchThreads = 256;

struct Chunk {
  int32_t tensor, number;  // of the chunk in the tensor
};

// A block's chunks. F has
//   Tensor        what it knows of each tensor; `n`: of elements
//   kChunk        elements of a chunk
//   Begin()       what a thread of a block needs for all chunks
//   (begun, tensor, number)   does a chunk, by all threads of the block
template <typename F>
struct Share {
  using Tensor = typename F::Tensor;
  F f;
  Tensor only;            // where there is no table
  const Tensor* tensors;  // by Chunk::tensor
  const Chunk* chunks;
  int64_t count, blocks;
  __device__ void operator()(int64_t block) const {
    const auto begun = f.Begin();
    for (int64_t i = block; i < count; i += blocks) {
      Tensor tensor = only;
      int64_t number = i;
      if (chunks) {
        tensor = tensors[chunks[i].tensor];
        number = chunks[i].number;
      }
      f(begun, tensor, number);
    }
  }
};

template <typename F>
class Batch {
 public:
  explicit Batch(const std::vector<typename F::Tensor>& tensors) : only_(tensors[0]) {
    std::vector<Chunk> chunks;
    for (size_t t = 0; t < tensors.size(); ++t) {
      const int64_t count = CeilDiv(tensors[t].n, F::kChunk);
      for (int64_t c = 0; c < count && tensors.size() > 1; ++c) {
        chunks.push_back({static_cast<int32_t>(t), static_cast<int32_t>(c)});
      }
      count_ += count;
    }
    if (tensors.size() > 1) {
      tensors_ = DeviceTable<typename F::Tensor>(tensors);
      chunks_ = DeviceTable<Chunk>(chunks);
    }
    blocks_ = BlocksAtOnce<Share<F>>(count_, kBatchThreads, 0);
  }
  void Enqueue(const Launch& launch, const F& f) const {
    const Share<F> share{f, only_, tensors_.data(), chunks_.data(), count_, blocks_};
    LaunchKernel(launch, RowsKernel<Share<F>>, blocks_, kBatchThreads, 0, share, blocks_);
  }

 private:
  typename F::Tensor only_;
  DeviceTable<typename F::Tensor> tensors_;
  DeviceTable<Chunk> chunks_;
  int64_t count_ = 0, blocks_ = 0;
};

template <typename F>
KernelPtr MakeBatch(const F& f, const std::vector<typename F::Tensor>& tensors) {
  return MakeKernel(
      [f, batch = Batch<F>(tensors)](const Launch& launch) { batch.Enqueue(launch, f); });
}

// The factory of one instruction.
template <JoinedFactory kMake>
KernelPtr OfOne(const KernelRequest& r) {
  return kMake({&r, 1});
}

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
