#include "ir/parse_literals.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "ir/diagnostic.h"
#include "ir/parse_number.h"
#include "ir/shape_limit.h"

namespace shardc {
namespace {

// A short text must not take all memory.
constexpr int64_t kMaxSegments = 65536;
constexpr int64_t kMaxSplatBytes = int64_t{1} << 32;

int HexDigit(char c) {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

template <typename T>
void Append(std::vector<std::byte>& out, T value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof value);
}

uint64_t InfinityBits(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return 0x7c00;
    case DType::kBF16:
      return 0x7f80;
    case DType::kF32:
      return 0x7f800000;
    default:
      return 0x7ff0000000000000;
  }
}

template <typename Fn>
void List(Lexer& lex, Fn item) {
  lex.Expect("[");
  while (!lex.PeekIs("]")) {
    item();
    if (!lex.Accept(",")) break;
  }
  lex.Expect("]");
}

}  // namespace

DType LiteralParser::ElementType() {
  std::optional<DType> dtype;
  if (lex_.PeekIs(Token::kWord)) dtype = ParseDType(lex_.Peek().raw);
  if (!dtype) lex_.Unexpected(lex_.Peek(), "an element type such as f32 or i64");
  lex_.Take();
  return *dtype;
}

int64_t LiteralParser::Dim() {
  Token at = lex_.Peek();
  int64_t n = lex_.ExpectInt("the size of a dim");
  if (n < 0) lex_.Fail(at, StrCat("a dim has size ", n));
  return n;
}

TensorType LiteralParser::Type(const Mesh& mesh) {
  TensorType type;
  type.dtype = ElementType();
  Token at = lex_.Peek();
  List(lex_, [&] {
    int64_t size = Dim();
    type.shape.push_back(size);
    type.sharding.dims.push_back(lex_.Accept("@") ? Cut(size, mesh) : DimSharding());
  });
  if (TooLarge(type.dtype, type.shape)) lex_.Fail(at, "the tensor is too large");
  for (auto [word, axes] : {std::pair("partial", &type.sharding.partial_sum),
                            std::pair("partial_max", &type.sharding.partial_max)}) {
    if (!lex_.PeekIs(Token::kWord) || lex_.Peek().raw != word) continue;
    lex_.Take();
    lex_.Expect("(");
    Axes(*axes, mesh);
  }
  return type;
}

DimSharding LiteralParser::Cut(int64_t size, const Mesh& mesh) {
  DimSharding dim;
  if (lex_.Accept("(")) {
    Axes(dim.axes, mesh);
  } else {
    Axis(dim.axes, mesh);
  }
  if (lex_.Accept("/")) dim.segments = Segments(size);
  if (lex_.PeekIs(Token::kValue)) {  // "%64"
    Token token = lex_.Take();
    dim.granule = ParseNumber<int64_t>(token.text()).value_or(0);
    if (token.quoted || dim.granule < 1) {
      lex_.Unexpected(token, "a granule such as %64");
    }
  }
  return dim;
}

std::vector<int64_t> LiteralParser::Segments(int64_t size) {
  std::vector<int64_t> segments;
  Token at = lex_.Peek();
  if (lex_.PeekIs("[")) {
    List(lex_, [&] { segments.push_back(lex_.ExpectInt("the size of a segment")); });
    if (segments.empty()) lex_.Fail(at, "a list of segments that has none");
    return segments;
  }
  int64_t n = lex_.ExpectInt("a number of segments or a list of their sizes");
  if (n < 1 || n > kMaxSegments || size % n != 0) {
    lex_.Fail(at, StrCat("a dim of size ", size, " cannot have ", n, " equal segments"),
              "list the segments' sizes: /[768,512]");
  }
  segments.assign(static_cast<size_t>(n), size / n);
  return segments;
}

