// Ctrl-C for work that has something to save.
#pragma once

#include <csignal>
#include <cstddef>
#include <semaphore>
#include <thread>
#include <vector>

namespace shardc {

// While one is there signals come to a thread that does nothing else, so that their handlers run
// there: oneDNN's products have the stack pointer in the heap (oneDNN issue 4845), which the frame
// of a handler would overwrite. To be made before the threads that compute, which block what the
// thread that starts them blocks. What a thread does itself (faults, SIGPIPE) stays with it. What
// an Interrupt notes also wakes the thread that made this from a write that waits, by a signal
// whose handler has a stack of its own.
class SignalsApart {
 public:
  SignalsApart();
  ~SignalsApart();
  SignalsApart(const SignalsApart&) = delete;
  SignalsApart& operator=(const SignalsApart&) = delete;

 private:
  sigset_t before_ = {};
  stack_t stack_before_ = {};
  std::vector<std::byte> stack_;
  std::binary_semaphore done_{0};
  std::thread thread_;
};

struct Interrupted {
  int signal;
};

// While one is there, the first SIGINT or SIGTERM is only noted (what handled it before hears of it
// too), and a second of the same ends the process; SIGPIPE is ignored, so that a reader that has
// gone is an error of the output. Signals that were ignored stay so. At most one at a time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // The signal that came while the last one was there; 0: none.
  static int Noted();
  // Throws Interrupted if one came.
  void Check() const;
};

// Ends the process as the signal would have.
[[noreturn]] void EndBySignal(int signal);

}  // namespace shardc
