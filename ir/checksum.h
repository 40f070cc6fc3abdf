// XXH3-128 of byte streams and files: against damage, not against malice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace shardc {

class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;

  void Update(std::span<const std::byte> bytes);
  // 32 lower-case hex digits of all bytes so far.
  std::string Hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string ChecksumOf(std::string_view bytes);
// Reads the file in pieces. Throws Diagnostic E5001 when it cannot be read. `bytes` becomes its
// size.
std::string FileChecksum(const std::string& path, int64_t* bytes = nullptr);

}  // namespace shardc
