#include "ir/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

#include "ir/file_error.h"
#include "ir/no_memory.h"

namespace shardc {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeader = 100'000'000;

[[noreturn]] void Fail(const std::string& where, std::string what) {
  throw Diagnostic("E5102", ExitCode::kIo, where, std::move(what), "fetch or write the file again");
}

struct StoredDType {
  std::string_view name;
  int bits;
  std::optional<DType> dtype;  // none: not read
};
constexpr StoredDType kDTypes[] = {
    {"F64", 64, DType::kF64},     {"F32", 32, DType::kF32},     {"F16", 16, DType::kF16},
    {"BF16", 16, DType::kBF16},   {"I64", 64, DType::kI64},     {"I32", 32, DType::kI32},
    {"BOOL", 8, DType::kBool},    {"U8", 8, std::nullopt},      {"I8", 8, std::nullopt},
    {"U16", 16, std::nullopt},    {"I16", 16, std::nullopt},    {"U32", 32, std::nullopt},
    {"U64", 64, std::nullopt},    {"C64", 64, std::nullopt},    {"F8_E4M3", 8, std::nullopt},
    {"F8_E5M2", 8, std::nullopt}, {"F8_E8M0", 8, std::nullopt}, {"F6_E2M3", 6, std::nullopt},
    {"F6_E3M2", 6, std::nullopt}, {"F4", 4, std::nullopt},
};

std::shared_ptr<const void> MapFile(const std::string& path, int64_t* size) {
  auto cannot = [&](int error) {
    if (error == ENOMEM) return NoMemory(path);
    return CannotRead(path, error);
  };
  // Not to block on a FIFO.
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) throw cannot(errno);
  struct stat info {};
  int error = fstat(fd, &info) ? errno : S_ISDIR(info.st_mode) ? EISDIR : 0;
  if (!error && !S_ISREG(info.st_mode)) error = EINVAL;
  *size = info.st_size;
  void* p = nullptr;
  if (!error && *size > 0) {
    p = mmap(nullptr, static_cast<size_t>(*size), PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) error = errno;
  }
  close(fd);
  if (error) throw cannot(error);
  if (!p) return nullptr;
  return {p, [n = static_cast<size_t>(*size)](const void* m) { munmap(const_cast<void*>(m), n); }};
}

// Refuses a name that stands twice in an object: which of the two counts would be a guess.
json ParseHeader(std::string_view text, const std::string& path) {
  std::vector<std::set<std::string>> open_objects;
  auto on_event = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == json::parse_event_t::object_end) open_objects.pop_back();
    if (event == json::parse_event_t::key) {
      auto name = parsed.get<std::string>();
      if (!open_objects.back().insert(name).second) {
        Fail(path, "'" + name + "' appears twice in its header");
      }
    }
    return true;
  };
  try {
    json header = json::parse(text, on_event);
    if (!header.is_object()) Fail(path, "its header is not a JSON object");
    return header;
  } catch (const json::exception& e) {
    Fail(path, StrCat("its header is not JSON: ", e.what()));
  }
}

class HeaderReader {
 public:
  HeaderReader(const std::string& path, int64_t data_start, int64_t size)
      : path_(path), data_start_(data_start), size_(size) {}

  void Tensor(const std::string& name, const json& value) {
    where_ = path_ + ", tensor '" + name + "'";
    const StoredDType& dtype = ReadDType(Member(value, "dtype"));
    SafetensorsEntry entry;
    entry.shape = IntList(Member(value, "shape"), "shape");
    Shape offsets = IntList(Member(value, "data_offsets"), "data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > size_ - data_start_) {
      Fail(where_,
           StrCat("its data_offsets ", ShapeToString(offsets),
                  " are not inside the file, which has ", size_ - data_start_, " bytes of data"));
    }
    entry.offset = data_start_ + offsets[0];
    entry.bytes = offsets[1] - offsets[0];
    if (int64_t expected = Bytes(entry.shape, dtype.bits); entry.bytes != expected) {
      Fail(where_, StrCat(dtype.name, ShapeToString(entry.shape), " has ", expected,
                          " bytes, and its data_offsets ", entry.bytes));
    }
    if (entry.bytes) ranges_.push_back({entry.offset, entry.offset + entry.bytes, name});
    if (!dtype.dtype) {
      unread[name] = dtype.name;
      return;
    }
    entry.dtype = *dtype.dtype;
    entries[name] = std::move(entry);
  }

  void CheckOverlaps() {
    std::sort(ranges_.begin(), ranges_.end());
    for (size_t i = 1; i < ranges_.size(); ++i) {
      if (ranges_[i].begin < ranges_[i - 1].end) {
        Fail(path_,
             StrCat("the data of '", ranges_[i - 1].name, "' and '", ranges_[i].name, "' overlap"));
      }
    }
  }

  std::map<std::string, SafetensorsEntry> entries;
  std::map<std::string, std::string> unread;

