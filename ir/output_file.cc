#include "ir/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "ir/diagnostic.h"

namespace shardc {

void ThrowCannotWrite(const std::string& shown, int error) {
  bool full = error == ENOSPC || error == EDQUOT;
  throw Diagnostic(full ? "E5004" : "E5003", ExitCode::kIo, shown,
                   StrCat("cannot write: ", std::strerror(error)),
                   full ? "free some space, or write to another disk" : "");
}

OutputFile::OutputFile(const std::string& path, std::string shown)
    : shown_(shown.empty() ? path : std::move(shown)),
      fd_(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  if (fd_ < 0) ThrowCannotWrite(shown_, errno);
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) close(fd_);
}

void OutputFile::Write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    ssize_t n = write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) ThrowCannotWrite(shown_, errno);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void OutputFile::Close() {
  int fd = fd_;
  fd_ = -1;
  if (close(fd) != 0 && errno != EINTR) ThrowCannotWrite(shown_, errno);
}

}  // namespace shardc
