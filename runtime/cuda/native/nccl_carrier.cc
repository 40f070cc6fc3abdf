#include "runtime/cuda/native/nccl_carrier.h"

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "ir/diagnostic.h"
#include "runtime/cuda/native/nccl_api.h"

namespace shardc::cuda {
namespace {

ncclDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kF16:
      return ncclFloat16;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kF64:
      return ncclFloat64;
    case DType::kI32:
      return ncclInt32;
    case DType::kI64:
      return ncclInt64;
    case DType::kBool:
      return ncclUint8;
  }
  throw InternalError("unknown dtype");
}

// The aborts that were begun, each in a thread that may outlive the carrier.
class Aborts {
 public:
  void Begin(const NcclApi& api, ncclComm_t doomed) {
    {
      std::lock_guard lock(state_->mutex);
      ++state_->running;
    }
    auto abort = [&api, doomed, state = state_] {
      api.CommAbort(doomed);
      std::lock_guard lock(state->mutex);
      --state->running;
      state->ended.notify_all();
    };
    try {
      std::thread(abort).detach();
    } catch (const std::exception&) {
      abort();
    }
  }
  // Whether all have ended by then.
  bool EndWithin(std::chrono::milliseconds patience) {
    std::unique_lock lock(state_->mutex);
    return state_->ended.wait_for(lock, patience, [this] { return state_->running == 0; });
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable ended;
    int running = 0;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

class NcclCarrier : public Carrier {
 public:
  NcclCarrier(const Program& program, const std::vector<std::vector<int>>& groups,
              std::unique_ptr<Communicator> host, std::chrono::milliseconds patience)
      : api_(Nccl()), host_(std::move(host)), patience_(patience) {
    try {
      for (const std::vector<int>& axes : groups) Connect(program, axes);
    } catch (const std::exception& e) {
      Abort(e.what());
      WaitForAborted();
      throw;
    }
  }

  ~NcclCarrier() override {
    try {
      // A communicator that is closed while others still use it would end their collectives.
      if (!comms_.empty()) host_->Barrier();
      for (auto& [axes, comm] : comms_) Close(comm);
    } catch (const std::exception&) {
      DropComms();
    }
    WaitForAborted();
    if (gave_up_) return;  // what still runs there may use the memory
    for (std::byte* p : freed_) api_.MemFree(p);
  }

  // What a captured collective is given NCCL registers by itself, for copies and reductions right
  // from peers' memory, if it comes from here and lies at the same place in its allocation on all
  // ranks, as it does in programs with one body (NCCL's User Buffer Registration).
  std::byte* Allocate(int64_t bytes) override {
    void* p = nullptr;
    if (api_.MemAlloc(&p, static_cast<size_t>(bytes)) != ncclSuccess) p = nullptr;
    bool all = false;
    try {
      all = All(p != nullptr);
    } catch (...) {
      if (p) api_.MemFree(p);
      throw;
    }
    if (all) return static_cast<std::byte*>(p);
    if (p) api_.MemFree(p);
    return nullptr;
  }
  // Communicators let go of what they have registered when they are closed, not when the graph
  // goes.
  void Free(std::byte* p) noexcept override { freed_.push_back(p); }

  void Enqueue(const Collective& c, std::span<const Member> members) override {
    SHARDC_CHECK(members.size() == 1, "one rank per GPU");
    const Member& m = members[0];
    ncclComm_t comm = comms_.at(c.axes);
    int size = sizes_.at(c.axes);
    Expect(api_.GroupStart(), "ncclGroupStart");
    try {
      for (const Buffers& b : m.buffers) {
        if (b.count == 0) continue;
        if (c.kind == CollectiveKind::kSendRecv) {
          Transfer(c, b, comm, m.stream);
        } else {
          One(c, b, comm, size, m.stream);
        }
      }
    } catch (...) {
      api_.GroupEnd();  // a group left open would swallow the calls to come
      throw;
    }
    Expect(api_.GroupEnd(), CollectiveKindName(c.kind));
    Settle(comm);
  }

  bool All(bool mine) override {
    int32_t some_not = mine ? 0 : 1;
    host_->AllReduce(&some_not, &some_not, 1, DType::kI32, ReduceOp::kMax);
    return some_not == 0;
  }

  void Share(std::string& text, int root) override {
    auto bytes = static_cast<int64_t>(text.size());
    host_->Broadcast(&bytes, 1, DType::kI64, root);
    text.resize(static_cast<size_t>(bytes));
    host_->Broadcast(text.data(), bytes, DType::kBool, root);
  }

  bool can_fail_later() const override { return true; }

  void Check() override {
    host_->Poll();
    for (auto& [axes, comm] : comms_) ExpectAlive(comm);
  }

  void Abort(const std::string& reason) noexcept override {
    host_->Abort(reason);  // nothing if the world has failed already
    DropComms();
  }

  void WaitForAborted() noexcept override {
    if (gave_up_ || aborts_.EndWithin(patience_)) return;
    gave_up_ = true;
    std::fprintf(stderr, "note: NCCL has not ended its communicators, nobody waits any more\n");
  }

 private:
  void Connect(const Program& program, const std::vector<int>& axes) {
    int color = program.mesh.Group(program.rank, axes).front();
    int index = static_cast<int>(program.mesh.GroupIndex(program.rank, axes));
    std::unique_ptr<Communicator> group = host_->Split(color, index);
    ncclUniqueId id = {};
    if (index == 0) Expect(api_.GetUniqueId(&id), "ncclGetUniqueId");
    static_assert(sizeof(id) % sizeof(int64_t) == 0);
    std::array<int64_t, sizeof(id) / sizeof(int64_t)> words;
    std::memcpy(words.data(), &id, sizeof(id));
    group->Broadcast(words.data(), static_cast<int64_t>(words.size()), DType::kI64, 0);
    std::memcpy(&id, words.data(), sizeof(id));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t& comm = comms_[axes];
    sizes_[axes] = group->size();
    Expect(api_.CommInitRankConfig(&comm, group->size(), id, index, &config),
           "ncclCommInitRankConfig");
    Settle(comm);
  }

  // Of a transfer this rank has one end.
  void Transfer(const Collective& c, const Buffers& b, ncclComm_t comm, Stream s) {
    const auto count = static_cast<size_t>(b.count);
    if (b.send) {
      Expect(api_.Send(b.send, count, TypeOf(b.dtype), c.to, comm, s), "ncclSend");
    } else {
      Expect(api_.Recv(b.recv, count, TypeOf(b.dtype), c.from, comm, s), "ncclRecv");
    }
  }

  void One(const Collective& c, const Buffers& b, ncclComm_t comm, int size, Stream s) {
    ncclDataType_t type = TypeOf(b.dtype);
    ncclRedOp_t op = c.max ? ncclMax : ncclSum;
    auto count = static_cast<size_t>(b.count);
    const auto bytes = static_cast<size_t>(b.bytes());
    switch (c.kind) {
      case CollectiveKind::kAllReduce:
        return Expect(api_.AllReduce(b.send, b.recv, count, type, op, comm, s), "ncclAllReduce");
      case CollectiveKind::kAllGather:
        return Expect(api_.AllGather(b.send, b.recv, count, type, comm, s), "ncclAllGather");
      case CollectiveKind::kReduceScatter:
        return Expect(api_.ReduceScatter(b.send, b.recv, count, type, op, comm, s),
                      "ncclReduceScatter");
      case CollectiveKind::kAllToAll:
        for (int peer = 0; peer < size; ++peer) {
          size_t at = static_cast<size_t>(peer) * bytes;
          Expect(api_.Send(static_cast<const std::byte*>(b.send) + at, count, type, peer, comm, s),
                 "ncclSend");
          Expect(api_.Recv(static_cast<std::byte*>(b.recv) + at, count, type, peer, comm, s),
                 "ncclRecv");
        }
        return;
      case CollectiveKind::kBroadcast:
      case CollectiveKind::kSendRecv:
        break;
    }
    throw InternalError(StrCat("no nccl form of ", CollectiveKindName(c.kind)));
  }

  // In progress is as good as done for now: communicators do not block.
  void Expect(ncclResult_t result, std::string_view what) {
    if (result == ncclSuccess || result == ncclInProgress) return;
    host_->Poll();  // the failure of another rank often shows here first
    throw Diagnostic(
        "E4323", ExitCode::kPeerLost, "NCCL",
        StrCat(what, ": ", api_.GetErrorString(result), "; ", api_.GetLastError(nullptr)),
        "run with NCCL_DEBUG=INFO for more");
  }

  // What became of all that the communicator was given: done or in progress.
  ncclResult_t ExpectAlive(ncclComm_t comm) {
    ncclResult_t state = ncclSuccess;
    if (comm) Expect(api_.CommGetAsyncError(comm, &state), "ncclCommGetAsyncError");
    Expect(state, "a collective");
    return state;
  }

  // Waits until the communicator has taken what it was given.
  void Settle(ncclComm_t comm) {
    // Mostly at once; connections take their time.
    for (int looks = 0; ExpectAlive(comm) == ncclInProgress; ++looks) {
      host_->Poll();
      if (looks < 200) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
  }

  void Close(ncclComm_t& comm) {
    Expect(api_.CommFinalize(comm), "ncclCommFinalize");
    Settle(comm);
    Expect(api_.CommDestroy(comm), "ncclCommDestroy");
    comm = nullptr;
  }

  // Ends what runs and waits in all of them at once. An abort returns when the communicator's
  // kernels have ended and no graph holds them any more; but kernels of one may wait for those of
  // another, and the graph is the executor's to destroy: so nothing is waited for here.
  void DropComms() noexcept {
    for (auto& [axes, comm] : comms_) {
      if (comm) aborts_.Begin(api_, std::exchange(comm, nullptr));
    }
  }

  const NcclApi& api_;
  std::unique_ptr<Communicator> host_;
  std::map<std::vector<int>, ncclComm_t> comms_;
  std::map<std::vector<int>, int> sizes_;
  const std::chrono::milliseconds patience_;
  Aborts aborts_;
  bool gave_up_ = false;
  std::vector<std::byte*> freed_;
};

}  // namespace

std::unique_ptr<Carrier> MakeNccl(Device& device, const Program& program,
                                  const std::vector<std::vector<int>>& groups,
                                  std::unique_ptr<Communicator> host) {
  return MakePatientNccl(kAbortPatience, device, program, groups, std::move(host));
}

std::unique_ptr<Carrier> MakePatientNccl(std::chrono::milliseconds patience, Device& device,
                                         const Program& program,
                                         const std::vector<std::vector<int>>& groups,
                                         std::unique_ptr<Communicator> host) {
  device.Activate();
  return std::make_unique<NcclCarrier>(program, groups, std::move(host), patience);
}

}  // namespace shardc::cuda