 private:
  struct Range {
    int64_t begin, end;
    std::string name;
    auto operator<=>(const Range&) const = default;
  };

  const json& Member(const json& value, const char* key) const {
    if (!value.is_object()) Fail(where_, "is not an object in the header");
    auto it = value.find(key);
    if (it == value.end()) Fail(where_, StrCat("has no ", key));
    return *it;
  }

  const StoredDType& ReadDType(const json& value) const {
    if (!value.is_string()) Fail(where_, "its dtype is not a string");
    const auto& name = value.get_ref<const std::string&>();
    for (const StoredDType& d : kDTypes) {
      if (d.name == name) return d;
    }
    Fail(where_, "has the unknown dtype '" + name + "'");
  }

  Shape IntList(const json& value, const char* what) const {
    Shape out;
    if (!value.is_array()) Fail(where_, StrCat("its ", what, " is not a list"));
    for (const json& v : value) {
      constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
      if (!v.is_number_unsigned() || v.get<uint64_t>() > kMax) {
        // Not what is nested, which may be as deep as the file is long.
        Fail(where_, StrCat("its ", what, " has ",
                            v.is_structured() ? StrCat("a nested ", v.type_name()) : v.dump(),
                            ", which is not a size"));
      }
      out.push_back(v.get<int64_t>());
    }
    return out;
  }

  int64_t Bytes(const Shape& shape, int bits) const {
    int64_t n = 64;  // as wide as any element is
    for (int64_t d : shape) {
      if (__builtin_mul_overflow(n, d, &n)) {
        Fail(where_, "its shape " + ShapeToString(shape) + " is too large");
      }
    }
    n = n / 64 * bits;
    if (n % 8) Fail(where_, "its data do not end at a byte");
    return n / 8;
  }

  const std::string& path_;
  int64_t data_start_, size_;
  std::string where_;
  std::vector<Range> ranges_;
};

std::map<std::string, std::string> ReadMetadata(const json& value, const std::string& path) {
  std::map<std::string, std::string> out;
  if (!value.is_object()) Fail(path, "its __metadata__ is not an object");
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) Fail(path, "its __metadata__ '" + key + "' is not a string");
    out[key] = text.get<std::string>();
  }
  return out;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  mapping_ = MapFile(path, &size_);
  uint64_t header_size = 0;
  const char* bytes = static_cast<const char*>(mapping_.get());
  const bool has_size = size_ >= static_cast<int64_t>(sizeof header_size);
  if (has_size) std::memcpy(&header_size, bytes, sizeof header_size);
  if (!has_size || header_size > kMaxHeader) {
    throw Diagnostic("E5102", ExitCode::kIo, path, "this is not a safetensors file",
                     "write one with safetensors.torch.save_file (what torch.save wrote is none)");
  }
  auto data_start = static_cast<int64_t>(sizeof header_size + header_size);
  if (data_start > size_) {
    Fail(path, StrCat("it is truncated: its header ends at byte ", data_start, " of ", size_));
  }
  json header = ParseHeader({bytes + sizeof header_size, header_size}, path);
  HeaderReader reader(path_, data_start, size_);
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      metadata_ = ReadMetadata(value, path);
    } else {
      reader.Tensor(name, value);
    }
  }
  reader.CheckOverlaps();
  entries_ = std::move(reader.entries);
  unread_ = std::move(reader.unread);
}

std::span<const std::byte> SafetensorsFile::Data(const std::string& name) const {
  auto it = entries_.find(name);
  if (it == entries_.end()) {
    auto fail = [&](std::string what, std::string fix) {
      return Diagnostic("E5103", ExitCode::kIo, path_, std::move(what), std::move(fix));
    };
    if (auto other = unread_.find(name); other != unread_.end()) {
      throw fail(StrCat("tensor '", name, "' has dtype ", other->second, ", which is not read"),
                 "convert it to one of F64 F32 F16 BF16 I64 I32 BOOL");
    }
    std::vector<std::string> names;
    for (const auto& [known, entry] : entries_) names.push_back(known);
    throw fail(StrCat("it has no tensor '", name, "'"), DidYouMean(name, names));
  }
  const auto* bytes = static_cast<const std::byte*>(mapping_.get());
  return {bytes + it->second.offset, static_cast<size_t>(it->second.bytes)};
}

HostTensor SafetensorsFile::Read(const std::string& name) const {
  std::span<const std::byte> data = Data(name);
  const SafetensorsEntry& entry = entries_.at(name);
  HostTensor out(entry.dtype, entry.shape);
  if (entry.dtype == DType::kBool) {
    std::transform(data.begin(), data.end(), out.raw(),
                   [](std::byte b) { return std::byte{b != std::byte{0}}; });
  } else {
    std::copy(data.begin(), data.end(), out.raw());
  }
  return out;
}

}  // namespace shardc
