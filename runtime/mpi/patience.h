// How a process waits for messages: it polls, and gives way to others.
#pragma once

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <chrono>

namespace shardc::mpi {

// Rests between two polls, the longer the more time has passed since something moved. It never
// yields: whoever yields to a busy process waits for a whole time slice of it, whoever sleeps is
// woken at once. `crowded`: there are more processes than processors, so that to poll is to keep
// the others from what is waited for.
class Patience {
 public:
  explicit Patience(bool crowded) : busy_(crowded ? 0 : 100) {}

  void Rest() {
    using std::chrono::microseconds;
    if (++polls_ < kPolls) return;
    const auto now = std::chrono::steady_clock::now();
    if (polls_ == kPolls) since_ = now;
    const auto waited = std::chrono::duration_cast<microseconds>(now - since_);
    if (waited < busy_) return;
    Sleep(std::clamp(waited / 8, microseconds(20), microseconds(200)));
  }
  void Reset() { polls_ = 0; }

 private:
  static constexpr int kPolls = 16;

  static void Sleep(std::chrono::nanoseconds time) {
    // Without this every sleep is 50 us longer.
    static thread_local const int precise = prctl(PR_SET_TIMERSLACK, 1000);
    (void)precise;
    const timespec pause{0, static_cast<long>(time.count())};
    nanosleep(&pause, nullptr);
  }

  const std::chrono::microseconds busy_;
  int polls_ = 0;
  std::chrono::steady_clock::time_point since_;
};

}  // namespace shardc::mpi
