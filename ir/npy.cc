#include "ir/npy.h"

#include <charconv>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string_view>

#include "ir/diagnostic.h"
#include "ir/file_error.h"

namespace shardc {
namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);

[[noreturn]] void Fail(const std::string& path, std::string what, std::string fix = {}) {
  throw Diagnostic("E5101", ExitCode::kIo, path, std::move(what), std::move(fix));
}

struct Header {
  std::string descr;
  std::optional<bool> fortran_order;
  std::optional<Shape> shape;
};

// The header is a Python literal: a dict of a string, a bool and a tuple.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& path) : text_(text), path_(path) {}

  Header Parse() {
    Header h;
    Expect('{');
    while (!Accept('}')) {
      std::string key = String();
      Expect(':');
      if (key == "descr") {
        if (Peek() == '[') Fail(path_, "it holds records", "save one array of numbers");
        h.descr = String();
      } else if (key == "fortran_order") {
        h.fortran_order = Bool();
      } else if (key == "shape") {
        h.shape = Tuple();
      } else {
        Bad();
      }
      if (!Accept(',') && Peek() != '}') Bad();
    }
    if (h.descr.empty() || !h.fortran_order || !h.shape || Peek() != 0) Bad();
    return h;
  }

 private:
  [[noreturn]] void Bad() const {
    Fail(path_, StrCat("its .npy header is malformed at byte ", at_ + 1, " of it"));
  }
  char Peek() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
    return at_ < text_.size() ? text_[at_] : 0;
  }
  bool Accept(char c) {
    if (Peek() != c) return false;
    ++at_;
    return true;
  }
  void Expect(char c) {
    if (!Accept(c)) Bad();
  }
  std::string String() {
    char quote = Peek();
    if (quote != '\'' && quote != '"') Bad();
    size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) Bad();
    std::string out(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return out;
  }
  bool Bool() {
    Peek();
    for (std::string_view word : {"True", "False"}) {
      if (text_.substr(at_).starts_with(word)) {
        at_ += word.size();
        return word == "True";
      }
    }
    Bad();
  }
  Shape Tuple() {
    Shape shape;
    Expect('(');
    while (!Accept(')')) {
      Peek();
      int64_t n = 0;
      auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), n);
      if (error != std::errc() || n < 0) Bad();
      at_ = static_cast<size_t>(end - text_.data());
      Accept('L');  // written by Python 2
      shape.push_back(n);
      if (!Accept(',') && Peek() != ')') Bad();
    }
    return shape;
  }

  std::string_view text_;
  const std::string& path_;
  size_t at_ = 0;
};

// How elements are stored, and what they become.
struct Kind {
  std::string_view descr;
  DType dtype;
  int bytes;
  bool is_signed = true;  // integers that are converted
};
constexpr Kind kKinds[] = {
    {"f2", DType::kF16, 2},        {"f4", DType::kF32, 4},        {"f8", DType::kF64, 8},
    {"i4", DType::kI32, 4},        {"i8", DType::kI64, 8},        {"b1", DType::kBool, 1},
    {"i1", DType::kI64, 1},        {"i2", DType::kI64, 2},        {"u1", DType::kI64, 1, false},
    {"u2", DType::kI64, 2, false}, {"u4", DType::kI64, 4, false}, {"u8", DType::kI64, 8, false},
};

const Kind& KindOf(const std::string& descr, const std::string& path) {
  std::string_view name = descr;
  if (std::string_view("<>|=").find(name.substr(0, 1)) != name.npos) name.remove_prefix(1);
  for (const Kind& k : kKinds) {
    if (k.descr != name) continue;
    if (!descr.starts_with('>')) return k;
    Fail(path, "its elements '" + descr + "' are big endian",
         StrCat("convert them with .astype('<", name, "')"));
  }
  Fail(path, "its elements '" + descr + "' are of a kind that is not read",
       "convert it, for example with .astype(np.float32)");
}

