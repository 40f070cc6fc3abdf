// A libnccl.so.2 without a GPU: ranks are threads or processes of one machine, "device" memory is
// host memory, and collectives happen in a thread of their own, through memory that all ranks map.
// As in NCCL, communicators do not block, a rank whose peer is missing stays in progress for ever,
// and an abort ends that.
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
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr size_t kSlot = 1 << 16;  // bytes of a rank's part of a step
constexpr int kMaxRanks = 16;

struct Shared {
  std::atomic<int> joined, arrived, round;
  alignas(64) std::byte slots[kMaxRanks][kSlot];
  // A piece of a message from one rank to another; of a sparse file, where few do that.
  struct Mail {
    std::atomic<bool> full;
    std::byte data[kSlot];
  } mail[kMaxRanks][kMaxRanks];
};

std::atomic<int> live{0}, allocations{0};

struct Stopped {};

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

template <typename T>
void FoldAs(void* to, const void* from, size_t count, ncclRedOp_t op) {
  auto* a = static_cast<T*>(to);
  auto* b = static_cast<const T*>(from);
  for (size_t i = 0; i < count; ++i)
    a[i] = op == ncclMax ? std::max(a[i], b[i]) : static_cast<T>(a[i] + b[i]);
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
      return FoldAs<_Float16>(to, from, count, op);
    default:
      std::fprintf(stderr, "the fake NCCL cannot reduce type %d\n", type);
      std::abort();
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
  std::thread thread;
  std::atomic<ncclResult_t> state{ncclInProgress};
  std::atomic<bool> stop{false};

  void Run(auto body) {
    if (thread.joinable()) thread.join();
    state = ncclInProgress;
    thread = std::thread([this, body] {
      try {
        body();
        state = ncclSuccess;
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

  // Every rank shows `send(offset, bytes)`; `take` sees all of them. In steps that fit the slots.
  void Steps(size_t bytes, auto send, auto take) {
    for (size_t at = 0; at < bytes; at += kSlot) {
      size_t n = std::min(kSlot, bytes - at);
      std::memcpy(shared->slots[rank], send + at, n);
      Barrier();
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
          at[i] += n;
          mail.full = sends;
        }
        all = all && done(i);
      }
      return all;
    });
  }
  void Do(const std::vector<Op>& ops) {
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
  ~ncclComm() {
    if (thread.joinable()) thread.join();
    munmap(shared, sizeof(Shared));
    --live;
  }
};

namespace {

thread_local int depth = 0;
thread_local std::vector<Op> group;
thread_local ncclComm* group_comm = nullptr;

ncclResult_t Add(ncclComm* comm, const Op& op) {
  // NCCL would report this too.
  if (comm->state != ncclSuccess) return ncclInvalidUsage;
  ncclGroupStart();
  group.push_back(op);
  group_comm = comm;
  return ncclGroupEnd();
}
const std::byte* Bytes(const void* p) { return static_cast<const std::byte*>(p); }
std::byte* Bytes(void* p) { return static_cast<std::byte*>(p); }

}  // namespace

extern "C" {

// For tests: communicators that were neither destroyed nor aborted.
int shardc_fake_nccl_live() { return live; }

// For tests: how often memory was given, and not taken back.
int shardc_fake_nccl_allocations() { return allocations; }

ncclResult_t ncclMemAlloc(void** p, size_t bytes) {
  *p = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  ++allocations;
  return ncclSuccess;
}
ncclResult_t ncclMemFree(void* p) {
  std::free(p);
  --allocations;
  return ncclSuccess;
}
ncclResult_t ncclGetVersion(int* version) {
  *version = 22800;
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
  auto* comm = new ncclComm{rank, size, static_cast<Shared*>(memory), {}};
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
  comm->Run([comm] { comm->Barrier(); });
  return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->stop = true;
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
  group_comm->Run([comm = group_comm, ops = std::move(group)] { comm->Do(ops); });
  group.clear();
  return ncclInProgress;
}
ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t) {
  return Add(comm, {Kind::kAllReduce, Bytes(send), Bytes(recv), count, type, op, 0});
}
ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t) {
  return Add(comm, {Kind::kAllGather, Bytes(send), Bytes(recv), count, type, ncclSum, 0});
}
ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t) {
  return Add(comm, {Kind::kReduceScatter, Bytes(send), Bytes(recv), count, type, op, 0});
}
ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t) {
  return Add(comm, {Kind::kSend, Bytes(send), nullptr, count, type, ncclSum, peer});
}
ncclResult_t ncclRecv(void* recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t) {
  return Add(comm, {Kind::kRecv, nullptr, Bytes(recv), count, type, ncclSum, peer});
}

}  // extern "C"
