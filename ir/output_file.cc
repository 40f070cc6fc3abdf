#include "ir/output_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "ir/checksum.h"
#include "ir/file_error.h"

namespace shardc {

OutputFile::OutputFile(const std::string& path, std::string shown)
    : shown_(shown.empty() ? path : std::move(shown)),
      fd_(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  if (fd_ < 0) throw CannotWrite(shown_, errno);
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) close(fd_);
}

void OutputFile::Write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    ssize_t n = write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw CannotWrite(shown_, errno);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void OutputFile::Sync() {
  // What is no file on a disk has nothing to sync.
  if (fsync(fd_) != 0 && errno != EINVAL && errno != EROFS) throw CannotWrite(shown_, errno);
}

void OutputFile::Close() {
  int fd = fd_;
  fd_ = -1;
  if (close(fd) != 0 && errno != EINTR) throw CannotWrite(shown_, errno);
}

namespace {

namespace fs = std::filesystem;

bool IsWrittenDirectly(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status);
}

// Also where a link leads to nothing yet. Not of /dev/stdout, /dev/fd/3 and such where these are
// pipes: what their links say is no path.
std::string Target(const std::string& path) {
  if (IsWrittenDirectly(path)) return path;
  constexpr int kMostLinks = 40;  // as Linux
  fs::path target = path;
  std::error_code error;
  for (int i = 0; i < kMostLinks && fs::is_symlink(fs::symlink_status(target, error)); ++i) {
    target = target.parent_path() / fs::read_symlink(target, error);
  }
  if (fs::is_symlink(fs::symlink_status(target, error))) throw CannotWrite(path, ELOOP);
  return target.string();
}

std::string FolderOf(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  return folder.empty() ? "." : folder.string();
}

// The errno for what is there and must stay, else 0. rename() asks about the folder alone, and only
// when all is written.
int WhyItStays(const std::string& path) {
  struct stat file = {}, folder = {};
  if (stat(path.c_str(), &file) != 0) return 0;
  if (S_ISDIR(file.st_mode)) return EISDIR;
  if (faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) != 0) return errno;
  if (stat(FolderOf(path).c_str(), &folder) != 0 || !(folder.st_mode & S_ISVTX)) return 0;
  const uid_t user = geteuid();
  return user == 0 || user == file.st_uid || user == folder.st_uid ? 0 : EPERM;
}

std::string PlaceFor(const std::string& path, const std::string& shown) {
  if (IsWrittenDirectly(path)) return path;
  if (const int error = WhyItStays(path); error != 0) throw CannotWrite(shown, error);
  RemoveStaleBeside(path);
  return HiddenBeside(path);
}

// Of the processes that this one can ask after: others of the same number may write to the same
// file system, of another machine or container.
std::string NameOfMachine() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  std::error_code error;
  const fs::path processes = fs::read_symlink("/proc/self/ns/pid", error);
  return ChecksumOf(StrCat(host.data(), " ", processes.string())).substr(0, 8);
}

std::string HiddenName(const fs::path& path) {
  static const std::string machine = NameOfMachine();
  return StrCat(".", path.filename().string(), ".tmp-", machine, "-");
}

}  // namespace

std::string HiddenBeside(const std::string& path, std::optional<int> process) {
  const fs::path p(path);
  return (p.parent_path() / StrCat(HiddenName(p), process.value_or(getpid()))).string();
}

void RemoveStaleBeside(const std::string& path) {
  const fs::path p(path);
  const std::string prefix = HiddenName(p);
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(FolderOf(path), error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix)) continue;
    const std::string pid = name.substr(prefix.size());
    if (pid.empty() || pid.size() > 9 || pid.find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    if (kill(std::stoi(pid), 0) == 0 || errno != ESRCH) continue;
    std::error_code ignored;
    fs::remove_all(entry.path(), ignored);
  }
}

WholeFile::WholeFile(const std::string& path)
    : shown_(path),
      target_(Target(path)),
      written_(PlaceFor(target_, shown_)),
      file_(written_, shown_) {
  struct stat there = {};
  if (written_ == target_ || stat(target_.c_str(), &there) != 0) return;
  chmod(written_.c_str(), there.st_mode & 0777);  // a private file stays one
}

WholeFile::~WholeFile() {
  if (!committed_ && written_ != target_) unlink(written_.c_str());
}

void WholeFile::Commit() {
  // A name must not be on the disk before what it names.
  if (written_ != target_) file_.Sync();
  file_.Close();
  if (written_ != target_ && rename(written_.c_str(), target_.c_str()) != 0) {
    throw CannotWrite(shown_, errno);
  }
  committed_ = true;
}

void WholeFile::Check(const std::string& path) {
  if (!IsWrittenDirectly(path)) WholeFile{path};
}

}  // namespace shardc
