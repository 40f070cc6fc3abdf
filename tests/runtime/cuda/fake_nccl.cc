// A libnccl.so.2 without a GPU: ranks are threads or processes of one machine, "device" memory is
// host memory, and collectives happen where a fake GPU does its work, or in a thread of their own,
// through memory that all ranks map. As in NCCL, communicators do not block, a rank whose peer is
// missing stays in progress for ever, and an abort ends that; a communicator is not closed before
// the graphs that hold its collectives are gone. What NCCL leaves undefined ends the process.
#include "tests/runtime/cuda/fake_nccl.h"

#include <fcntl.h>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/cuda/kernels/math.h"
#include "tests/runtime/native_f16.h"

namespace {

using shardc::cuda::BF16;
using shardc::cuda::Narrow;
using shardc::cuda::Widen;
using shardc::testing::FakeGpus;

constexpr size_t kSlot = 1 << 16;  // bytes of a rank's part of a step
constexpr int kMaxRanks = 16;

// What of a call must be the same on all its ranks: whether NCCL gave the memory, and whether a
// graph holds it.
struct Manner {
  bool registered = false, captured = false;
  bool operator==(const Manner&) const = default;
};

struct Shared {
  std::atomic<int> joined, arrived, round;
  Manner manners[kMaxRanks];
  alignas(64) std::byte slots[kMaxRanks][kSlot];
  // A piece of a message from one rank to another; of a sparse file, where few do that.
  struct Mail {
    std::atomic<bool> full;
    Manner manner;
    std::byte data[kSlot];
  } mail[kMaxRanks][kMaxRanks];
};

std::atomic<int> live{0}, refuse_memory{-1};
std::atomic<bool> hang_aborts{false};
const FakeGpus* gpus = nullptr;

struct Stopped {};

[[noreturn]] void Refuse(const char* why) {
  std::fprintf(stderr, "the fake NCCL: %s\n", why);
  std::abort();
}

// Memory that was given, and the communicators that have registered it for a graph.
struct Given {
  size_t bytes = 0;
  std::set<const void*> holders;
};
std::mutex memory_mutex;
std::map<const std::byte*, Given> memory;

// That of which p is a part; or null. With the mutex.
Given* MemoryOf(const std::byte* p) {
  auto after = memory.upper_bound(p);
  if (after == memory.begin() || p >= (--after)->first + after->second.bytes) return nullptr;
  return &after->second;
}
void LetGo(const void* holder) {
  std::lock_guard lock(memory_mutex);
  for (auto& [p, given] : memory) given.holders.erase(holder);
}

size_t SizeOf(ncclDataType_t type) {
  switch (type) {
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

// NCCL's maximum of floats is fmaxf: a NaN is lost where the other is a number.
template <typename T>
T Larger(T a, T b) {
  return a != a || a < b ? b : a;
}
template <typename T>
void FoldAs(void* to, const void* from, size_t count, ncclRedOp_t op) {
  auto* a = static_cast<T*>(to);
  auto* b = static_cast<const T*>(from);
  for (size_t i = 0; i < count; ++i)
    a[i] = op == ncclMax ? Larger(a[i], b[i]) : static_cast<T>(a[i] + b[i]);
}
// Rounds every sum, as a ring of NCCL's does on its way.
void FoldBF16(void* to, const void* from, size_t count, ncclRedOp_t op) {
  auto* a = static_cast<BF16*>(to);
  auto* b = static_cast<const BF16*>(from);
  for (size_t i = 0; i < count; ++i) {
    const float x = Widen(a[i]), y = Widen(b[i]);
    a[i] = Narrow<BF16>(op == ncclMax ? Larger(x, y) : x + y);
  }
}
void Fold(void* to, const void* from, size_t count, ncclDataType_t type, ncclRedOp_t op) {
  switch (type) {
    case ncclUint8:
      return FoldAs<uint8_t>(to, from, count, op);
    case ncclInt32:
      return FoldAs<int32_t>(to, from, count, op);
    case ncclInt64:
      return FoldAs<int64_t>(to, from, count, op);
    case ncclFloat32:
      return FoldAs<float>(to, from, count, op);
    case ncclFloat64:
      return FoldAs<double>(to, from, count, op);
    case ncclFloat16:
      return FoldAs<shardc::NativeF16>(to, from, count, op);
    case ncclBfloat16:
      return FoldBF16(to, from, count, op);
    default:
      Refuse("a type that it cannot reduce");
  }
}

enum class Kind { kAllReduce, kAllGather, kReduceScatter, kSend, kRecv };
struct Op {
  Kind kind;
  const std::byte* send;
  std::byte* recv;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int peer;
};

}  // namespace

struct ncclComm {
  int rank, size;
  Shared* shared;
  std::thread thread = {};
  std::atomic<ncclResult_t> state{ncclInProgress};
  std::atomic<bool> stop{false};
  void* gpu = nullptr;
  Manner manner = {};  // of the call that is being done
  bool final = false;
  // Held by what a GPU has not done, and by graphs.
  std::shared_ptr<int> holders = std::make_shared<int>();

  // Its state is in progress until the body has ended, in a thread.
  void Run(auto body) {
    if (thread.joinable()) thread.join();
    state = ncclInProgress;
    thread = std::thread([this, body = std::move(body)]() mutable {
      try {
        body();
        ncclResult_t in_progress = ncclInProgress;
        state.compare_exchange_strong(in_progress, ncclSuccess);
      } catch (const Stopped&) {
        state = ncclInternalError;
      }
    });
  }
  void WaitUntil(auto done) {
    while (!done()) {
      if (stop) throw Stopped();
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  void Barrier() {
    int round = shared->round;
    if (++shared->arrived == size) {
      shared->arrived = 0;
      ++shared->round;
    } else {
      WaitUntil([&] { return shared->round != round; });
    }
  }
  void WaitForGraphs() {
    WaitUntil([this] { return holders.use_count() == 1; });
  }
  static void Compare(const Manner& mine, const Manner& other) {
    if (mine.registered != other.registered) Refuse("ranks mix memory of NCCL's and other");
    if (mine.captured != other.captured) Refuse("a graph holds a call of some of its ranks only");
  }
  Manner MannerOf(const std::vector<Op>& ops, bool captured) {
    Manner manner{true, captured};
    std::lock_guard lock(memory_mutex);
    for (const Op& o : ops) {
      for (const std::byte* p : {o.send, static_cast<const std::byte*>(o.recv)}) {
        if (!p) continue;
        Given* given = MemoryOf(p);
        manner.registered = manner.registered && given;
        if (given && captured) given->holders.insert(this);
      }
    }
    return manner;
  }

  // Every rank shows `send(offset, bytes)`; `take` sees all of them. In steps that fit the slots.
  void Steps(size_t bytes, auto send, auto take) {
    for (size_t at = 0; at < bytes; at += kSlot) {
      size_t n = std::min(kSlot, bytes - at);
      std::memcpy(shared->slots[rank], send + at, n);
      shared->manners[rank] = manner;
      Barrier();
      for (int r = 0; r < size; ++r) Compare(manner, shared->manners[r]);
      take(at, n);
      Barrier();
    }
  }
  void Reduce(const Op& o, const std::byte* send, std::byte* to) {
    Steps(o.count * SizeOf(o.type), send, [&](size_t at, size_t n) {
      if (!to) return;
      std::memcpy(to + at, shared->slots[0], n);
      for (int r = 1; r < size; ++r)
        Fold(to + at, shared->slots[r], n / SizeOf(o.type), o.type, o.op);
    });
  }
  void One(const Op& o) {
    size_t bytes = o.count * SizeOf(o.type);
    if (o.kind == Kind::kAllReduce) return Reduce(o, o.send, o.recv);
    if (o.kind == Kind::kAllGather) {
      return Steps(bytes, o.send, [&](size_t at, size_t n) {
        for (int r = 0; r < size; ++r) std::memcpy(o.recv + r * bytes + at, shared->slots[r], n);
      });
    }
    for (int r = 0; r < size; ++r) Reduce(o, o.send + r * bytes, r == rank ? o.recv : nullptr);
  }
  // A rank's k-th message to a peer meets the peer's k-th receive from it, piece by piece.
  void Messages(const std::vector<Op>& ops) {
    std::vector<size_t> at(ops.size());
    auto done = [&](size_t i) { return at[i] == ops[i].count * SizeOf(ops[i].type); };
    auto first = [&](size_t i) {
      for (size_t k = 0; k < i; ++k) {
        if (!done(k) && ops[k].kind == ops[i].kind && ops[k].peer == ops[i].peer) return false;
      }
      return true;
    };
    WaitUntil([&] {
      bool all = true;
      for (size_t i = 0; i < ops.size(); ++i) {
        const Op& o = ops[i];
        const bool sends = o.kind == Kind::kSend;
        Shared::Mail& mail = sends ? shared->mail[rank][o.peer] : shared->mail[o.peer][rank];
        const size_t n = std::min(kSlot, o.count * SizeOf(o.type) - at[i]);
        if (!done(i) && first(i) && mail.full == !sends) {
          std::memcpy(sends ? mail.data : o.recv + at[i], sends ? o.send + at[i] : mail.data, n);
          if (sends) mail.manner = manner;
          if (!sends) Compare(manner, mail.manner);
          at[i] += n;
          mail.full = sends;
        }
        all = all && done(i);
      }
      return all;
    });
  }
  void Do(const std::vector<Op>& ops, const Manner& how) {
    manner = how;
    std::vector<Op> messages;
    for (const Op& o : ops) {
      if (o.kind == Kind::kSend || o.kind == Kind::kRecv) {
        messages.push_back(o);
      } else {
        One(o);
      }
    }
    if (!messages.empty()) Messages(messages);
  }
  void Launch(std::vector<Op> ops, cudaStream_t stream) {
    if (!gpu) {
      Run([this, ops = std::move(ops)] { Do(ops, MannerOf(ops, false)); });
      return;
    }
    const Manner how = MannerOf(ops, gpus->captures(gpu, stream));
    auto work = [this, ops = std::move(ops), how, holder = holders] {
      try {
        Do(ops, how);
      } catch (const Stopped&) {
        state = ncclInternalError;
      }
    };
    Run([this, stream, work = std::move(work)]() mutable {
      gpus->enqueue(gpu, stream, std::move(work));
    });
  }
  ~ncclComm() {
    if (thread.joinable()) thread.join();
    LetGo(this);
    munmap(shared, sizeof(Shared));
    --live;
  }
};

namespace {

thread_local int depth = 0;
thread_local std::vector<Op> group;
thread_local ncclComm* group_comm = nullptr;
thread_local cudaStream_t group_stream = nullptr;

ncclResult_t Add(ncclComm* comm, cudaStream_t stream, const Op& op) {
  // NCCL would report this too.
  if (comm->state != ncclSuccess || comm->final) return ncclInvalidUsage;
  ncclGroupStart();
  if (!group.empty() && (comm != group_comm || stream != group_stream)) {
    Refuse("it knows no groups over several communicators or streams");
  }
  group.push_back(op);
  group_comm = comm;
  group_stream = stream;
  return ncclGroupEnd();
}
const std::byte* Bytes(const void* p) { return static_cast<const std::byte*>(p); }
std::byte* Bytes(void* p) { return static_cast<std::byte*>(p); }

}  // namespace

extern "C" {

void shardc_fake_nccl_use(const FakeGpus* g) { gpus = g; }
void shardc_fake_nccl_refuse_memory(int after) { refuse_memory = after; }
void shardc_fake_nccl_hang_aborts(bool hang) { hang_aborts = hang; }
int shardc_fake_nccl_live() { return live; }
int shardc_fake_nccl_allocations() {
  std::lock_guard lock(memory_mutex);
  return static_cast<int>(memory.size());
}

ncclResult_t ncclMemAlloc(void** p, size_t bytes) {
  if (refuse_memory >= 0 && refuse_memory-- == 0) return ncclUnhandledCudaError;
  const size_t whole = (bytes + 4095) / 4096 * 4096;
  *p = gpus && gpus->allocate ? gpus->allocate(whole) : std::aligned_alloc(4096, whole);
  std::lock_guard lock(memory_mutex);
  memory[Bytes(*p)] = {bytes, {}};
  return ncclSuccess;
}
ncclResult_t ncclMemFree(void* p) {
  std::lock_guard lock(memory_mutex);
  if (!memory.at(Bytes(p)).holders.empty())
    Refuse("memory goes that a communicator has registered");
  memory.erase(Bytes(p));
  gpus && gpus->free ? gpus->free(p) : std::free(p);
  return ncclSuccess;
}
ncclResult_t ncclGetVersion(int* version) {
  const char* text = std::getenv("SHARDC_FAKE_NCCL_VERSION");
  *version = text ? std::atoi(text) : NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  // A process that was killed may have left its memory, and another may get its number.
  std::random_device random;
  std::snprintf(id->internal, sizeof(id->internal), "/shardc_fake_nccl_%08x%08x", random(),
                random());
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (!config || config->blocking != 0 || size > kMaxRanks) return ncclInvalidArgument;
  int fd = shm_open(id.internal, O_CREAT | O_RDWR, 0600);
  if (fd < 0 || ftruncate(fd, sizeof(Shared)) != 0) return ncclSystemError;
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (memory == MAP_FAILED) return ncclSystemError;
  ++live;
  auto* comm = new ncclComm{rank, size, static_cast<Shared*>(memory)};
  if (gpus) comm->gpu = gpus->current();
  comm->Run([comm, size, name = std::string(id.internal)] {
    if (++comm->shared->joined == size) shm_unlink(name.c_str());
    comm->WaitUntil([&] { return comm->shared->joined == size; });
  });
  *out = comm;
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  *state = comm->state;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (comm->state != ncclSuccess || comm->final) return ncclInvalidArgument;
  comm->final = true;
  comm->Run([comm] {
    comm->WaitForGraphs();
    LetGo(comm);
    comm->Barrier();
  });
  return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm->state != ncclSuccess || !comm->final) return ncclInvalidArgument;
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->stop = true;
  // Its kernels leave; then, even now, only the graphs are waited for.
  while (comm->holders.use_count() > 1 || hang_aborts) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  delete comm;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclInvalidUsage ? "invalid usage" : "an error";
}
const char* ncclGetLastError(ncclComm_t) { return "no more is known"; }

ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--depth > 0 || group.empty()) return ncclSuccess;
  group_comm->Launch(std::exchange(group, {}), group_stream);
  return ncclInProgress;
}
ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t s) {
  return Add(comm, s, {Kind::kAllReduce, Bytes(send), Bytes(recv), count, type, op, 0});
}
ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t s) {
  return Add(comm, s, {Kind::kAllGather, Bytes(send), Bytes(recv), count, type, ncclSum, 0});
}
ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t s) {
  return Add(comm, s, {Kind::kReduceScatter, Bytes(send), Bytes(recv), count, type, op, 0});
}
ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t s) {
  return Add(comm, s, {Kind::kSend, Bytes(send), nullptr, count, type, ncclSum, peer});
}
ncclResult_t ncclRecv(void* recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t s) {
  return Add(comm, s, {Kind::kRecv, nullptr, Bytes(recv), count, type, ncclSum, peer});
}

}  // extern "C"
