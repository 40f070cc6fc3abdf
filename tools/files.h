// Whole files, and which options name the same one.
#pragma once

#include <string>
#include <vector>

namespace shardc {

// Throws Diagnostic E5001 when the file cannot be read.
std::string ReadFile(const std::string& path);

// A file that an option of the command names, or that is in what it names.
struct FileOption {
  std::string option, path;  // no path: the option was not given
  bool written = false;
};

// Throws Diagnostic E6121 where two options name the same file and one of them writes it: it would
// be gone before it is read, or what another one wrote. Devices and pipes may be named twice.
void CheckApart(const std::vector<FileOption>& files);

// Whether the file is, or would be, somewhere in the folder, which need not be there yet.
bool IsInside(const std::string& file, const std::string& folder);

}  // namespace shardc
