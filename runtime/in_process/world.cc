#include "runtime/in_process/world.h"

#include <algorithm>
#include <utility>

#include "ir/diagnostic.h"
#include "runtime/processors.h"

namespace shardc::in_process {
namespace {

// About 100 us: longer than ranks in step differ by, shorter than anyone minds.
constexpr int kSpins = 4000;

void Relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

}  // namespace

void Signal::Ring() {
  word_.fetch_add(kStep, std::memory_order_seq_cst);
  word_.notify_all();
}

bool Signal::RingUnlessFlagged() {
  uint32_t word = word_.load(std::memory_order_relaxed);
  do {
    if (word & kFlags) return false;
  } while (!word_.compare_exchange_weak(word, word + kStep, std::memory_order_seq_cst));
  word_.notify_all();
  return true;
}

void Signal::Raise(uint32_t flags) {
  word_.fetch_or(flags, std::memory_order_seq_cst);
  word_.notify_all();
}

uint32_t Signal::WaitChange(uint32_t old, int spins) const {
  for (int i = 0; i < spins; ++i) {
    const uint32_t word = Load();
    if (word != old) return word;
    Relax();
  }
  word_.wait(old, std::memory_order_acquire);
  return Load();
}

void Mailbox::Post(Letter* letter) {
  std::lock_guard lock(mutex_);
  letters_.push_back(letter);
}

bool Mailbox::Remove(const Letter* letter) {
  std::lock_guard lock(mutex_);
  return std::erase(letters_, letter) > 0;
}

World::World(int num_ranks) : spins_(num_ranks <= CountUsableProcessors() ? kSpins : 0) {}

void World::Fail(Failure failure) noexcept {
  std::lock_guard lock(mutex_);
  if (failure_) return;
  failure_ = std::move(failure);
  for (const auto& weak : groups_) {
    if (auto group = weak.lock()) group->Raise(Signal::kFailed);
  }
}

void World::ThrowFailure(const Group* group) const {
  std::lock_guard lock(mutex_);
  SHARDC_CHECK(failure_.has_value());
  if (failure_->mismatch == group) throw CallMismatch(failure_->message);
  throw Aborted(failure_->rank, failure_->message);
}

void World::Register(const std::shared_ptr<Group>& group) {
  std::lock_guard lock(mutex_);
  std::erase_if(groups_, [](const auto& weak) { return weak.expired(); });
  groups_.push_back(group);
  if (failure_) group->Raise(Signal::kFailed);
}

Group::Group(std::shared_ptr<World> w, std::vector<int> members)
    : world(std::move(w)),
      world_ranks(std::move(members)),
      ranks(world_ranks.size()),
      mailboxes(world_ranks.size() * world_ranks.size()) {}

void Group::OpenBarrier() {
  uint32_t word = epoch.Load();
  if (word & Signal::kFlags) ThrowIfFlagged(word);
  const uint32_t before = word;
  if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == size()) {
    arrived.store(0, std::memory_order_relaxed);
    if (!epoch.RingUnlessFlagged()) ThrowIfFlagged(epoch.Load());
    return;
  }
  for (;;) {
    word = epoch.WaitChange(word, world->spins());
    if ((word & ~Signal::kFlags) != (before & ~Signal::kFlags)) return;
    ThrowIfFlagged(word);
  }
}

void Group::CloseBarrier() {
  uint32_t word = epoch.Load();
  const uint32_t before = word & ~Signal::kFlags;
  if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == size()) {
    arrived.store(0, std::memory_order_relaxed);
    epoch.Ring();
    return;
  }
  while ((word & ~Signal::kFlags) == before) word = epoch.WaitChange(word, world->spins());
}

void Group::Raise(uint32_t flags) {
  epoch.Raise(flags);
  for (RankState& rank : ranks) rank.doorbell.Raise(flags);
}

void Group::Leave(int rank) {
  ranks[rank].left.store(true, std::memory_order_seq_cst);
  Raise(Signal::kLeft);
}

void Group::ThrowIfFlagged(uint32_t flags) {
  if (flags & Signal::kFailed) world->ThrowFailure(this);
  if (flags & Signal::kLeft) {
    for (int r = 0; r < size(); ++r) {
      if (ranks[r].left.load(std::memory_order_seq_cst)) FailLeft(r);
    }
  }
}

void Group::FailLeft(int rank) {
  world->Fail({world_ranks[rank], StrCat("it has left ", Name(), " while others still call")});
  world->ThrowFailure(this);
}

void Group::FailMismatch(int rank, const std::string& message) {
  const std::string text = StrCat("the calls in ", Name(), " do not agree: ", message);
  world->Fail({world_ranks[rank], text, this});
  throw CallMismatch(text);
}

std::string Group::Name() const {
  return StrCat("the group of ranks [", Join(world_ranks, ", "), "]");
}

}  // namespace shardc::in_process
