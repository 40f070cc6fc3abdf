// A wire that fails under the thread that moves messages on by itself. The wire here is not over
// MPI: it keeps what it is given, and throws where a test says so.
#include "runtime/mpi/outbox.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <set>

#include "runtime/mpi/header.h"
#include "runtime/mpi/world.h"

namespace shardc::mpi {
namespace {

// What the wire of the running test does. Hooks are called from any thread.
struct Script {
  std::function<void()> on_progress = [] {};
  std::function<void()> on_send = [] {};
  std::atomic<bool> accepts{true};
  std::atomic<int> sends{0};
};
Script* script = nullptr;
const Parcel kNote;

}  // namespace

Wire::Wire() = default;
Wire::~Wire() = default;
void Wire::Post(int, int, Channel, Parcel) {}
const Parcel* Wire::Front(int, int, Channel) { return script->accepts ? &kNote : nullptr; }
Parcel Wire::Take(int, int, Channel) { return {}; }
void Wire::Send(int, int, Parcel, const std::shared_ptr<std::atomic<int>>&) {
  ++script->sends;
  script->on_send();
}
std::optional<Parcel> Wire::Receive(int, int, std::unique_ptr<Arrival>&) { return std::nullopt; }
void Wire::Abandon(std::unique_ptr<Arrival>) {}
void Wire::Recycle(Parcel) {}
Parcel Wire::Make(size_t bytes) { return Parcel(bytes); }
void Wire::Progress() { script->on_progress(); }

namespace {

using namespace std::chrono_literals;
constexpr Outbox::Address kThere{1, 0, 5};

// Of this process, by their numbers.
std::set<std::string> Threads() {
  std::set<std::string> threads;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    threads.insert(entry.path().filename());
  }
  return threads;
}

class FailingOutbox : public ::testing::Test {
 protected:
  FailingOutbox() { script = &script_; }

  // One that goes with its envelope where it is small, else in chunks.
  Transfer Message(bool small) {
    data_.resize(small ? 16 : 1 << 20);
    Transfer t;
    t.kind = Transfer::Kind::kSend;
    t.peer = 1;
    t.send = data_.data();
    t.count = static_cast<int64_t>(data_.size());
    t.dtype = DType::kF32;
    return t;
  }

  struct Report {
    int peer;
    std::string what;
  };
  // What an outbox says that moves one message in the background. Whoever is told may use it.
  Report Moved(bool small) {
    std::promise<Report> told;
    std::atomic<int> times{0};
    Outbox* outbox = nullptr;
    int64_t message = -1;
    std::promise<void> posted, ended;
    auto ready = posted.get_future().share();
    Outbox box(wire_, [&](int peer, const std::string& what) {
      ready.wait();
      EXPECT_FALSE(outbox->IsDone(message));
      if (++times > 1) return;
      ended.set_value_at_thread_exit();
      told.set_value({peer, what});
    });
    outbox = &box;
    box.MoveInBackground();
    message = box.Post(kThere, Message(small));
    posted.set_value();
    auto report = told.get_future();
    if (report.wait_for(20s) != std::future_status::ready) {
      ADD_FAILURE() << "nobody was told";
      box.Stop();
      return {};
    }
    Report out = report.get();
    // Nothing moves by itself any more, and nothing is said again; that it was begun stays so.
    EXPECT_EQ(ended.get_future().wait_for(20s), std::future_status::ready);
    const int sent = script_.sends;
    const std::set<std::string> threads = Threads();
    box.MoveInBackground();
    const int64_t later = box.Post(kThere, Message(false));
    for (const std::string& thread : Threads()) EXPECT_TRUE(threads.contains(thread)) << thread;
    EXPECT_EQ(script_.sends, sent);
    EXPECT_FALSE(box.IsDone(message));
    EXPECT_FALSE(box.IsDone(later));
    box.Forget(message);
    EXPECT_TRUE(box.IsDone(message));
    box.Stop();
    EXPECT_EQ(times, 1);
    return out;
  }

  Script script_;
  Wire wire_;
  std::vector<float> data_;
};

TEST_F(FailingOutbox, ProgressFails) {
  script_.accepts = false;
  script_.on_progress = [] { throw WireError(1, "MPI_Test: torn"); };
  Report report = Moved(/*small=*/true);
  EXPECT_EQ(report.peer, 1);
  EXPECT_EQ(report.what, "MPI_Test: torn");
}

TEST_F(FailingOutbox, ASendFails) {
  script_.on_send = [] { throw WireError(2, "MPI_Isend: torn"); };
  Report report = Moved(/*small=*/false);
  EXPECT_EQ(report.peer, 2);
  EXPECT_EQ(report.what, "MPI_Isend: torn");
  EXPECT_EQ(script_.sends, 1);
}

TEST_F(FailingOutbox, WhatIsNotAboutAPeer) {
  script_.on_send = [] { throw std::bad_alloc(); };
  EXPECT_EQ(Moved(/*small=*/false).peer, Outbox::kNobody);
}

// The rank fails, and says so to the others, without anybody waiting for the message.
class FailingWorld : public FailingOutbox {
 protected:
  // What both of two ranks know, the first of which sends over the script's wire.
  std::vector<WorldFailure> Failures() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    std::promise<void> failed[2];
    auto world = [&](int rank) {
      std::vector<Socket> peers(2);
      peers[1 - rank] = Socket(ends[rank]);
      return std::make_unique<World>(wire_, rank, std::move(peers),
                                     [&, rank] { failed[rank].set_value(); });
    };
    auto sender = world(0), other = world(1);
    sender->outbox().MoveInBackground();
    sender->outbox().Post(kThere, Message(false));
    std::vector<WorldFailure> out;
    for (int rank : {0, 1}) {
      const bool told = failed[rank].get_future().wait_for(20s) == std::future_status::ready;
      EXPECT_TRUE(told) << "rank " << rank;
      const World& w = rank == 0 ? *sender : *other;
      if (told) out.push_back(*w.failure());
    }
    EXPECT_THROW(sender->ThrowFailure(0, {0, 1}), Aborted);
    return out;
  }
};

TEST_F(FailingWorld, NamesTheLostPeerToAll) {
  script_.on_send = [] { throw WireError(1, "MPI_Isend: torn"); };
  std::vector<WorldFailure> failures = Failures();
  ASSERT_EQ(failures.size(), 2u);
  for (const WorldFailure& f : failures) {
    EXPECT_EQ(f.rank, 1);
    EXPECT_TRUE(f.lost);
    EXPECT_EQ(f.reason, "MPI_Isend: torn");
  }
}

TEST_F(FailingWorld, NamesItselfWhereNoPeerIsToBlame) {
  script_.on_send = [] { throw std::runtime_error("no room"); };
  std::vector<WorldFailure> failures = Failures();
  ASSERT_EQ(failures.size(), 2u);
  for (const WorldFailure& f : failures) {
    EXPECT_EQ(f.rank, 0);
    EXPECT_FALSE(f.lost);
    EXPECT_EQ(f.reason, "no room");
  }
}

}  // namespace
}  // namespace shardc::mpi
