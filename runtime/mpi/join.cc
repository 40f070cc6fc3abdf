// What the plugin gives: this process's place among those that mpirun started.
#include "runtime/mpi/join.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "ir/diagnostic.h"
#include "runtime/mpi/mpi_communicator.h"

namespace shardc::mpi {
namespace {

// Written by the signal handler and by worlds that fail; read by the watch.
std::atomic<int> alarm_fd{-1};

void Alarm(char what) {
  int fd = alarm_fd.load();
  if (fd >= 0) [[maybe_unused]]
    ssize_t n = write(fd, &what, 1);
}

class MpiProcesses final : public Processes {
 public:
  ~MpiProcesses() override { StopWatch(); }

  int rank() const override { return wire_.rank(); }
  int size() const override { return wire_.size(); }
  int local_rank() const override { return wire_.local_rank(); }

  std::unique_ptr<Communicator> MakeWorld(int n) override {
    SHARDC_CHECK(n >= 1 && n <= size());
    const uint64_t random = (uint64_t{std::random_device()()} << 32) | std::random_device()();
    const std::vector<std::string> all =
        wire_.AllGather(StrCat(UnusedGroupId(), ' ', random, ' ', listener_.Describe()));
    int id = 0;
    std::vector<std::string> listeners;
    for (const std::string& text : all) {
      id = std::max(id, std::stoi(text));
      listeners.push_back(text.substr(text.find(' ', text.find(' ') + 1) + 1));
    }
    MarkGroupIdUsed(id);
    const uint64_t cookie =
        std::stoull(all[0].substr(all[0].find(' ') + 1)) + static_cast<uint64_t>(id);
    if (rank() >= n) return nullptr;
    auto world = std::make_shared<World>(
        wire_, rank(), ConnectAll(listener_, rank(), n, cookie, listeners), [] { Alarm('f'); });
    {
      std::lock_guard lock(mutex_);
      newest_ = world;
    }
    std::vector<int> members;
    for (int r = 0; r < n; ++r) members.push_back(r);
    return std::make_unique<MpiCommunicator>(std::move(world), id, std::move(members));
  }

  std::optional<WorldFailure> failure(std::chrono::seconds patience) const override {
    const auto world = newest();
    if (!world) return std::nullopt;
    world->CatchUp();
    world->Settle(patience);
    return world->failure();
  }

  void ExitWhenStuck(double seconds, std::function<void()> exit) override {
    StopWatch();
    int ends[2];
    SHARDC_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    read_ = Socket(ends[0]);
    write_ = Socket(ends[1]);
    alarm_fd = ends[1];
    // When a process is killed, the launcher ends the others with this signal, and soon after with
    // one that cannot be caught: the time between is for saying what happened.
    struct sigaction action {};
    action.sa_handler = [](int) { Alarm('t'); };
    sigaction(SIGTERM, &action, nullptr);
    watch_ = std::thread([this, seconds, exit = std::move(exit)] { Watch(seconds, exit); });
  }

  void EndWhenAsked() override { ends_when_asked_ = true; }

  void Finish(bool failed) noexcept override {
    const bool terminated = terminated_;
    StopWatch();
    newest_.reset();
    if (!failed) return wire_.Finalize();
    if (terminated) return;
    // MPI waits for every process, and one of them may be gone.
    try {
      auto done = std::make_shared<std::atomic<bool>>(false);
      std::thread([this, done] {
        wire_.Finalize();
        *done = true;
      }).detach();
      for (int i = 0; i < 30 && !*done; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    } catch (const std::exception&) {
      // No memory for a thread: the launcher ends the others.
    }
  }

 private:
  void Watch(double seconds, const std::function<void()>& exit) {
    char what = 0;
    for (bool failed = false; !failed;) {
      if (!read_.Read(&what, 1) || what == 'q') return;
      failed = what == 'f' || !ends_when_asked_;
      if (what != 't') continue;
      terminated_ = true;
      seconds = std::min(seconds, 0.5);
      if (!failed) continue;
      // The reason is on its way: a lost process is seen by all others at the same time.
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      if (const auto world = newest()) {
        world->Fail({{rank(), ReasonOf("the launcher ended it (SIGTERM)"), true}, -1, rank()});
      }
    }
    using Clock = std::chrono::steady_clock;
    const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
    while (Clock::now() < deadline) {
      pollfd p{read_.fd(), POLLIN, 0};
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
      if (poll(&p, 1, static_cast<int>(left.count()) + 1) <= 0) continue;
      if (!read_.Read(&what, 1) || what == 'q') return;
      terminated_ = terminated_ || what == 't';
    }
    exit();
  }

  std::shared_ptr<World> newest() const {
    std::lock_guard lock(mutex_);
    return newest_;
  }

  void StopWatch() noexcept {
    if (!watch_.joinable()) return;
    Alarm('q');
    watch_.join();
    alarm_fd = -1;
  }

  Wire wire_;
  Listener listener_;
  mutable std::mutex mutex_;
  std::shared_ptr<World> newest_;  // kept, so that it can be asked why it failed
  Socket read_, write_;
  std::atomic<bool> terminated_{false}, ends_when_asked_{false};
  std::thread watch_;
};

}  // namespace
}  // namespace shardc::mpi

shardc::Processes* shardc_join_mpi() { return new shardc::mpi::MpiProcesses; }
