#include "tests/style/source_tree.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "ir/diagnostic.h"

namespace shardc::testing {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> ReadLines(const fs::path& path) {
  std::ifstream in(path);
  SHARDC_CHECK(in.good(), path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(std::move(line));
  return lines;
}

bool IsScript(const fs::directory_entry& entry) {
  const auto executable = entry.status().permissions() & fs::perms::owner_exec;
  return entry.path().extension().empty() && executable != fs::perms::none;
}

}  // namespace

std::vector<SourceFile> ReadSources(const std::vector<std::string>& folders, Files which) {
  static const std::set<std::string> kExtensions = {".h", ".cc", ".cu", ".cuh"};
  const fs::path top = SHARDC_SOURCE_DIR;
  std::vector<SourceFile> files;
  for (const std::string& folder : folders) {
    for (const auto& entry : fs::recursive_directory_iterator(top / folder)) {
      const bool source = kExtensions.contains(entry.path().extension());
      const bool wanted = source || (which == Files::kSourcesAndScripts && IsScript(entry));
      if (!entry.is_regular_file() || !wanted) continue;
      std::string path = fs::relative(entry.path(), top).generic_string();
      files.push_back({path, path.substr(0, path.find('/')), ReadLines(entry.path())});
    }
  }
  std::sort(files.begin(), files.end(), [](auto& a, auto& b) { return a.path < b.path; });
  return files;
}

void ForEachMatch(const SourceFile& file, const std::regex& pattern,
                  const std::function<void(int, const std::smatch&)>& use) {
  int number = 0;
  for (const std::string& line : file.lines) {
    ++number;
    for (std::sregex_iterator at(line.begin(), line.end(), pattern), end; at != end; ++at) {
      use(number, *at);
    }
  }
}

}  // namespace shardc::testing
