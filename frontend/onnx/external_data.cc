#include "frontend/onnx/external_data.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "ir/diagnostic.h"
#include "ir/parse_number.h"

namespace shardc::onnx_import {
namespace {

[[noreturn]] void Refuse(const std::string& where, const std::string& what,
                         const std::string& fix = {}) {
  throw Diagnostic("E1401", ExitCode::kBadModel, where, what, fix);
}

std::vector<std::string> SplitLocation(const std::string& location, const std::string& where) {
  if (location.empty()) Refuse(where, "its external data has no location");
  if (location.find('\0') != std::string::npos) {
    Refuse(where, "its external data has a location with a zero byte");
  }
  if (location[0] == '/' || location.find('\\') != std::string::npos) {
    Refuse(where, StrCat("its external data is at '", location,
                         "', which is not a path relative to the model's folder"));
  }
  std::vector<std::string> parts;
  for (size_t at = 0; at <= location.size();) {
    size_t end = std::min(location.find('/', at), location.size());
    std::string part = location.substr(at, end - at);
    if (part == "..") {
      Refuse(where, StrCat("its external data is at '", location, "', outside the model's folder"));
    }
    if (!part.empty() && part != ".") parts.push_back(std::move(part));
    at = end + 1;
  }
  if (parts.empty()) Refuse(where, StrCat("its external data is at '", location, "', a folder"));
  return parts;
}

uint64_t ReadNumber(const std::string& key, const std::string& text, const std::string& where) {
  const std::optional<uint64_t> value = ParseNumber<uint64_t>(text);
  if (value) return *value;
  Refuse(where, StrCat("its external data has ", key, " '", text, "', which is not a number"));
}

// Opens part by part, following no link, so that nothing can be exchanged in between.
int OpenInside(const std::string& folder, const std::vector<std::string>& parts) {
  int dir = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  for (size_t i = 0; dir >= 0 && i < parts.size(); ++i) {
    int kind = i + 1 < parts.size() ? O_DIRECTORY : O_NONBLOCK;
    int next = openat(dir, parts[i].c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | kind);
    int error = errno;
    close(dir);
    errno = error;
    dir = next;
  }
  return dir;
}

}  // namespace

std::shared_ptr<const MappedFile> ExternalFiles::Open(const std::string& location,
                                                      const std::string& where) {
  std::vector<std::string> parts = SplitLocation(location, where);
  auto& file = files_[location];
  if (file) return file;
  int fd = OpenInside(folder_, parts);
  if (fd < 0) {
    const char* why = errno == ELOOP ? "is a link" : std::strerror(errno);
    Refuse(where, StrCat("its external data file '", location, "' cannot be opened: ", why),
           "the data files of a model have to lie in its folder; copy them, do not link them");
  }
  struct stat info {};
  bool regular = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  if (!regular || info.st_nlink > 1) {
    close(fd);
    Refuse(where,
           StrCat("its external data file '", location, "' ",
                  regular ? "has hard links" : "is not a file"),
           regular ? "copy the file instead of linking it" : "");
  }
  file = MappedFile::Map(fd);
  if (!file) {
    Refuse(where, StrCat("its external data file '", location,
                         "' cannot be mapped: ", std::strerror(errno)));
  }
  return file;
}

Bytes ExternalFiles::Get(const onnx::TensorProto& tensor, const std::string& where) {
  std::string location;
  uint64_t offset = 0, length = 0;
  bool has_length = false;
  for (const auto& entry : tensor.external_data()) {
    if (entry.key() == "location") location = entry.value();
    if (entry.key() == "offset") offset = ReadNumber("offset", entry.value(), where);
    if (entry.key() == "length") {
      length = ReadNumber("length", entry.value(), where);
      has_length = true;
    }
  }
  auto file = Open(location, where);
  if (offset > file->size() || (has_length && length > file->size() - offset)) {
    Refuse(where,
           StrCat("its external data is at byte ", offset,
                  has_length ? StrCat(", ", length, " bytes long,") : "", " of '", location,
                  "', which has ", file->size(), " bytes"),
           "the data file is cut short or belongs to another model");
  }
  if (!has_length) length = file->size() - offset;
  return {file->data() + offset, static_cast<size_t>(length), file, true};
}

}  // namespace shardc::onnx_import
