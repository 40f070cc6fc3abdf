// Where CUDA's shared libraries may be.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace shardc {

using GetEnvironment = std::function<std::optional<std::string>(const std::string& name)>;

// Folders that may hold CUDA's libraries, in the order to look: $SHARDC_CUDA_LIBS (separated by
// ':'), `binary_folder`, $CUDA_HOME, $CUDA_PATH, /usr/local/cuda, and the nvidia/*/lib folders of
// the Pythons of $VIRTUAL_ENV, $PATH, $HOME/.local and /usr. Only those that exist, each once.
std::vector<std::string> CudaLibraryFolders(const std::string& binary_folder,
                                            const GetEnvironment& env);

// What a plugin that was built with CUDA `major` needs, then what it looks for itself, by the names
// to open them with.
std::vector<std::string> CudaLibraries(int major);

// $SHARDC_CUDA_PLUGIN alone where it is set; else beside the binary, in ../lib, and in the build
// tree.
std::vector<std::string> CudaPluginPaths(const std::string& binary_folder,
                                         const GetEnvironment& env);

}  // namespace shardc
