#include "tools/files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "ir/diagnostic.h"
#include "ir/file_error.h"

namespace shardc {

namespace fs = std::filesystem;

namespace {

// Of a path that need not be there; empty where that cannot be said.
fs::path Canonical(const std::string& path) {
  std::error_code error;
  // What is not there yet is only made canonical from a part that is.
  const fs::path whole = fs::weakly_canonical(fs::absolute(path), error);
  return error ? fs::path() : whole;
}

bool SameFile(const std::string& a, const std::string& b) {
  std::error_code error;
  if (fs::exists(a, error) && fs::exists(b, error)) {
    return fs::is_regular_file(a, error) && fs::equivalent(a, b, error);
  }
  const fs::path whole = Canonical(a);
  return !whole.empty() && whole == Canonical(b);
}

}  // namespace

std::string ReadFile(const std::string& path) {
  auto cannot = [&](int error) { return CannotRead(path, error); };
  std::ifstream in(path, std::ios::binary);
  if (!in) throw cannot(errno);
  // A folder can be opened; only reading it fails.
  if (std::error_code error; fs::is_directory(path, error)) throw cannot(EISDIR);
  std::stringstream text;
  if (in.peek() != std::ifstream::traits_type::eof()) text << in.rdbuf();
  if (in.bad()) throw cannot(errno);
  return text.str();
}

void CheckApart(const std::vector<FileOption>& files) {
  for (const FileOption& out : files) {
    if (!out.written || out.path.empty()) continue;
    for (const FileOption& other : files) {
      if (&other == &out || other.path.empty() || !SameFile(out.path, other.path)) continue;
      throw Diagnostic("E6121", ExitCode::kUsage, out.option + " " + out.path,
                       StrCat(other.option, " has the same file, which would be overwritten"),
                       "give another file");
    }
  }
}

bool IsInside(const std::string& file, const std::string& folder) {
  const fs::path inner = Canonical(file).parent_path();
  fs::path outer = Canonical(folder);
  if (!outer.has_filename()) outer = outer.parent_path();  // "plan/"
  return !outer.empty() &&
         std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

}  // namespace shardc
