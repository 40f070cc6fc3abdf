#include "runtime/rank_team.h"

#include <system_error>

#include "ir/diagnostic.h"
#include "runtime/communicator.h"

namespace shardc {

RankTeam::RankTeam(int64_t n) {
  threads_.reserve(static_cast<size_t>(n));
  try {
    for (int64_t r = 0; r < n; ++r) threads_.emplace_back([this, r] { Loop(r); });
  } catch (const std::system_error& e) {
    const size_t started = threads_.size();
    Stop();
    throw Diagnostic("E4007", ExitCode::kMemory, StrCat("rank ", started),
                     StrCat("cannot start its thread: ", e.code().message()),
                     "run fewer ranks on this machine");
  } catch (...) {
    Stop();
    throw;
  }
}

RankTeam::~RankTeam() { Stop(); }

void RankTeam::Stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void RankTeam::Run(const std::function<void(int64_t)>& task) {
  std::unique_lock lock(mutex_);
  task_ = &task;
  running_ = threads_.size();
  ++generation_;
  wake_.notify_all();
  done_.wait(lock, [&] { return running_ == 0; });
}

void RankTeam::RunAll(const std::function<void(int64_t)>& task) {
  std::vector<std::exception_ptr> failures(threads_.size());
  Run([&](int64_t r) {
    try {
      task(r);
    } catch (const Aborted&) {
      failures[r] = std::current_exception();
    } catch (...) {
      failures[r] = std::current_exception();
      std::lock_guard lock(first_mutex_);
      if (!first_) first_ = failures[r];
    }
  });
  if (first_) std::rethrow_exception(first_);
  for (const std::exception_ptr& f : failures) {
    if (f) std::rethrow_exception(f);
  }
}

void RankTeam::Loop(int64_t rank) {
  int64_t seen = 0;
  for (;;) {
    const std::function<void(int64_t)>* task;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
      if (stop_) return;
      seen = generation_;
      task = task_;
    }
    (*task)(rank);
    std::lock_guard lock(mutex_);
    if (--running_ == 0) done_.notify_one();
  }
}

}  // namespace shardc
