// MakeCudaRunner of a build with CUDA: the backend is a plugin, so that the binary starts where
// CUDA is not.
#include "runtime/cuda_loader/load.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include "ir/diagnostic.h"
#include "runtime/backend.h"
#include "runtime/cuda_loader/libraries.h"
#include "runtime/cuda_loader/plugin.h"

namespace shardc {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> Environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value && *value ? std::optional<std::string>(value) : std::nullopt;
}

std::string BinaryFolder() {
  std::error_code error;
  fs::path self = fs::read_symlink("/proc/self/exe", error);
  return error ? "." : self.parent_path().string();
}

[[noreturn]] void Missing(std::string why) {
  for (char& c : why) c = c == '\n' ? ' ' : c;
  throw Diagnostic("E4302", ExitCode::kIo, "--backend cuda", std::move(why),
                   StrCat("set SHARDC_CUDA_LIBS to the folders of CUDA ", SHARDC_CUDA_MAJOR,
                          "'s libraries, or use --backend cpu"));
}

// Once loaded, a library of this name serves whoever needs it. One that is found nowhere is left to
// the linker's own search, or is missed when it is needed.
void LoadLibrary(const std::string& name, const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) {
    std::string path = folder + "/" + name;
    std::error_code error;
    if (fs::exists(path, error) && dlopen(path.c_str(), RTLD_LAZY | RTLD_GLOBAL)) return;
  }
  dlopen(name.c_str(), RTLD_LAZY | RTLD_GLOBAL);
}

void* LoadPlugin() {
  std::string binary = BinaryFolder();
  const std::vector<std::string> folders = CudaLibraryFolders(binary, Environment);
  for (const std::string& name : CudaLibraries(SHARDC_CUDA_MAJOR)) LoadLibrary(name, folders);
  std::vector<std::string> paths = CudaPluginPaths(binary, Environment);
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::exists(path, error)) continue;
    void* plugin = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!plugin) Missing(dlerror());
    auto* version = reinterpret_cast<CudaPluginVersion*>(dlsym(plugin, "shardc_cuda_version"));
    if (!version || version() != kCudaPluginVersion) Missing(path + " is of another build");
    return plugin;
  }
  Missing("libshardc_cuda.so is not at " + paths.front());
}

}  // namespace

void* FindInCudaPlugin(const char* name) {
  // Never unloaded: its types and CUDA's threads live on.
  static void* plugin = LoadPlugin();
  void* found = dlsym(plugin, name);
  if (!found) Missing(std::string("libshardc_cuda.so has no ") + name);
  return found;
}

std::unique_ptr<StepRunner> MakeCudaRunner(const RunnerRequest& request) {
  auto* make = reinterpret_cast<CudaPluginMakeRunner*>(FindInCudaPlugin("shardc_cuda_make_runner"));
  return std::unique_ptr<StepRunner>(make(&request));
}

int CountCudaGpus() {
  return reinterpret_cast<CudaPluginCountGpus*>(FindInCudaPlugin("shardc_cuda_count_gpus"))();
}

std::unique_ptr<StepRunner> MakeCudaRank(const RunnerRequest& request, ProcessSeat seat) {
  auto* make = reinterpret_cast<CudaPluginMakeRank*>(FindInCudaPlugin("shardc_cuda_make_rank"));
  return std::unique_ptr<StepRunner>(make(&request, &seat));
}

}  // namespace shardc
