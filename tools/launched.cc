#include "tools/launched.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "ir/checksum.h"
#include "ir/diagnostic.h"
#include "ir/no_memory.h"
#include "runtime/backend.h"
#include "runtime/process_runner.h"
#include "runtime/processes.h"
#include "tools/interrupt.h"
#include "tools/no_memory_exit.h"

namespace shardc {
namespace {

// For those that failed at the same time, to settle who speaks. On a busy machine it takes a while.
constexpr std::chrono::seconds kPatience{5};

// Another process says what happened; this one only ends.
struct Silenced {
  ExitCode code;
};

// Runs `work`, which does not communicate, in all processes; when it fails in some, the first of
// them throws and the others are silenced.
template <typename Work>
void Together(Processes& processes, const Work& work) {
  std::exception_ptr error;
  int32_t mine = 0;
  try {
    work();
  } catch (const Diagnostic& d) {
    error = std::current_exception();
    mine = static_cast<int32_t>(d.code());
  } catch (const std::exception& e) {
    error = std::current_exception();
    mine = static_cast<int32_t>(IsNoMemory(e) ? ExitCode::kMemory : ExitCode::kInternal);
  }
  std::vector<int32_t> codes(static_cast<size_t>(processes.size()));
  // All leave this world in peace, also to fail: no answer may be lost.
  processes.MakeWorld(processes.size())->AllGather(&mine, codes.data(), 1, DType::kI32);
  auto first = std::find_if(codes.begin(), codes.end(), [](int32_t c) { return c != 0; });
  if (first == codes.end()) return;
  if (first - codes.begin() == processes.rank()) std::rethrow_exception(error);
  throw Silenced{static_cast<ExitCode>(*first)};
}

// Whether this process is the one to speak of the failure: the one at fault (of several the first),
// or, if that is gone, the first of the others.
bool Speaks(const std::optional<WorldFailure>& failure, int rank) {
  if (!failure) return true;
  if (!failure->lost || failure->rank == rank) return failure->rank == rank && !failure->shared;
  return rank == (failure->rank == 0 ? 1 : 0);
}

void Say(const char* message) { std::fprintf(stderr, "shardc: error %s\n", message); }

[[noreturn]] void End(Processes& processes, ExitCode code, bool quiet, int signal) {
  const bool whole = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (!whole && code == ExitCode::kOk && signal == 0) {
    Say("E5003: standard output: cannot be written in full");
    code = ExitCode::kIo;
  }
  std::fflush(stderr);
  processes.Finish(code != ExitCode::kOk || signal != 0);
  // The launcher's exit code is that of the process that it sees end first: let it be the one at
  // fault. Nothing tells this process what the launcher has seen, so that it can but wait.
  if (quiet) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  if (signal != 0) EndBySignal(signal);
  _exit(static_cast<int>(code));
}

void CheckSize(const Plan& plan, int processes) {
  const int64_t ranks = plan.manifest.mesh.num_ranks();
  if (processes == ranks) return;
  throw Diagnostic("E4310", ExitCode::kUsage, plan.folder,
                   StrCat("the plan's mesh ", plan.manifest.mesh.ToString(), " has ", ranks,
                          " ranks, and ", processes, " processes were started"),
                   StrCat("start it with mpirun -n ", ranks));
}

// What all processes must have alike, of which each sees its own.
struct Shared {
  std::string where, seen, otherwise, fix;
};

// Each process has options of its own, where mpirun starts several commands, and reads the files
// itself: its machine may have others under their names.
void CheckShared(Processes& processes, const Plan& plan, const SessionOptions& options,
                 const LaunchedStates& states) {
  const std::string file =
      "finds something else there than process 0: their machines have different files";
  const std::string copy = "copy it to all machines, or give a place that they share";
  const std::string alike = "start all processes with the same options";
  const std::vector<Shared> all = {
      {"--backend", options.backend, "has another than process 0", alike},
      {"--load", states.from.empty() ? "no" : "yes",
       "is given it and process 0 is not, or the reverse", alike},
      {plan.folder, ChecksumOfFiles(plan), file, copy},
      {states.from, states.gist, file, copy}};
  for (const Shared& s : all) {
    const std::string sum = ChecksumOf(s.seen);
    std::string sums(sum.size() * static_cast<size_t>(processes.size()), '\0');
    processes.MakeWorld(processes.size())
        ->AllGather(sum.data(), sums.data(), static_cast<int64_t>(sum.size()), DType::kBool);
    Together(processes, [&] {
      if (sums.starts_with(sum)) return;
      throw Diagnostic("E4313", ExitCode::kUsage, s.where,
                       StrCat("process ", processes.rank(), " ", s.otherwise), s.fix);
    });
  }
}

// Returns the signal to end by, or 0.
int Work(Processes& processes, const std::string& folder, SessionOptions options,
         const std::function<LaunchedStates(const Plan&)>& states,
         const std::function<int(const Plan&, const SessionOptions&)>& lead) {
  Plan plan;
  LaunchedStates read;
  Together(processes, [&] {
    plan = LoadPlan(folder);
    CheckSize(plan, processes.size());
    read = states(plan);
    if (options.backend == "cuda") CountCudaGpus();  // whether there is one
  });
  CheckShared(processes, plan, options, read);
  options.processes = &processes;
  if (processes.rank() == 0) return lead(plan, options);
  NameExitOfLibraries();
  if (options.noted) {
    static const Interrupt kept;  // to the end of the process: a signal may come late
    processes.EndWhenAsked();
  }
  return ServeProcessRunner({plan.programs, options, read.reader});
}

std::unique_ptr<Processes> Join() {
  try {
    return JoinMpi();
  } catch (const Diagnostic& d) {
    // All processes fail alike, but for want of memory, and cannot ask each other who is the first.
    if (LaunchedRank() == 0 || d.code() == ExitCode::kMemory) Say(d.what());
    std::fflush(stderr);
    _exit(static_cast<int>(d.code()));
  }
}

}  // namespace

void RunLaunched(const std::string& folder, const SessionOptions& options,
                 const std::function<LaunchedStates(const Plan&)>& states,
                 const std::function<int(const Plan&, const SessionOptions&)>& lead) {
  Processes& processes = *Join().release();  // never destroyed: the process ends here
  processes.ExitWhenStuck(1.5, [&] {
    const auto failure = processes.failure(kPatience);
    if (failure && failure->lost && Speaks(failure, processes.rank())) {
      Say(Diagnostic("E4311", ExitCode::kPeerLost, StrCat("rank ", failure->rank), failure->reason)
              .what());
    }
    std::fflush(stderr);
    _exit(static_cast<int>(ExitCode::kPeerLost));
  });
  ExitCode code = ExitCode::kOk;
  bool quiet = false;
  int signal = 0;
  auto failed = [&](ExitCode c, const char* what) {
    code = c;
    quiet = !Speaks(processes.failure(kPatience), processes.rank());
    if (!quiet) Say(what);
  };
  try {
    signal = Work(processes, folder, options, states, lead);
    quiet = signal != 0 && processes.rank() != 0;  // the first has something to say
  } catch (const Silenced& s) {
    code = s.code;
    quiet = true;
  } catch (const Diagnostic& d) {
    failed(d.code(), d.what());
  } catch (const Aborted& e) {
    failed(ExitCode::kPeerLost, e.what());
  } catch (const std::exception& e) {
    if (IsNoMemory(e)) {
      failed(ExitCode::kMemory, kNoMemory);
    } else {
      failed(ExitCode::kInternal, e.what());
    }
  }
  End(processes, code, quiet, signal);
}

}  // namespace shardc
