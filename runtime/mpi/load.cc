// Loads the plugin that uses MPI, so that this program starts on machines without it.
#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "ir/diagnostic.h"
#include "ir/no_memory.h"
#include "runtime/mpi/join.h"
#include "runtime/processes.h"

namespace shardc {
namespace {

constexpr const char* kLibrary = "libshardc_mpi.so";

std::vector<std::string> Candidates() {
  if (const char* given = std::getenv("SHARDC_MPI_LIBRARY")) return {given};
  std::error_code error;
  auto folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  return {folder / kLibrary, folder / "../lib" / kLibrary, folder / "../runtime" / kLibrary};
}

// MPI ends a process, with a code of its own, when it gets no memory to begin with.
void CheckRoom() {
  constexpr size_t kBytes = size_t{256} << 20;
  void* room = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) throw NoMemory("mpirun");
  munmap(room, kBytes);
}

}  // namespace

std::unique_ptr<Processes> JoinMpi() {
  CheckRoom();
  std::string tried;
  for (const std::string& path : Candidates()) {
    // Global, because MPI loads parts of its own that expect to see it.
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
      tried += StrCat(tried.empty() ? "" : "; ", dlerror());
      continue;
    }
    auto join = reinterpret_cast<decltype(&shardc_join_mpi)>(dlsym(library, "shardc_join_mpi"));
    if (join) return std::unique_ptr<Processes>(join());
    tried += StrCat(tried.empty() ? "" : "; ", path, " is not shardc's plugin");
  }
  throw Diagnostic("E4303", ExitCode::kIo, "mpirun", "MPI cannot be loaded: " + tried,
                   "install openmpi-bin and keep libshardc_mpi.so beside shardc, or run without "
                   "mpirun");
}

}  // namespace shardc
