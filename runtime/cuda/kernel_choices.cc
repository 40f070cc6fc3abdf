#include "runtime/cuda/kernel_choices.h"

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <vector>

#include "ir/diagnostic.h"

namespace shardc::cuda {
namespace {

constexpr std::string_view kFormat = "shardc kernel choices 1";
// A file that holds more is not ours.
constexpr std::streamsize kMaxBytes = 16 << 20;

std::string Hex(std::string_view bytes) {
  static const char* digits = "0123456789abcdef";
  std::string out;
  for (unsigned char c : bytes) {
    out += digits[c >> 4];
    out += digits[c & 15];
  }
  return out;
}

std::optional<std::string> FromHex(std::string_view text) {
  auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  if (text.size() % 2 != 0) return std::nullopt;
  std::string out;
  for (size_t i = 0; i < text.size(); i += 2) {
    int high = digit(text[i]), low = digit(text[i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    out += static_cast<char>(high << 4 | low);
  }
  return out;
}

// FNV-1a, against damage only.
std::string Checksum(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3u;
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8) bytes += static_cast<char>(hash >> shift);
  return Hex(bytes);
}

std::string TemporaryBeside(const std::string& path) {
  return StrCat(path, ".", static_cast<int64_t>(getpid()), ".tmp");
}

}  // namespace

KernelChoices KernelChoices::Parse(std::string_view text) {
  KernelChoices out;
  std::istringstream in{std::string(text)};
  std::string line;
  if (!std::getline(in, line) || line != kFormat) return out;
  while (std::getline(in, line)) {
    size_t last = line.rfind('\t');
    if (last == std::string::npos) continue;
    std::string entry = line.substr(0, last);
    size_t first = entry.find('\t');
    if (first == std::string::npos || Checksum(entry) != line.substr(last + 1)) continue;
    if (auto bytes = FromHex(std::string_view(entry).substr(first + 1))) {
      out.choices_[entry.substr(0, first)] = *bytes;
    }
  }
  return out;
}

std::string KernelChoices::ToText() const {
  std::string out(kFormat);
  out += '\n';
  for (const auto& [key, bytes] : choices_) {
    std::string entry = key + '\t' + Hex(bytes);
    out += entry + '\t' + Checksum(entry) + '\n';
  }
  return out;
}

std::optional<std::string> KernelChoices::Find(const std::string& key) const {
  auto it = choices_.find(key);
  return it == choices_.end() ? std::nullopt : std::optional(it->second);
}

void KernelChoices::Set(const std::string& key, std::string bytes) {
  SHARDC_CHECK(key.find_first_of("\t\n") == std::string::npos, key);
  choices_[key] = std::move(bytes);
}

KernelChoices ReadChoices(const std::string& path) {
  KernelChoices out;
  if (path.empty()) return out;
  if (std::ifstream in(path, std::ios::binary | std::ios::ate); in && in.tellg() <= kMaxBytes) {
    std::string text(static_cast<size_t>(in.tellg()), '\0');
    in.seekg(0).read(text.data(), static_cast<std::streamsize>(text.size()));
    out = KernelChoices::Parse(text);
  }
  // What cannot be kept is not measured: the next run might choose otherwise.
  const std::string probe = TemporaryBeside(path);
  out.may_measure = static_cast<bool>(std::ofstream(probe));
  if (out.may_measure) std::remove(probe.c_str());
  return out;
}

void WriteChoices(const KernelChoices& choices, const std::string& path) {
  const std::string temporary = TemporaryBeside(path);
  std::ofstream out(temporary, std::ios::binary);
  out << choices.ToText();
  out.close();
  if (!out || std::rename(temporary.c_str(), path.c_str()) != 0) std::remove(temporary.c_str());
}

}  // namespace shardc::cuda