void LiteralParser::Axis(AxisList& axes, const Mesh& mesh) {
  Token token = lex_.Peek();
  if (token.kind != Token::kWord && token.kind != Token::kNumber) {
    lex_.Unexpected(token, "the name of a mesh axis");
  }
  auto axis = mesh.FindAxis(token.raw);
  if (!axis) {
    lex_.Fail(token, StrCat("the mesh has no axis '", token.raw, "'"),
              DidYouMean(token.raw, mesh.Names()));
  }
  if (axes.size() == AxisList::kMax || axes.contains(*axis)) {
    lex_.Fail(token, axes.contains(*axis) ? StrCat("axis '", token.raw, "' appears twice")
                                          : StrCat("more than ", AxisList::kMax, " axes"));
  }
  axes.push_back(*axis);
  lex_.Take();
}

void LiteralParser::Axes(AxisList& axes, const Mesh& mesh) {
  do {
    Axis(axes, mesh);
  } while (lex_.Accept(","));
  lex_.Expect(")");
}

Attribute LiteralParser::Value(AttrKind kind) {
  switch (kind) {
    case AttrKind::kInt:
      return lex_.ExpectInt("an integer");
    case AttrKind::kFloat:
      return Float();
    case AttrKind::kBool:
      return Bool();
    case AttrKind::kString:
      return std::string(lex_.Expect(Token::kString, "a string").text());
    case AttrKind::kInts: {
      Ints ints;
      List(lex_, [&] { ints.push_back(lex_.ExpectInt("an integer")); });
      return ints;
    }
    case AttrKind::kStrings: {
      Strings strings;
      List(lex_, [&] { strings.emplace_back(lex_.Expect(Token::kString, "a string").text()); });
      return strings;
    }
    case AttrKind::kTensor:
      return Tensor();
  }
  return {};
}

double LiteralParser::Float() {
  return PeekNan() ? std::bit_cast<double>(NanBits(DType::kF64)) : Number<double>();
}

bool LiteralParser::Bool() {
  const Token& token = lex_.Peek();
  bool value = token.raw == "true";
  if (token.kind != Token::kWord || (!value && token.raw != "false")) {
    lex_.Unexpected(token, "true or false");
  }
  lex_.Take();
  return value;
}

bool LiteralParser::PeekNan() const {
  return lex_.PeekIs(Token::kWord) && lex_.Peek().raw == "nan";
}

// Of "nan", the usual one, or of "nan(0x...)".
uint64_t LiteralParser::NanBits(DType dtype) {
  int bytes = static_cast<int>(DTypeSize(dtype));
  uint64_t infinity = InfinityBits(dtype), sign = uint64_t{1} << (8 * bytes - 1);
  lex_.Take();
  // The highest bit below those of infinity makes a NaN quiet.
  if (!lex_.Accept("(")) return infinity | (infinity & -infinity) >> 1;
  Token hex = lex_.Expect(Token::kNumber, "the bits of a NaN as 0x...");
  std::optional<uint64_t> bits;
  if (hex.raw.starts_with("0x")) bits = ParseNumber<uint64_t>(hex.raw.substr(2), 16);
  const bool fits = bits && *bits >> (8 * bytes - 1) <= 1;
  if (!fits || (*bits & ~sign) <= infinity) lex_.Unexpected(hex, "the bits of a NaN as 0x...");
  lex_.Expect(")");
  return *bits;
}

template <typename T>
T LiteralParser::Number() {
  Token token = lex_.Take();
  std::optional<T> value;
  if (token.kind == Token::kNumber || (token.kind == Token::kWord && token.raw == "inf")) {
    value = ParseNumber<T>(token.raw);
  }
  if (!value) lex_.Unexpected(token, "a number that its type can hold");
  return *value;
}

