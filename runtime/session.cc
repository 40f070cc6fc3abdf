#include "runtime/session.h"

#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <set>
#include <thread>

#include "ir/diagnostic.h"
#include "ir/shard_copy.h"
#include "runtime/in_process/in_process.h"
#include "runtime/rank.h"

namespace shardc {
namespace {

int CoresOfThisProcess() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

// One thread per rank that lives as long as the session: kernels keep per-thread state (OpenMP
// teams).
class RankThreads {
 public:
  explicit RankThreads(int64_t n) {
    for (int64_t r = 0; r < n; ++r) {
      threads_.emplace_back([this, r] { Loop(r); });
    }
  }

  ~RankThreads() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

  // Runs task(rank) on every thread and waits for all.
  void Run(const std::function<void(int64_t)>& task) {
    std::unique_lock lock(mutex_);
    task_ = &task;
    running_ = threads_.size();
    ++generation_;
    wake_.notify_all();
    done_.wait(lock, [&] { return running_ == 0; });
  }

 private:
  void Loop(int64_t rank) {
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

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const std::function<void(int64_t)>* task_ = nullptr;
  size_t running_ = 0;
  int64_t generation_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

class Session::Impl {
 public:
  Impl(std::span<const Program> programs, const SessionOptions& options,
       const StateReader& read_state)
      : programs_(programs), options_(options), threads_(static_cast<int64_t>(programs.size())) {
    SHARDC_CHECK(!programs.empty() &&
                 programs[0].mesh.num_ranks() == static_cast<int64_t>(programs.size()));
    int total = options.threads > 0 ? options.threads : CoresOfThisProcess();
    int per_rank = std::max<int>(1, total / static_cast<int>(programs.size()));
    auto world = MakeInProcessWorld(static_cast<int>(programs.size()));
    ranks_.resize(programs.size());
    OnAllRanks([&](int64_t r) {
      // The world's end moves in first, so that a failing constructor makes the others leave.
      std::unique_ptr<Communicator> end = std::move(world[r]);
      Communicator* raw = end.get();
      try {
        ranks_[r] =
            std::make_unique<Rank>(programs_[r], options_, per_rank, std::move(end), read_state);
      } catch (const std::exception& e) {
        if (end) raw->Abort(e.what());
        throw;
      }
    });
  }

  ~Impl() {
    threads_.Run([&](int64_t r) { ranks_[r].reset(); });
  }

  void SetInput(const std::string& name, const HostTensor& value) {
    const NamedBuffer* input = Find(programs_[0].inputs, name);
    if (!input) {
      std::vector<std::string> names = Names(programs_[0].inputs);
      std::string list;
      for (const std::string& n : names) list += (list.empty() ? "" : ", ") + n;
      throw Diagnostic("E4001", ExitCode::kUsage, "--input " + name,
                       StrCat("the plan has no input '", name, "'"),
                       DidYouMean(name, names) + " inputs: " + list);
    }
    const TensorType& type = programs_[0].buffers[input->buffer].type;
    if (value.dtype() != type.dtype || value.shape() != type.shape) {
      throw Diagnostic("E4002", ExitCode::kUsage, "--input " + name,
                       StrCat("the plan wants ", DTypeName(type.dtype), ShapeToString(type.shape),
                              ", got ", DTypeName(value.dtype()), ShapeToString(value.shape())),
                       "convert the array, or compile with --bind for its shape");
    }
    for (size_t r = 0; r < programs_.size(); ++r) {
      const NamedBuffer* local = Find(programs_[r].inputs, name);
      GlobalToLocal(value.raw(), type, programs_[r].mesh, static_cast<int64_t>(r),
                    ranks_[r]->input(local->buffer));
    }
    set_.insert(name);
  }

  std::vector<std::string> MissingInputs() const {
    std::vector<std::string> missing;
    for (const NamedBuffer& i : programs_[0].inputs) {
      if (!set_.contains(i.name)) missing.push_back(i.name);
    }
    return missing;
  }

  void Step() {
    for (const std::string& name : MissingInputs()) {
      throw Diagnostic("E4001", ExitCode::kUsage, "run", StrCat("input '", name, "' is not given"),
                       "pass --input " + name + "=@file.npy, or --random-inputs SEED");
    }
    OnAllRanks([&](int64_t r) {
      try {
        ranks_[r]->Step();
      } catch (const Aborted&) {
        throw;
      } catch (const std::exception& e) {
        ranks_[r]->Abort(e.what());
        throw;
      }
    });
  }

  HostTensor Gather(const std::vector<NamedBuffer> Program::*list, const std::string& name) const {
    const NamedBuffer* entry = Find(programs_[0].*list, name);
    SHARDC_CHECK(entry, name);
    const TensorType& type = programs_[0].buffers[entry->buffer].type;
    HostTensor global(type.dtype, type.shape);
    for (size_t r = 0; r < programs_.size(); ++r) {
      const NamedBuffer* local = Find(programs_[r].*list, name);
      LocalToGlobal(ranks_[r]->buffer(local->buffer), programs_[r].buffers[local->buffer].type,
                    programs_[r].mesh, static_cast<int64_t>(r), global.raw());
    }
    return global;
  }

  static std::vector<std::string> Names(const std::vector<NamedBuffer>& list) {
    std::vector<std::string> names;
    for (const NamedBuffer& b : list) names.push_back(b.name);
    return names;
  }

  std::span<const Program> programs_;
  SessionOptions options_;
  std::vector<std::unique_ptr<Rank>> ranks_;

 private:
  static const NamedBuffer* Find(const std::vector<NamedBuffer>& list, const std::string& name) {
    auto it = std::find_if(list.begin(), list.end(), [&](auto& b) { return b.name == name; });
    return it == list.end() ? nullptr : &*it;
  }

  // Runs the task on all ranks; throws what the first failing rank threw, not what its failure did
  // to the others.
  void OnAllRanks(const std::function<void(int64_t)>& task) {
    std::vector<std::exception_ptr> failures(programs_.size());
    std::vector<bool> aborted(programs_.size());
    threads_.Run([&](int64_t r) {
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

  std::set<std::string> set_;
  std::mutex first_mutex_;
  std::exception_ptr first_;
  RankThreads threads_;
};

Session::Session(std::span<const Program> programs, const SessionOptions& options,
                 const StateReader& read_state)
    : impl_(std::make_unique<Impl>(programs, options, read_state)) {}

Session::~Session() = default;

void Session::SetInput(const std::string& name, const HostTensor& value) {
  impl_->SetInput(name, value);
}

std::vector<std::string> Session::MissingInputs() const { return impl_->MissingInputs(); }

void Session::Step() { impl_->Step(); }

HostTensor Session::Output(const std::string& name) const {
  return impl_->Gather(&Program::outputs, name);
}

std::vector<std::string> Session::OutputNames() const {
  return Impl::Names(impl_->programs_[0].outputs);
}

HostTensor Session::State(const std::string& name) const {
  return impl_->Gather(&Program::states, name);
}

std::vector<std::string> Session::StateNames() const {
  return Impl::Names(impl_->programs_[0].states);
}

int64_t Session::arena_bytes() const { return impl_->programs_[0].arena_bytes; }

int64_t Session::peak_bytes() const {
  int64_t n = 0;
  for (const auto& r : impl_->ranks_) n += r->held_bytes();
  return n;
}

int64_t Session::collective_bytes() const { return impl_->ranks_[0]->collective_bytes(); }

void Session::EnableTimes(bool on) { impl_->ranks_[0]->count_times = on; }

const std::map<std::string, OpTime>& Session::times() const { return impl_->ranks_[0]->times; }

}  // namespace shardc
