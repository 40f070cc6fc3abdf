// Ctrl-C for work that has something to save.
#pragma once

#include <csignal>

namespace shardc {

struct Interrupted {
  int signal;
};

// While one is there, the first SIGINT or SIGTERM is only noted, and a second of the same ends the
// process; SIGPIPE is ignored, so that a reader that has gone is an error of the output. Signals
// that were ignored stay so. At most one at a time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // The signal that came; 0: none.
  int Noted() const;
  // Throws Interrupted if one came.
  void Check() const;

 private:
  struct sigaction before_[3];
};

// Ends the process as the signal would have.
[[noreturn]] void EndBySignal(int signal);

}  // namespace shardc
