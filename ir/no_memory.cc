#include "ir/no_memory.h"

#include <new>
#include <stdexcept>
#include <system_error>

namespace shardc {

bool IsNoMemory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error)) return true;
  if (dynamic_cast<const std::length_error*>(&error)) return true;
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  return system && (system->code() == std::errc::not_enough_memory ||
                    system->code() == std::errc::resource_unavailable_try_again);
}

Diagnostic NoMemory(const std::string& where) {
  return Diagnostic("E6201", ExitCode::kMemory, where, "out of memory",
                    "run fewer ranks on this machine, or a smaller batch");
}

}  // namespace shardc
