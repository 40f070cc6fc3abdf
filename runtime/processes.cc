#include "runtime/processes.h"

#include <cstdlib>

namespace shardc {

bool StartedByMpi() {
  // What Open MPI sets, and what launchers of the PMI family set.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_NAMESPACE"}) {
    if (std::getenv(name)) return true;
  }
  return false;
}

}  // namespace shardc
