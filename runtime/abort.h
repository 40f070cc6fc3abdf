// How a rank that fails tells the others.
#pragma once

#include <exception>

namespace shardc {

// Anything that has an Abort like a Communicator's.
template <typename Aborts>
void AbortFor(Aborts& rank, const std::exception& error) noexcept {
  try {
    rank.Abort(error.what());
  } catch (const std::exception&) {
    rank.Abort("out of memory");  // short enough to need none
  }
}

}  // namespace shardc
