// Runs a test body on one thread per rank of a world.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/communicator.h"
#include "tests/runtime/own_time.h"

namespace shardc {

// By rank; null for a rank that lives in another process.
using World = std::vector<std::unique_ptr<Communicator>>;

// Set where ranks live in several processes: gives every process the errors of all ranks.
inline std::function<void(std::vector<std::exception_ptr>&)> swap_errors;

// Ends the process, with a message, if it lives too long: a deadlock must not hang the tests.
class Watchdog {
 public:
  explicit Watchdog(int seconds)
      : time_(seconds, [seconds] {
          std::fprintf(stderr, "deadlock: ranks did not finish in %d s\n", seconds);
          std::abort();
        }) {}

 private:
  OwnTime time_;
};

// Runs `body(communicator)` on one thread per rank of this process, which owns it; returns what
// each rank of the world threw, if anything. A rank that throws has its communicator destroyed by
// the unwinding.
template <typename Body>
std::vector<std::exception_ptr> RunRanks(World world, const Body& body, int seconds = 120) {
  Watchdog watchdog(seconds);
  std::vector<std::exception_ptr> errors(world.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < world.size(); ++r) {
    if (!world[r]) continue;
    threads.emplace_back([&, r, mine = std::move(world[r])]() mutable {
      try {
        const std::unique_ptr<Communicator> communicator = std::move(mine);
        body(*communicator);
      } catch (...) {
        errors[r] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (swap_errors) swap_errors(errors);
  return errors;
}

inline std::string ErrorText(const std::exception_ptr& error) {
  if (!error) return "no error";
  try {
    std::rethrow_exception(error);
  } catch (const CallMismatch& e) {
    return std::string("CallMismatch: ") + e.what();
  } catch (const Aborted& e) {
    return std::string("Aborted: ") + e.what();
  } catch (const std::exception& e) {
    return e.what();
  }
}

template <typename Body>
void RunRanksOk(World world, const Body& body, int seconds = 120) {
  const auto errors = RunRanks(std::move(world), body, seconds);
  for (size_t r = 0; r < errors.size(); ++r) {
    EXPECT_EQ(ErrorText(errors[r]), "no error") << "rank " << r;
  }
}

}  // namespace shardc
