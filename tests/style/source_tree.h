// The project's sources as text, for tests that read them.
#pragma once

#include <functional>
#include <regex>
#include <string>
#include <vector>

namespace shardc::testing {

struct SourceFile {
  std::string path;    // from the top of the tree: "ir/ops/matmul.cc"
  std::string folder;  // its first part: "ir"
  std::vector<std::string> lines;
};

// Scripts: executable files without an extension.
enum class Files { kSources, kSourcesAndScripts };

// Every .h, .cc, .cu, .cuh, and the scripts if asked for, below the given folders, in order of
// path.
std::vector<SourceFile> ReadSources(const std::vector<std::string>& folders,
                                    Files which = Files::kSources);

// Calls `use(line number, match)` for every match of `pattern` in the file.
void ForEachMatch(const SourceFile& file, const std::regex& pattern,
                  const std::function<void(int, const std::smatch&)>& use);

}  // namespace shardc::testing
