// The functions of NCCL that we call, found when first needed: a run on one GPU works without the
// library.
#pragma once

#include <nccl.h>

#include <string_view>

namespace shardc::cuda {

struct NcclApi {
  decltype(&::ncclGetVersion) GetVersion;
  decltype(&::ncclGetUniqueId) GetUniqueId;
  decltype(&::ncclCommInitRankConfig) CommInitRankConfig;
  decltype(&::ncclCommGetAsyncError) CommGetAsyncError;
  decltype(&::ncclCommFinalize) CommFinalize;
  decltype(&::ncclCommDestroy) CommDestroy;
  decltype(&::ncclCommAbort) CommAbort;
  decltype(&::ncclGetErrorString) GetErrorString;
  decltype(&::ncclGetLastError) GetLastError;
  decltype(&::ncclMemAlloc) MemAlloc;
  decltype(&::ncclMemFree) MemFree;
  decltype(&::ncclGroupStart) GroupStart;
  decltype(&::ncclGroupEnd) GroupEnd;
  decltype(&::ncclAllReduce) AllReduce;
  decltype(&::ncclAllGather) AllGather;
  decltype(&::ncclReduceScatter) ReduceScatter;
  decltype(&::ncclSend) Send;
  decltype(&::ncclRecv) Recv;
};

// What NCCL must find in the environment, where the user has not set it. While threads read the
// environment nobody may write it: to be called before there are any that call CUDA.
void SetNcclEnvironment();

// Throws Diagnostic E4302 (exit 74) when libnccl.so.2 is not found or lacks one of them.
const NcclApi& Nccl();

}  // namespace shardc::cuda
