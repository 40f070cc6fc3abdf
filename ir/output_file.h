// A file that is written from front to back.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

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
  void Close();

 private:
  std::string shown_;
  int fd_ = -1;
};

// The Diagnostic for errno `error`.
[[noreturn]] void ThrowCannotWrite(const std::string& shown, int error);

}  // namespace shardc
