#include "tools/interrupt.h"

#include <unistd.h>

namespace shardc {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM};

volatile std::sig_atomic_t noted = 0;

}  // namespace

Interrupt::Interrupt() {
  noted = 0;
  struct sigaction note {};
  note.sa_handler = [](int signal) { noted = signal; };
  note.sa_flags = static_cast<int>(SA_RESTART | SA_RESETHAND);
  for (int i = 0; i < 2; ++i) {
    sigaction(kSignals[i], nullptr, &before_[i]);
    if (before_[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &note, nullptr);
  }
}

Interrupt::~Interrupt() {
  for (int i = 0; i < 2; ++i) sigaction(kSignals[i], &before_[i], nullptr);
}

int Interrupt::Noted() const { return noted; }

void Interrupt::Check() const {
  if (noted != 0) throw Interrupted{noted};
}

void EndBySignal(int signal) {
  std::signal(signal, SIG_DFL);
  std::raise(signal);
  _exit(128 + signal);
}

}  // namespace shardc
