#include "tools/files.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "ir/diagnostic.h"

namespace shardc {

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  if (in) text << in.rdbuf();
  if (!in || in.bad()) {
    throw Diagnostic("E5001", ExitCode::kIo, path, StrCat("cannot read: ", std::strerror(errno)));
  }
  return text.str();
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary);
  if (!out) {
    throw Diagnostic("E5002", ExitCode::kIo, path, StrCat("cannot write: ", std::strerror(errno)));
  }
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out) {
    throw Diagnostic("E5003", ExitCode::kIo, path, StrCat("cannot write: ", std::strerror(errno)));
  }
}

}  // namespace shardc
