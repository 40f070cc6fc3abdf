#include "tools/interrupt.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <iterator>
#include <system_error>

namespace shardc {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGPIPE};

std::atomic<int> noted = 0;
static_assert(std::atomic<int>::is_always_lock_free);  // as signals want it

struct sigaction before[std::size(kSignals)];

void Note(int signal) {
  noted = signal;
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    if (kSignals[i] == signal && before[i].sa_handler != SIG_DFL) before[i].sa_handler(signal);
  }
}

}  // namespace

SignalsApart::SignalsApart() {
  try {
    thread_ = std::thread([this] { done_.acquire(); });
  } catch (const std::system_error&) {
    return;  // ranks get no threads either, and say so
  }
  sigset_t all;
  sigfillset(&all);
  for (int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGPIPE}) {
    sigdelset(&all, own);
  }
  pthread_sigmask(SIG_BLOCK, &all, &before_);
}

SignalsApart::~SignalsApart() {
  if (!thread_.joinable()) return;
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  done_.release();
  thread_.join();
}

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
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  std::raise(signal);
  _exit(128 + signal);
}

}  // namespace shardc
