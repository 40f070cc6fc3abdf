#include "ir/file_error.h"

#include <cerrno>
#include <cstring>

namespace shardc {
namespace {

// What to do about what keeps one from reading (or writing) a file.
std::string Advice(int error, bool read) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return read ? "check the path" : "make its folder first, or choose another";
    case EACCES:
    case EPERM:
      return read ? "give this user the right to read it"
                  : "give this user the right to write there, or choose another place";
    case EISDIR:
      return "give a file";
    case EROFS:
      return "choose another place";
    case ENOSPC:
    case EDQUOT:
      return "free some space, or write to another disk";
    default:
      return "";
  }
}

}  // namespace

Diagnostic CannotRead(const std::string& path, int error) {
  return Diagnostic("E5001", ExitCode::kIo, path, StrCat("cannot read: ", std::strerror(error)),
                    Advice(error, true));
}

Diagnostic CannotWrite(const std::string& shown, int error) {
  const bool full = error == ENOSPC || error == EDQUOT;
  return Diagnostic(full ? "E5004" : "E5003", ExitCode::kIo, shown,
                    StrCat("cannot write: ", std::strerror(error)), Advice(error, false));
}

}  // namespace shardc
