// The parts of MpiCommunicator that are templates.
#pragma once

#include <sched.h>
#include <time.h>

#include "runtime/mpi/mpi_communicator.h"

namespace shardc::mpi {

// Gives way to others, more so the longer nothing moves. Where processes are more than processors
// it sleeps at once: who sleeps is woken before those that are busy.
class Patience {
 public:
  explicit Patience(bool crowded) : spins_(crowded ? 16 : 2000), yields_(crowded ? 16 : 4000) {}
  void Rest() {
    ++idle_;
    if (idle_ < spins_) return;
    if (idle_ < yields_) {
      sched_yield();
      return;
    }
    const timespec pause{0, 20'000};
    nanosleep(&pause, nullptr);
  }
  void Reset() { idle_ = 0; }

 private:
  const int64_t spins_, yields_;
  int64_t idle_ = 0;
};

template <typename Body>
void MpiCommunicator::Guarded(const Body& body) {
  try {
    body();
  } catch (const WireError& error) {
    world_->Fail({{error.peer(), error.what(), true}, -1, world_->rank()});
    world_->ThrowFailure(id_, members_);
  } catch (const std::exception& error) {
    Abort(error.what());  // changes nothing if the world has failed already
    throw;
  }
}

template <typename Done, typename Advance>
void MpiCommunicator::Wait(const Done& done, const Advance& advance) {
  Patience patience(world_->wire().crowded());
  while (!done()) {
    if (world_->failed()) world_->ThrowFailure(id_, members_);
    if (advance()) {
      patience.Reset();
    } else {
      patience.Rest();
    }
    world_->wire().Progress();
  }
}

}  // namespace shardc::mpi
