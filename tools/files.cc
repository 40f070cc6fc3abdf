#include "tools/files.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "ir/diagnostic.h"
#include "ir/output_file.h"

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
  OutputFile out(path);
  out.Write(bytes);
  out.Close();
}

}  // namespace shardc
