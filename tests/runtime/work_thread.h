// A thread that does what it is given, in order: the GPU of a FakeDevice whose work waits for other
// devices.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace shardc::testing {

class WorkThread {
 public:
  WorkThread() : thread_([this] { Loop(); }) {}
  // What has not begun is dropped.
  ~WorkThread() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void Give(std::function<void()> work) {
    {
      std::lock_guard lock(mutex_);
      work_.push_back(std::move(work));
      ++left_;
    }
    changed_.notify_all();
  }
  // Throws what a work threw: from then on nothing is done any more.
  bool Idle() {
    std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    return left_ == 0;
  }
  // As Idle, after all is done.
  void Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return left_ == 0 || failure_; });
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void Loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stop_ || !work_.empty(); });
      if (stop_) return;
      std::function<void()> work = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      std::exception_ptr failure;
      try {
        work();
      } catch (...) {
        failure = std::current_exception();
      }
      work = nullptr;  // what it holds goes before it counts as done
      lock.lock();
      --left_;
      if (failure) failure_ = failure;
      if (failure_) work_.clear();
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  int64_t left_ = 0;  // given and not done
  bool stop_ = false;
  std::exception_ptr failure_;
  std::thread thread_;  // last: it uses the others
};

}  // namespace shardc::testing
