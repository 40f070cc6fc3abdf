// Stands in for runtime/mpi where shardc is built without MPI.
#include "ir/diagnostic.h"
#include "runtime/processes.h"

namespace shardc {

std::unique_ptr<Processes> JoinMpi() {
  throw Diagnostic("E4303", ExitCode::kIo, "mpirun", "this shardc was built without MPI",
                   "install libopenmpi-dev and build again, or run without mpirun");
}

}  // namespace shardc
