// Ctrl-C for work that has something to save.
#pragma once

#include <csignal>

namespace shardc {

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
