#include "runtime/mpi/outbox.h"

#include <set>
#include <utility>

#include "runtime/mpi/header.h"
#include "runtime/mpi/patience.h"
#include "runtime/mpi/world.h"

namespace shardc::mpi {

Outbox::Outbox(Wire& wire, OnError on_error) : wire_(wire), on_error_(std::move(on_error)) {}

void Outbox::Stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (worker_.joinable()) worker_.join();
}

int64_t Outbox::Post(const Address& to, const Transfer& send) {
  const int64_t bytes = send.bytes();
  const bool small = bytes <= kSmallBytes;
  Parcel parcel = Encode(Envelope{send.count, send.dtype});
  if (small) {
    const auto* data = static_cast<const std::byte*>(send.send);
    parcel.insert(parcel.end(), data, data + bytes);
  }
  std::lock_guard lock(mutex_);
  wire_.Post(to.peer, to.group, Channel::kEnvelopes, std::move(parcel));
  const int64_t number = posted_++;
  Message& message = messages_[number];
  message.to = to;
  message.small = small;
  message.contents.Add(send.send, bytes, send.dtype);
  wake_.notify_all();
  return number;
}

void Outbox::MoveInBackground() {
  std::lock_guard lock(mutex_);
  if (!worker_.joinable()) worker_ = std::thread([this] { Work(); });
}

bool Outbox::Advance() {
  std::lock_guard lock(mutex_);
  return AdvanceLocked();
}

bool Outbox::AdvanceLocked() {
  bool moved = false;
  std::set<Address> unanswered, busy;  // by an earlier message
  for (auto it = messages_.begin(); it != messages_.end();) {
    Message& m = it->second;
    if (!m.accepted && !unanswered.contains(m.to)) {
      if (wire_.Front(m.to.peer, m.to.group, Channel::kAccepts)) {
        wire_.Take(m.to.peer, m.to.group, Channel::kAccepts);
        m.accepted = moved = true;
      } else {
        unanswered.insert(m.to);
      }
    }
    if (m.accepted && !busy.contains(m.to) && AdvanceContents(m, moved)) {
      it = messages_.erase(it);
      moved = true;
    } else {
      busy.insert(m.to);
      ++it;
    }
  }
  return moved;
}

bool Outbox::AdvanceContents(Message& m, bool& moved) {
  if (m.small) return true;
  if (!m.flow) {
    m.flow.emplace(wire_, m.to.peer, m.to.tag, m.contents, 0, m.contents.bytes());
  }
  moved |= m.flow->Advance();
  return m.flow->done();
}

bool Outbox::IsDone(int64_t message) {
  std::lock_guard lock(mutex_);
  return !messages_.contains(message);
}

bool Outbox::IsAccepted(int64_t message) {
  std::lock_guard lock(mutex_);
  auto it = messages_.find(message);
  return it == messages_.end() || it->second.accepted;
}

void Outbox::Forget(int64_t message) {
  std::lock_guard lock(mutex_);
  messages_.erase(message);
}

void Outbox::Work() {
  Patience patience(true);
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stop_ || !messages_.empty(); });
    if (stop_) return;
    bool moved = false;
    try {
      if (attended_ == 0) {
        moved = AdvanceLocked();
        lock.unlock();
        wire_.Progress();
      }
    } catch (const WireError& error) {
      if (lock.owns_lock()) lock.unlock();
      return on_error_(error.peer(), ReasonOf(error.what()));
    } catch (const std::exception& error) {
      if (lock.owns_lock()) lock.unlock();
      return on_error_(kNobody, ReasonOf(error.what()));
    }
    if (lock.owns_lock()) lock.unlock();
    if (moved) {
      patience.Reset();
    } else {
      patience.Rest();
    }
    lock.lock();
  }
}

}  // namespace shardc::mpi