void LiteralParser::Element(DType dtype, std::vector<std::byte>& out) {
  if (IsFloat(dtype) && PeekNan()) {
    uint64_t bits = NanBits(dtype);
    const auto* bytes = reinterpret_cast<const std::byte*>(&bits);  // little endian
    out.insert(out.end(), bytes, bytes + DTypeSize(dtype));
    return;
  }
  switch (dtype) {
    case DType::kF32:
      return Append(out, Number<float>());
    case DType::kF64:
      return Append(out, Number<double>());
    case DType::kF16:
      return Append(out, FloatToHalf(Number<float>()));
    case DType::kBF16:
      return Append(out, FloatToBFloat16(Number<float>()));
    case DType::kI32: {
      Token at = lex_.Peek();
      int64_t value = lex_.ExpectInt("an integer");
      if (value != static_cast<int32_t>(value)) lex_.Unexpected(at, "an integer of 32 bits");
      return Append(out, static_cast<int32_t>(value));
    }
    case DType::kI64:
      return Append(out, lex_.ExpectInt("an integer"));
    case DType::kBool:
      return Append(out, static_cast<uint8_t>(Bool()));
  }
}

TensorPtr LiteralParser::Tensor() {
  lex_.ExpectWord("tensor");
  lex_.Expect("<");
  DType dtype = ElementType();
  Shape shape;
  Token dims = lex_.Peek();
  List(lex_, [&] { shape.push_back(Dim()); });
  if (TooLarge(dtype, shape)) lex_.Fail(dims, "the tensor is too large");
  lex_.Expect(":");
  Token at = lex_.Peek();
  int64_t bytes = NumElements(shape) * DTypeSize(dtype);
  bool splat = at.kind == Token::kWord && at.raw == "splat";
  std::vector<std::byte> data;
  if (splat) {
    lex_.Take();
    lex_.Expect("(");
    Element(dtype, data);
    lex_.Expect(")");
    if (bytes > kMaxSplatBytes - splat_bytes_) {
      lex_.Fail(at, "the constants of the text have more than 4 GiB");
    }
    splat_bytes_ += bytes;
  } else {
    data = Elements(dtype, static_cast<size_t>(NumElements(shape)));
  }
  lex_.Expect(">");
  auto tensor = std::make_shared<HostTensor>(dtype, std::move(shape));
  for (size_t i = 0; i < static_cast<size_t>(bytes); i += data.size()) {
    std::memcpy(tensor->raw() + i, data.data(), data.size());
  }
  return tensor;
}

// A list of elements, or their bytes in hex.
std::vector<std::byte> LiteralParser::Elements(DType dtype, size_t count) {
  std::vector<std::byte> data;
  Token first = lex_.Peek();
  size_t element = static_cast<size_t>(DTypeSize(dtype));
  if (first.kind == Token::kNumber && first.raw.starts_with("0x")) {
    lex_.Take();
    std::string_view hex = first.raw.substr(2);
    data.reserve(hex.size() / 2);
    for (size_t i = 0; i + 1 < hex.size(); i += 2) {
      int high = HexDigit(hex[i]), low = HexDigit(hex[i + 1]);
      if (high < 0 || low < 0) lex_.Fail(first, "the data has a character that is not hex");
      if (dtype == DType::kBool && 16 * high + low > 1) {
        lex_.Fail(first, "a bool in the data is neither 00 nor 01");
      }
      data.push_back(static_cast<std::byte>(16 * high + low));
    }
    if (hex.size() / 2 != count * element || hex.size() % 2 != 0) {
      lex_.Fail(first, StrCat(hex.size(), " hex digits for ", count, " elements, expected ",
                              2 * count * element));
    }
    return data;
  }
  while (!lex_.PeekIs(">")) {
    Token at = lex_.Peek();
    if (data.size() == count * element) {
      lex_.Fail(at, StrCat("more than the ", count, " elements of the shape"));
    }
    Element(dtype, data);
    if (!lex_.Accept(",")) break;
  }
  if (data.size() != count * element) {
    lex_.Unexpected(lex_.Peek(), StrCat(count, " elements, not ", data.size() / element));
  }
  return data;
}

}  // namespace shardc
