#include "runtime/cuda_loader/libraries.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

namespace shardc {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxLinks = 16;

std::vector<std::string> SplitAtColons(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ':');) {
    if (!part.empty()) out.push_back(part);
  }
  return out;
}

class Folders {
 public:
  void Add(const std::string& folder) {
    std::error_code error;
    if (!fs::is_directory(folder, error) || error) return;
    if (std::find(found_.begin(), found_.end(), folder) == found_.end()) found_.push_back(folder);
  }

  void AddMatches(const std::string& pattern) {
    glob_t matches = {};
    if (glob(pattern.c_str(), 0, nullptr, &matches) == 0) {
      for (size_t i = 0; i < matches.gl_pathc; ++i) Add(matches.gl_pathv[i]);
    }
    globfree(&matches);
  }

  void AddToolkit(const std::string& root) {
    for (const char* lib : {"/lib64", "/lib"}) Add(root + lib);
    AddMatches(root + "/targets/*-linux/lib");  // x86_64, sbsa
  }

  // NVIDIA's wheels below the prefix of a Python.
  void AddPython(const std::string& prefix) {
    for (const char* packages : {"site-packages", "dist-packages"}) {
      AddMatches(prefix + "/lib/python3*/" + packages + "/nvidia/*/lib");
    }
  }

  std::vector<std::string> Take() { return std::move(found_); }

 private:
  std::vector<std::string> found_;
};

// Where the first python3 in $PATH may have its packages: it is often a link to that of a virtual
// environment, which is a link to the system's.
std::vector<std::string> PythonPrefixes(const std::string& path) {
  for (const std::string& folder : SplitAtColons(path)) {
    std::error_code error;
    fs::path python = fs::path(folder) / "python3";
    if (!fs::exists(python, error)) continue;
    std::vector<std::string> out;
    for (int links = 0; links < kMaxLinks; ++links) {
      out.push_back(python.parent_path().parent_path().string());
      const fs::path to = fs::read_symlink(python, error);
      if (error) break;
      python = (python.parent_path() / to).lexically_normal();
    }
    return out;
  }
  return {};
}

}  // namespace

std::vector<std::string> CudaLibraryFolders(const std::string& binary_folder,
                                            const GetEnvironment& env) {
  Folders folders;
  for (const std::string& f : SplitAtColons(env("SHARDC_CUDA_LIBS").value_or(""))) folders.Add(f);
  folders.Add(binary_folder);
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    if (auto root = env(name)) folders.AddToolkit(*root);
  }
  folders.AddToolkit("/usr/local/cuda");
  if (auto root = env("VIRTUAL_ENV")) folders.AddPython(*root);
  for (const std::string& p : PythonPrefixes(env("PATH").value_or(""))) folders.AddPython(p);
  if (auto home = env("HOME")) folders.AddPython(*home + "/.local");
  folders.AddPython("/usr/local");
  folders.AddPython("/usr");
  return folders.Take();
}

std::vector<std::string> CudaLibraries(int major) {
  const std::string of = "." + std::to_string(major);
  return {"libcublasLt.so" + of, "libnccl.so.2", "libnvrtc.so" + of, "libcudnn.so.9"};
}

std::vector<std::string> CudaPluginPaths(const std::string& binary_folder,
                                         const GetEnvironment& env) {
  if (auto path = env("SHARDC_CUDA_PLUGIN")) return {*path};
  const std::string name = "/libshardc_cuda.so";
  return {binary_folder + name, binary_folder + "/../lib" + name,
          binary_folder + "/../tools" + name};
}

}  // namespace shardc
