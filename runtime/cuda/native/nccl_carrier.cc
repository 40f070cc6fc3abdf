#include "runtime/cuda/native/nccl_carrier.h"

#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
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

// Hears of a failure of any rank while this one is busy: a thread that waits at a barrier of its
// own, to which all come only at the end.
class Watcher {
 public:
  explicit Watcher(std::unique_ptr<Communicator> group) : group_(std::move(group)) {
    thread_ = std::thread([this] { Listen(); });
  }
  // The world must have been aborted.
  ~Watcher() { thread_.join(); }

  bool failed() const { return failed_.load(std::memory_order_acquire); }
  [[noreturn]] void Throw() const { throw Aborted(rank_, reason_); }

 private:
  void Listen() {
    try {
      group_->Barrier();
    } catch (const Aborted& a) {
      rank_ = a.rank();
      reason_ = a.reason();
    } catch (const std::exception& e) {
      reason_ = e.what();
    }
    failed_.store(true, std::memory_order_release);
  }

  std::unique_ptr<Communicator> group_;
  int rank_ = 0;
  std::string reason_;
  std::atomic<bool> failed_{false};
  std::thread thread_;
};

class NcclCarrier : public Carrier {
 public:
  NcclCarrier(const Program& program, std::unique_ptr<Communicator> host)
      : api_(Nccl()), host_(std::move(host)), watcher_(std::in_place, host_->Split(0, 0)) {
    try {
      for (const Collective& c : program.collectives) {
        if (!comms_.contains(c.axes)) Connect(program, c.axes);
      }
    } catch (const Aborted&) {
      DropComms();
      watcher_.reset();
      throw;
    } catch (const std::exception& e) {
      Abort(e.what());
      watcher_.reset();
      throw;
    }
  }

  ~NcclCarrier() override {
    try {
      host_->Barrier();
      for (auto& [axes, comm] : comms_) Close(comm);
    } catch (const std::exception&) {
      DropComms();
    }
    host_->Abort("the run has ended");
    watcher_.reset();
  }

  void Enqueue(const Collective& c, std::span<const Member> members) override {
    SHARDC_CHECK(members.size() == 1, "one rank per GPU");
    const Member& m = members[0];
    ncclComm_t comm = comms_.at(c.axes);
    int size = sizes_.at(c.axes);
    Expect(api_.GroupStart(), "ncclGroupStart");
    for (const Buffers& b : m.buffers) {
      if (b.count > 0) One(c, b, comm, size, m.stream);
    }
    Expect(api_.GroupEnd(), CollectiveKindName(c.kind));
    Settle(comm);
  }

  bool can_fail_later() const override { return true; }

  void Check() override {
    if (watcher_->failed()) {
      DropComms();
      watcher_->Throw();
    }
    for (auto& [axes, comm] : comms_) {
      ncclResult_t state = ncclSuccess;
      if (comm) Expect(api_.CommGetAsyncError(comm, &state), "ncclCommGetAsyncError");
      Expect(state, "a collective");
    }
  }

  void Abort(const std::string& reason) noexcept override {
    host_->Abort(reason);
    DropComms();
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

  void One(const Collective& c, const Buffers& b, ncclComm_t comm, int size, Stream s) {
    ncclDataType_t type = TypeOf(b.dtype);
    ncclRedOp_t op = c.max ? ncclMax : ncclSum;
    auto count = static_cast<size_t>(b.count);
    size_t bytes = count * static_cast<size_t>(DTypeSize(b.dtype));
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
    // The failure of another rank often shows here first.
    if (watcher_ && watcher_->failed()) watcher_->Throw();
    throw Diagnostic(
        "E4323", ExitCode::kPeerLost, "NCCL",
        StrCat(what, ": ", api_.GetErrorString(result), "; ", api_.GetLastError(nullptr)),
        "run with NCCL_DEBUG=INFO for more");
  }

  // Waits until the communicator has taken what it was given.
  void Settle(ncclComm_t comm) {
    for (;;) {
      ncclResult_t state = ncclSuccess;
      Expect(api_.CommGetAsyncError(comm, &state), "ncclCommGetAsyncError");
      Expect(state, "a collective");
      if (state != ncclInProgress) return;
      if (watcher_->failed()) watcher_->Throw();
      std::this_thread::yield();
    }
  }

  void Close(ncclComm_t& comm) {
    Expect(api_.CommFinalize(comm), "ncclCommFinalize");
    Settle(comm);
    Expect(api_.CommDestroy(comm), "ncclCommDestroy");
    comm = nullptr;
  }

  void DropComms() noexcept {
    for (auto& [axes, comm] : comms_) {
      if (comm) api_.CommAbort(comm);
      comm = nullptr;
    }
  }

  const NcclApi& api_;
  std::unique_ptr<Communicator> host_;
  std::optional<Watcher> watcher_;
  std::map<std::vector<int>, ncclComm_t> comms_;
  std::map<std::vector<int>, int> sizes_;
};

}  // namespace

std::unique_ptr<Carrier> MakeNccl(Device& device, const Program& program,
                                  std::unique_ptr<Communicator> host) {
  device.Activate();
  return std::make_unique<NcclCarrier>(program, std::move(host));
}

}  // namespace shardc::cuda
