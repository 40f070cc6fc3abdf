// The threads of a session whose ranks are in one process.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace shardc {

// One thread per rank that lives as long as the session: kernels keep per-thread state (OpenMP
// teams), CUDA the current device.
class RankTeam {
 public:
  // Throws Diagnostic E4007 when the system has no more threads.
  explicit RankTeam(int64_t n);
  ~RankTeam();

  // Runs task(rank) on every thread and waits for all. The task must not throw.
  void Run(const std::function<void(int64_t)>& task);
  // The same with tasks that may throw; throws what the first failing rank threw, not what its
  // failure did to the others (Aborted). From then on it always throws that.
  void RunAll(const std::function<void(int64_t)>& task);

 private:
  void Loop(int64_t rank);
  void Stop();

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const std::function<void(int64_t)>* task_ = nullptr;
  size_t running_ = 0;
  int64_t generation_ = 0;
  bool stop_ = false;
  std::mutex first_mutex_;
  std::exception_ptr first_;
  std::vector<std::thread> threads_;
};

}  // namespace shardc
