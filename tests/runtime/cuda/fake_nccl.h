// What tests and the fake libnccl.so.2 say to each other, beside NCCL's own functions; extern "C",
// found by name.
#pragma once

#include <cstddef>
#include <functional>

struct CUstream_st;

namespace shardc::testing {

// The GPUs of this process. Without them the fake acts when it is called.
struct FakeGpus {
  void* (*current)() = nullptr;  // that of the calling thread
  bool (*captures)(void* gpu, CUstream_st*) = nullptr;
  void (*enqueue)(void* gpu, CUstream_st*, std::function<void()> work) = nullptr;
  // Memory that the GPUs must know of; null: any will do.
  void* (*allocate)(size_t bytes) = nullptr;
  void (*free)(void*) = nullptr;
};

// "shardc_fake_nccl_use"; what it is given must outlive all communicators.
using FakeNcclUse = void(const FakeGpus*);
// "shardc_fake_nccl_live": communicators that were neither destroyed nor aborted.
// "shardc_fake_nccl_allocations": those that were not taken back.
using FakeNcclCount = int();
// "shardc_fake_nccl_refuse_memory": the next allocation but so many fails; negative: none.
using FakeNcclRefuseMemory = void(int after);
// "shardc_fake_nccl_hang_aborts": whether those that are begun from now on end only when this is
// called again.
using FakeNcclHangAborts = void(bool hang);

}  // namespace shardc::testing
