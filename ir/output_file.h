// A file that is written from front to back.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ir/diagnostic.h"

namespace shardc {

// Throws Diagnostic E5003 (cannot be written), E5004 (disk full); `where` names `shown`.
class OutputFile {
 public:
  // Replaces what is there. `shown` is the name for messages: `path` when empty.
  explicit OutputFile(const std::string& path, std::string shown = {});
  ~OutputFile();  // closes
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void Write(std::span<const std::byte> bytes);
  void Write(std::string_view text) { Write(std::as_bytes(std::span(text))); }
  void Sync();  // what was written is on the disk
  void Close();

 private:
  std::string shown_;
  int fd_ = -1;
};

// The hidden place beside `path` where this process, or another one of this machine, makes what
// takes that name at the end.
std::string HiddenBeside(const std::string& path, std::optional<int> process = {});
// Removes the hidden places for `path` of processes that are gone: they were killed.
void RemoveStaleBeside(const std::string& path);

// A file that is there under its name only when it is whole, also after a loss of power: until
// Commit it is hidden beside it, and what killed processes left there goes. A link is followed; a
// file that is there is replaced where this user may write it, and its permissions stay; a device
// or a pipe is written to as it is. Throws as OutputFile.
class WholeFile {
 public:
  explicit WholeFile(const std::string& path);
  ~WholeFile();  // without Commit nothing is left of it
  void Write(std::span<const std::byte> bytes) { file_.Write(bytes); }
  void Write(std::string_view text) { file_.Write(text); }
  void Commit();

  // Throws, before there is anything to write, if the file cannot be made.
  static void Check(const std::string& path);

 private:
  const std::string shown_, target_, written_;  // as given; where links lead; what is open
  OutputFile file_;
  bool committed_ = false;
};

}  // namespace shardc
