// The parts of MpiCommunicator that are templates.
#pragma once

#include "runtime/abort.h"
#include "runtime/mpi/mpi_communicator.h"
#include "runtime/mpi/patience.h"

namespace shardc::mpi {

template <typename Body>
void MpiCommunicator::Guarded(const Body& body) {
  try {
    body();
  } catch (const WireError& error) {
    ForgetBegun();
    world_->Fail({{error.peer(), error.what(), true}, -1, world_->rank()});
    world_->ThrowFailure(id_, members_);
  } catch (const std::exception& error) {
    ForgetBegun();
    AbortFor(*this, error);  // changes nothing if the world has failed already
    throw;
  }
}

template <typename Done, typename Advance>
void MpiCommunicator::Wait(const Done& done, const Advance& advance) {
  Patience patience(world_->wire().crowded());
  const Outbox::Attendance attendance(world_->outbox());
  while (!done()) {
    if (world_->failed()) world_->ThrowFailure(id_, members_);
    bool moved = advance();
    // A peer may be waiting for a message that was only begun.
    moved |= world_->outbox().Advance();
    if (moved) {
      patience.Reset();
    } else {
      patience.Rest();
    }
    world_->wire().Progress();
  }
}

}  // namespace shardc::mpi
