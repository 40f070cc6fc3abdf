#include "tools/interrupt.h"

#include <unistd.h>

#include <iterator>

namespace shardc {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGPIPE};

volatile std::sig_atomic_t noted = 0;

struct sigaction before[std::size(kSignals)];

void Note(int signal) {
  noted = signal;
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    if (kSignals[i] == signal && before[i].sa_handler != SIG_DFL) before[i].sa_handler(signal);
  }
}

}  // namespace

Interrupt::Interrupt() {
  noted = 0;
  struct sigaction note {};
  note.sa_handler = Note;
  // Not to wait for a reader of the output that has stopped: mpirun, once it ends its processes.
  note.sa_flags = static_cast<int>(SA_RESETHAND);
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    sigaction(kSignals[i], nullptr, &before[i]);
    if (before[i].sa_handler == SIG_IGN) continue;
    sigaction(kSignals[i], kSignals[i] == SIGPIPE ? &ignore : &note, nullptr);
  }
}

Interrupt::~Interrupt() {
  for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &before[i], nullptr);
}

int Interrupt::Noted() { return noted; }

void Interrupt::Check() const {
  if (noted != 0) throw Interrupted{noted};
}

void EndBySignal(int signal) {
  std::signal(signal, SIG_DFL);
  std::raise(signal);
  _exit(128 + signal);
}

}  // namespace shardc
