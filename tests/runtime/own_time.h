// Time that counts for this process alone: bounds that hold on a busy machine too.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace shardc {

// Seconds since it was made, in ticks that a thread of its own makes: while the process is stopped,
// or gets no processor, there are none.
class OwnTime {
 public:
  // `at_end` is called by that thread, once, when `limit` seconds have passed.
  explicit OwnTime(double limit = 0, std::function<void()> at_end = nullptr)
      : limit_(limit), at_end_(std::move(at_end)), thread_([this] { Count(); }) {}
  ~OwnTime() {
    {
      std::lock_guard lock(mutex_);
      done_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  OwnTime(const OwnTime&) = delete;
  OwnTime& operator=(const OwnTime&) = delete;

  double seconds() const {
    std::lock_guard lock(mutex_);
    return seconds_;
  }

 private:
  void Count() {
    constexpr std::chrono::duration<double> kTick(0.01);
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, kTick, [this] { return done_; })) {
      const bool early = seconds_ < limit_;
      seconds_ += kTick.count();
      if (early && seconds_ >= limit_ && at_end_) at_end_();
    }
  }

  const double limit_;
  const std::function<void()> at_end_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  double seconds_ = 0;
  bool done_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace shardc
