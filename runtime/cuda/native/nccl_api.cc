#include "runtime/cuda/native/nccl_api.h"

#include <dlfcn.h>

#include <cstdlib>

#include "ir/diagnostic.h"

namespace shardc::cuda {
namespace {

[[noreturn]] void Missing(const std::string& why) {
  throw Diagnostic("E4302", ExitCode::kIo, "--backend cuda", "NCCL cannot be used: " + why,
                   "put libnccl.so.2 in $SHARDC_CUDA_LIBS, or use --shared-device");
}

template <typename F>
void Find(void* library, const char* name, F* function) {
  *function = reinterpret_cast<F>(dlsym(library, name));
  if (!*function) Missing(std::string("it has no ") + name);
}

// The first that gives communicators of one GPU an order, which several at once need not to wait
// for each other in a circle.
constexpr int kOldest = NCCL_VERSION(2, 26, 2);

NcclApi Load() {
  void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL);
  if (!library) Missing(dlerror());
  NcclApi api;
  Find(library, "ncclGetVersion", &api.GetVersion);
  int version = 0;
  if (api.GetVersion(&version) != ncclSuccess || version < kOldest) {
    Missing(StrCat("its version is ", version, ", older than ", kOldest));
  }
  Find(library, "ncclGetUniqueId", &api.GetUniqueId);
  Find(library, "ncclCommInitRankConfig", &api.CommInitRankConfig);
  Find(library, "ncclCommGetAsyncError", &api.CommGetAsyncError);
  Find(library, "ncclCommFinalize", &api.CommFinalize);
  Find(library, "ncclCommDestroy", &api.CommDestroy);
  Find(library, "ncclCommAbort", &api.CommAbort);
  Find(library, "ncclGetErrorString", &api.GetErrorString);
  Find(library, "ncclGetLastError", &api.GetLastError);
  Find(library, "ncclMemAlloc", &api.MemAlloc);
  Find(library, "ncclMemFree", &api.MemFree);
  Find(library, "ncclGroupStart", &api.GroupStart);
  Find(library, "ncclGroupEnd", &api.GroupEnd);
  Find(library, "ncclAllReduce", &api.AllReduce);
  Find(library, "ncclAllGather", &api.AllGather);
  Find(library, "ncclReduceScatter", &api.ReduceScatter);
  Find(library, "ncclSend", &api.Send);
  Find(library, "ncclRecv", &api.Recv);
  return api;
}

}  // namespace

void SetNcclEnvironment() {
  // Several communicators run at once on streams of their own; all ranks launch theirs in an order
  // that the plan's proof has shown to end.
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
  // A step has ended before the next begins, so launches from a graph and others never overlap;
  // what NCCL does to allow it can deadlock when one thread's graphs hold several communicators.
  setenv("NCCL_GRAPH_MIXING_SUPPORT", "0", 0);
}

const NcclApi& Nccl() {
  static const NcclApi api = Load();
  return api;
}

}  // namespace shardc::cuda
