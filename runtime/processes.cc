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

int LaunchedRank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}) {
    if (const char* rank = std::getenv(name)) return std::atoi(rank);
  }
  return 0;
}

}  // namespace shardc
