#include "tools/no_memory_exit.h"

#include <execinfo.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>

#include "ir/no_memory.h"

namespace shardc {
namespace {

[[noreturn]] void EndWithoutMemory() {
  std::fprintf(stderr, "shardc: error %s\n", kNoMemory);
  _exit(static_cast<int>(ExitCode::kMemory));
}

std::terminate_handler before = nullptr;

void Terminate() {
  try {
    if (std::current_exception()) throw;
  } catch (const std::exception& e) {
    if (IsNoMemory(e)) EndWithoutMemory();
  } catch (...) {
  }
  before();
}

}  // namespace

void LoadUnwinder() {
  void* frame = nullptr;
  if (backtrace(&frame, 1) == 0) throw std::bad_alloc();
}

void NameTerminationWithoutMemory() { before = std::set_terminate(Terminate); }

void NameExitOfLibraries() {
  // No exit code of the tool is 1.
  on_exit(
      [](int status, void*) {
        if (status == 1) EndWithoutMemory();
      },
      nullptr);
}

}  // namespace shardc