int64_t StoredBytes(const Shape& shape, const Kind& kind, const std::string& path) {
  int64_t n = 8;  // as wide as any element becomes
  for (int64_t d : shape) {
    if (__builtin_mul_overflow(n, d, &n))
      Fail(path, "its shape " + ShapeToString(shape) + " is too large");
  }
  return n / 8 * kind.bytes;
}

// Integers of other widths to i64.
HostTensor Widen(const std::vector<std::byte>& stored, const Kind& kind, Shape shape,
                 const std::string& path) {
  HostTensor out(DType::kI64, std::move(shape));
  for (int64_t i = 0; i < out.num_elements(); ++i) {
    uint64_t v = 0;
    std::memcpy(&v, stored.data() + i * kind.bytes, static_cast<size_t>(kind.bytes));
    int unused = 64 - 8 * kind.bytes;
    if (!kind.is_signed && v > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      Fail(path, StrCat("element ", i, " is ", v, ", which no i64 holds"));
    }
    out.data<int64_t>()[i] =
        kind.is_signed ? static_cast<int64_t>(v << unused) >> unused : static_cast<int64_t>(v);
  }
  return out;
}

class NpyReader {
 public:
  explicit NpyReader(const std::string& path) : path_(path) {
    std::error_code error;
    left_ = std::filesystem::file_size(path, error);
    if (!error) in_.open(path, std::ios::binary);  // not of a FIFO, which would block
    if (!in_ || error) {
      throw CannotRead(path, error ? error.value() : errno);
    }
  }

  HostTensor Read() {
    Header header = ReadHeader();
    const Kind& kind = KindOf(header.descr, path_);
    if (*header.fortran_order) {
      Fail(path_, "its elements are in column-major (Fortran) order",
           "save np.ascontiguousarray(array)");
    }
    auto bytes = static_cast<uint64_t>(StoredBytes(*header.shape, kind, path_));
    if (bytes > left_) {
      Fail(path_, StrCat("it is truncated: ", ShapeToString(*header.shape), " of '", header.descr,
                         "' needs ", bytes, " bytes, and ", left_, " are there"));
    }
    if (DTypeSize(kind.dtype) != kind.bytes) {
      std::vector<std::byte> stored(bytes);
      Take(stored.data(), bytes);
      return Widen(stored, kind, std::move(*header.shape), path_);
    }
    HostTensor out(kind.dtype, std::move(*header.shape));
    Take(out.raw(), bytes);
    if (kind.dtype == DType::kBool) {
      for (int64_t i = 0; i < out.bytes(); ++i)
        out.raw()[i] = std::byte{out.raw()[i] != std::byte{0}};
    } else if (!kind.is_signed) {
      return Widen(std::vector<std::byte>(out.raw(), out.raw() + out.bytes()), kind, out.shape(),
                   path_);
    }
    return out;
  }

 private:
  void Take(void* to, uint64_t n) {
    if (n > left_) Fail(path_, "it is truncated");
    left_ -= n;
    if (n && !in_.read(static_cast<char*>(to), static_cast<std::streamsize>(n))) {
      Fail(path_, "it cannot be read to its end");
    }
  }

  Header ReadHeader() {
    char magic[8] = {};
    if (left_ >= sizeof magic) Take(magic, sizeof magic);
    if (std::string_view(magic, kMagic.size()) != kMagic) {
      Fail(path_, "this is not a .npy file",
           "write it with np.save; safetensors files are those whose names end in .safetensors");
    }
    int version = static_cast<unsigned char>(magic[6]);
    if (version < 1 || version > 3) Fail(path_, StrCat("it has .npy version ", version));
    uint32_t length = 0;
    Take(&length, version == 1 ? 2 : 4);
    if (length > left_) Fail(path_, "it is truncated");
    std::string text(length, '\0');
    Take(text.data(), length);
    return HeaderParser(text, path_).Parse();
  }

  const std::string& path_;
  std::ifstream in_;
  uint64_t left_ = 0;
};

}  // namespace

HostTensor ReadNpy(const std::string& path) { return NpyReader(path).Read(); }

}  // namespace shardc
