// Messages that this process sends to others of its world. An envelope announces each, carrying it
// if it is small; a large one follows in chunks when the receiver has accepted it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "runtime/communicator.h"
#include "runtime/mpi/flow.h"
#include "runtime/mpi/strip.h"
#include "runtime/mpi/wire.h"

namespace shardc::mpi {

// Messages of one address keep their order. All functions may be called from any thread.
class Outbox {
 public:
  struct Address {
    int peer;  // of the world
    int group;
    int tag;  // of large contents
    auto operator<=>(const Address&) const = default;
  };

  // Told what goes wrong in a thread that nobody waits for, where messages then stay as they are:
  // the peer that it is about, or kNobody.
  static constexpr int kNobody = -1;
  using OnError = std::function<void(int peer, const std::string& what)>;
  Outbox(Wire& wire, OnError on_error);
  ~Outbox() { Stop(); }
  // Nothing moves by itself any more.
  void Stop();

  // Returns the message's number; its buffer is read until it is done or forgotten.
  int64_t Post(const Address& to, const Transfer& send);
  // From now on messages move on by themselves, not only when Advance is called.
  void MoveInBackground();

  // Moves all on as far as they go now; whether any moved.
  bool Advance();
  bool IsDone(int64_t message);
  bool IsAccepted(int64_t message);
  void Forget(int64_t message);

  // While one is there, somebody calls Advance again and again.
  class Attendance {
   public:
    explicit Attendance(Outbox& outbox) : outbox_(outbox) { ++outbox_.attended_; }
    ~Attendance() { --outbox_.attended_; }
    Attendance(const Attendance&) = delete;
    Attendance& operator=(const Attendance&) = delete;

   private:
    Outbox& outbox_;
  };

 private:
  struct Message {
    Address to;
    bool small;
    Strip contents;
    bool accepted = false;
    std::optional<SendFlow> flow;
  };

  bool AdvanceLocked();
  // Returns whether it is all gone.
  bool AdvanceContents(Message& message, bool& moved);
  void Work();

  Wire& wire_;
  const OnError on_error_;
  std::mutex mutex_;
  std::map<int64_t, Message> messages_;  // under way, in the order of Post
  int64_t posted_ = 0;
  std::atomic<int> attended_{0};
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread worker_;
};

}  // namespace shardc::mpi
