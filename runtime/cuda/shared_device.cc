#include "ir/diagnostic.h"
#include "runtime/cuda/carrier.h"

namespace shardc::cuda {
namespace {

std::byte* Bytes(void* p) { return static_cast<std::byte*>(p); }
const std::byte* Bytes(const void* p) { return static_cast<const std::byte*>(p); }

class SharedDevice : public Carrier {
 public:
  explicit SharedDevice(Device& device) : device_(device), gate_(device.MakeEvent()) {}
  ~SharedDevice() override { device_.DestroyEvent(gate_); }

  void Enqueue(const Collective& c, std::span<const Member> members) override {
    if (members.size() > static_cast<size_t>(kMaxReductionRanks)) {
      throw Diagnostic("E4325", ExitCode::kUsage, "--shared-device",
                       StrCat("a group of ", members.size(), " ranks; one GPU can play at most ",
                              kMaxReductionRanks),
                       "use a smaller mesh, or one GPU for each rank");
    }
    // All of it runs on the first member's stream; one event serves, because Wait takes what it
    // stands for at once.
    Stream leader = members[0].stream;
    for (const Member& m : members.subspan(1)) {
      device_.Record(gate_, m.stream);
      device_.Wait(leader, gate_);
    }
    for (size_t b = 0; b < members[0].buffers.size(); ++b) One(c, members, b, leader);
    device_.Record(gate_, leader);
    for (const Member& m : members.subspan(1)) device_.Wait(m.stream, gate_);
  }

  void Abort(const std::string&) noexcept override {}

 private:
  void One(const Collective& c, std::span<const Member> members, size_t b, Stream s) {
    const Buffers& first = members[0].buffers[b];
    int64_t bytes = first.bytes();
    if (bytes == 0) return;
    ReduceOp op = c.max ? ReduceOp::kMax : ReduceOp::kSum;
    size_t n = members.size();
    auto send = [&](size_t r) { return Bytes(members[r].buffers[b].send); };
    auto recv = [&](size_t r) { return Bytes(members[r].buffers[b].recv); };
    if (c.kind == CollectiveKind::kSendRecv) {
      return device_.Copy(recv(1), send(0), bytes, s);
    }
    auto copy = [&](std::byte* to, const std::byte* from) {
      if (to != from) device_.Copy(to, from, bytes, s);
    };
    switch (c.kind) {
      case CollectiveKind::kAllReduce: {
        Reduction all{{}, {}, first.count, first.dtype, op};
        for (size_t r = 0; r < n; ++r) {
          all.sources.push_back(send(r));
          all.targets.push_back(recv(r));
        }
        device_.Reduce(all, s);
        return;
      }
      case CollectiveKind::kReduceScatter:
        for (size_t r = 0; r < n; ++r) {
          Reduction part{{}, {recv(r)}, first.count, first.dtype, op};
          for (size_t from = 0; from < n; ++from) {
            part.sources.push_back(send(from) + static_cast<int64_t>(r) * bytes);
          }
          device_.Reduce(part, s);
        }
        return;
      case CollectiveKind::kAllGather:
        for (size_t to = 0; to < n; ++to) {
          for (size_t from = 0; from < n; ++from) {
            copy(recv(to) + static_cast<int64_t>(from) * bytes, send(from));
          }
        }
        return;
      case CollectiveKind::kAllToAll:
        for (size_t to = 0; to < n; ++to) {
          for (size_t from = 0; from < n; ++from) {
            copy(recv(to) + static_cast<int64_t>(from) * bytes,
                 send(from) + static_cast<int64_t>(to) * bytes);
          }
        }
        return;
      case CollectiveKind::kBroadcast:
      case CollectiveKind::kSendRecv:
        break;
    }
    throw InternalError(StrCat("no shared_device form of ", CollectiveKindName(c.kind)));
  }

  Device& device_;
  Event gate_;
};

}  // namespace

std::unique_ptr<Carrier> MakeSharedDevice(Device& device) {
  return std::make_unique<SharedDevice>(device);
}

}  // namespace shardc::cuda
