#include "ir/checksum.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "ir/diagnostic.h"
#include "ir/file_error.h"

namespace shardc {
namespace {

std::string ToHex(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  std::string hex;
  for (unsigned char c : canonical.digest) {
    hex += "0123456789abcdef"[c >> 4];
    hex += "0123456789abcdef"[c & 15];
  }
  return hex;
}

class ReadOnlyFile {
 public:
  explicit ReadOnlyFile(const std::string& path) : path_(path) {
    fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // not to block on a FIFO
    if (fd_ < 0) Fail();
  }
  ~ReadOnlyFile() { close(fd_); }
  ReadOnlyFile(const ReadOnlyFile&) = delete;
  ReadOnlyFile& operator=(const ReadOnlyFile&) = delete;

  size_t Read(std::span<std::byte> into) {
    for (;;) {
      ssize_t n = read(fd_, into.data(), into.size());
      if (n >= 0) return static_cast<size_t>(n);
      if (errno != EINTR) Fail();
    }
  }

 private:
  [[noreturn]] void Fail() const { throw CannotRead(path_, errno); }
  std::string path_;
  int fd_ = -1;
};

}  // namespace

struct Checksum::State {
  struct Free {
    void operator()(XXH3_state_t* s) const { XXH3_freeState(s); }
  };
  std::unique_ptr<XXH3_state_t, Free> xxh{XXH3_createState()};
};

Checksum::Checksum() : state_(std::make_unique<State>()) {
  SHARDC_CHECK(state_->xxh && XXH3_128bits_reset(state_->xxh.get()) == XXH_OK);
}
Checksum::~Checksum() = default;
Checksum::Checksum(Checksum&&) noexcept = default;
Checksum& Checksum::operator=(Checksum&&) noexcept = default;

void Checksum::Update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->xxh.get(), bytes.data(), bytes.size());
}

std::string Checksum::Hex() const { return ToHex(XXH3_128bits_digest(state_->xxh.get())); }

std::string ChecksumOf(std::string_view bytes) {
  return ToHex(XXH3_128bits(bytes.data(), bytes.size()));
}

std::string FileChecksum(const std::string& path, int64_t* bytes) {
  ReadOnlyFile file(path);
  Checksum sum;
  std::vector<std::byte> piece(1 << 20);
  int64_t total = 0;
  while (size_t n = file.Read(piece)) {
    sum.Update({piece.data(), n});
    total += static_cast<int64_t>(n);
  }
  if (bytes) *bytes = total;
  return sum.Hex();
}

}  // namespace shardc
