#include "runtime/mpi/world.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <new>
#include <utility>

#include "ir/diagnostic.h"

namespace shardc::mpi {

std::string ReasonOf(std::string_view text) noexcept {
  try {
    return std::string(text.empty() ? kNoReason : text);
  } catch (const std::bad_alloc&) {
    return std::string(kNoReason);
  }
}

namespace {

// kHeard answers a kFailed of the sender's own; its `rank` is the one that the answerer takes to
// have failed first.
enum class Word : int32_t { kBye, kFailed, kHeard };

// On a socket; kFailed is followed by the reason.
struct Notice {
  Word word = Word::kBye;
  int32_t rank = 0, lost = 0, mismatch_group = -1, reporter = 0, reason_bytes = 0;
};

constexpr size_t kMaxReason = 16384;

// Of the reason, as much as can be had from the socket and from memory.
std::string ReadReason(const Socket& socket, size_t bytes) {
  std::string reason;
  try {
    reason.resize(std::min(kMaxReason, bytes));
  } catch (const std::bad_alloc&) {
    for (char skipped; bytes > 0 && socket.Read(&skipped, 1);) --bytes;
    return ReasonOf("");
  }
  socket.Read(reason.data(), reason.size());
  return reason;
}

// To the thread that watches.
constexpr char kStop = 's', kAnswer = 'a';

}  // namespace

World::World(Wire& wire, int rank, std::vector<Socket> peers, std::function<void()> on_failure)
    : wire_(wire),
      rank_(rank),
      peers_(std::move(peers)),
      on_failure_(std::move(on_failure)),
      settled_(peers_.size()),
      outbox_(wire, [this](int peer, const std::string& what) {
        const bool lost = peer != Outbox::kNobody;
        Fail({{lost ? peer : rank_, ReasonOf(what), lost}, -1, rank_});
      }) {
  int ends[2];
  SHARDC_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  of_watcher_ = Socket(ends[0]);
  to_watcher_ = Socket(ends[1]);
  std::vector<pollfd> fds = {{of_watcher_.fd(), POLLIN, 0}};
  for (const Socket& peer : peers_) fds.push_back({peer.fd(), POLLIN, 0});
  watcher_ = std::thread([this, fds = std::move(fds)]() mutable { Watch(fds); });
}

World::~World() {
  outbox_.Stop();  // it may ask the watcher
  to_watcher_.Write(&kStop, 1);
  watcher_.join();
  const Notice bye{Word::kBye, rank_, 0, -1, rank_, 0};
  for (const Socket& peer : peers_) {
    if (peer.fd() >= 0) peer.Write(&bye, sizeof(bye));
  }
}

bool World::Note(Failure failure, bool own) {
  {
    std::lock_guard lock(mutex_);
    if (failure_) return false;
    told_ = own;
    failure_ = std::move(failure);
    failed_.store(true, std::memory_order_release);
  }
  if (on_failure_) on_failure_();
  return true;
}

void World::Fail(Failure failure) noexcept {
  std::string reason = ReasonOf(failure.what.reason);
  if (reason.size() > kMaxReason) reason.resize(kMaxReason);
  if (reason.size() < failure.what.reason.size()) failure.what.reason = ReasonOf(reason);
  const Notice notice{Word::kFailed,     failure.what.rank,
                      failure.what.lost, failure.mismatch_group,
                      failure.reporter,  static_cast<int32_t>(reason.size())};
  CatchUp();
  if (!Note(std::move(failure), notice.rank == rank_)) return;
  std::lock_guard lock(saying_);
  for (const Socket& peer : peers_) {
    if (peer.fd() < 0) continue;
    peer.Write(&notice, sizeof(notice));
    peer.Write(reason.data(), reason.size());
  }
}

void World::Settle(std::chrono::seconds patience) {
  std::unique_lock lock(mutex_);
  auto settled = [this] {
    return !told_ || failure_->what.lost || failure_->what.shared ||
           std::all_of(settled_.begin(), settled_.begin() + rank_, [](bool s) { return s; });
  };
  settles_.wait_for(lock, patience, settled);
}

std::optional<WorldFailure> World::failure() const {
  std::lock_guard lock(mutex_);
  return failure_ ? std::optional(failure_->what) : std::nullopt;
}

void World::ThrowFailure(int group, const std::vector<int>& members) const {
  std::lock_guard lock(mutex_);
  SHARDC_CHECK(failure_.has_value());
  bool ours = failure_->mismatch_group == group &&
              std::find(members.begin(), members.end(), failure_->reporter) != members.end();
  if (ours) throw CallMismatch(failure_->what.reason);
  throw Aborted(failure_->what.rank, failure_->what.reason);
}

void World::CatchUp() {
  std::lock_guard lock(asking_);
  char word = kAnswer;
  if (to_watcher_.Write(&word, 1)) to_watcher_.Read(&word, 1);
}

void World::Watch(std::vector<pollfd>& fds) {
  bool asked = false;
  for (;;) {
    const int n = poll(fds.data(), fds.size(), asked ? 0 : -1);
    if (n < 0) continue;
    if (n == 0) {  // nothing more has arrived
      of_watcher_.Write(&kAnswer, 1);
      asked = false;
      continue;
    }
    for (size_t i = 1; i < fds.size(); ++i) {
      if (fds[i].revents && !Hear(static_cast<int>(i) - 1)) fds[i].fd = -1;
    }
    if (!fds[0].revents) continue;
    char word = kStop;
    if (!of_watcher_.Read(&word, 1) || word == kStop) return;
    asked = true;
  }
}

bool World::Hear(int peer) {
  const Socket& socket = peers_[peer];
  Notice notice;
  auto settle = [&](bool shared) {
    std::lock_guard lock(mutex_);
    settled_[peer] = true;
    if (shared && failure_ && failure_->what.rank == rank_) failure_->what.shared = true;
    settles_.notify_all();
  };
  if (!socket.Read(&notice, sizeof(notice))) {
    settle(false);
    Note({{peer, ReasonOf("its process is gone (killed, crashed, or its machine is unreachable)"),
           true},
          -1,
          rank_});
    return false;
  }
  if (notice.word == Word::kBye) {
    settle(false);
    return false;
  }
  const bool its_own = notice.rank == peer;
  if (notice.word == Word::kHeard) {
    settle(its_own && peer < rank_);
    return true;
  }
  std::string reason = ReadReason(socket, static_cast<size_t>(notice.reason_bytes));
  Note(
      {{notice.rank, std::move(reason), notice.lost != 0}, notice.mismatch_group, notice.reporter});
  // Afterwards: a failure of this process's own either is known by now, or will not be noted.
  if (its_own) settle(peer < rank_);
  if (its_own && !notice.lost) {
    Notice heard{Word::kHeard, 0, 0, -1, rank_, 0};
    {
      std::lock_guard lock(mutex_);
      heard.rank = failure_->what.rank;
    }
    std::lock_guard lock(saying_);
    socket.Write(&heard, sizeof(heard));
  }
  return true;
}

}  // namespace shardc::mpi
