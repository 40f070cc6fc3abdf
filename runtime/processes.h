// Ranks as processes: this process is one rank of several that a launcher (mpirun) started.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runtime/communicator.h"

namespace shardc {

// Why a world ended.
struct WorldFailure {
  int rank = 0;  // at fault, as a rank of the world
  std::string reason;
  bool lost = false;  // the process is gone and could not say why
  // This process failed, and so did a lower rank by itself at the same time.
  bool shared = false;
};

class Processes {
 public:
  virtual ~Processes() = default;
  Processes() = default;
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Among the processes of this machine.
  virtual int local_rank() const = 0;
  // A new world of the processes 0 .. n-1. All processes call it, with the same n, while no rank of
  // an earlier world still communicates; those that are not in the world get null. Throws
  // Diagnostic E4312 when two processes cannot connect.
  virtual std::unique_ptr<Communicator> MakeWorld(int n) = 0;
  // What ended the newest world, as far as this process knows. Of several that have failed by
  // themselves all but the lowest get it with `shared`, for which they wait until the lower ranks
  // have heard of their failure, but no longer than `patience`.
  virtual std::optional<WorldFailure> failure(std::chrono::seconds patience) const = 0;
  // From now on, once the newest world has failed or the launcher asks this process to end, `exit`
  // is called from another thread if Finish is not reached within `seconds`: a rank deep in a
  // computation must not outlive the others. `exit` must not return.
  virtual void ExitWhenStuck(double seconds, std::function<void()> exit) = 0;
  // From now on that the launcher asks this process to end is no failure: the caller has heard it
  // too, and all end together.
  virtual void EndWhenAsked() = 0;
  // Ends the use of the launcher's library; no world may be left. After a failure it does not wait
  // for processes that do not come; then the process must end with _exit.
  virtual void Finish(bool failed) noexcept = 0;
};

// Whether a launcher that speaks MPI started this process; reads the environment only.
bool StartedByMpi();
// This process's rank by the environment, before it has joined the others; 0 where nothing says.
int LaunchedRank();
// At most once per process. Throws Diagnostic E4303 (exit 74) when this build or this machine has
// no MPI.
std::unique_ptr<Processes> JoinMpi();

}  // namespace shardc
