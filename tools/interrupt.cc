#include "tools/interrupt.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <iterator>
#include <system_error>

namespace shardc {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGPIPE};

constexpr int kWake = SIGURG;  // does nothing where it is not asked for

std::atomic<int> noted = 0;
std::atomic<bool> apart = false;
static_assert(std::atomic<int>::is_always_lock_free);  // as signals want it
pthread_t woken;                                       // the thread that made SignalsApart

struct sigaction before[std::size(kSignals)];

void Note(int signal) {
  noted = signal;
  // It may wait for a reader of the output that has stopped.
  if (apart) pthread_kill(woken, kWake);
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    if (kSignals[i] == signal && before[i].sa_handler != SIG_DFL) before[i].sa_handler(signal);
  }
}

}  // namespace

SignalsApart::SignalsApart() : stack_(static_cast<size_t>(sysconf(_SC_SIGSTKSZ))) {
  try {
    thread_ = std::thread([this] { done_.acquire(); });
  } catch (const std::system_error&) {
    return;  // ranks get no threads either, and say so
  }
  const stack_t own = {.ss_sp = stack_.data(), .ss_flags = 0, .ss_size = stack_.size()};
  sigaltstack(&own, &stack_before_);
  struct sigaction wake {};
  wake.sa_handler = [](int) {};
  wake.sa_flags = SA_ONSTACK;
  sigaction(kWake, &wake, nullptr);
  woken = pthread_self();
  apart = true;
  sigset_t all;
  sigfillset(&all);
  for (int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGPIPE, kWake}) {
    sigdelset(&all, own);
  }
  pthread_sigmask(SIG_BLOCK, &all, &before_);
}

SignalsApart::~SignalsApart() {
  if (!thread_.joinable()) return;
  apart = false;
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  done_.release();
  thread_.join();
  std::signal(kWake, SIG_DFL);
  sigaltstack(&stack_before_, nullptr);
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
