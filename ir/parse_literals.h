// Types and attribute values of the text form of graphs.
#pragma once

#include <string>
#include <string_view>

#include "ir/lexer.h"
#include "ir/op_def.h"

namespace shardc {

class LiteralParser {
 public:
  explicit LiteralParser(Lexer& lexer) : lex_(lexer) {}

  // "f32[8@dp, 2304@tp/3] partial(tp)", the inverse of TypeToString.
  TensorType Type(const Mesh& mesh);
  // A value of the kind that the op's definition gives the attribute.
  Attribute Value(AttrKind kind);

 private:
  DType ElementType();
  int64_t Dim();
  DimSharding Cut(int64_t size, const Mesh& mesh);
  std::vector<int64_t> Segments(int64_t size);
  void Axis(AxisList& axes, const Mesh& mesh);
  void Axes(AxisList& axes, const Mesh& mesh);  // up to and with ")"
  double Float();
  bool Bool();
  TensorPtr Tensor();
  std::vector<std::byte> Elements(DType dtype, size_t count);
  void Element(DType dtype, std::vector<std::byte>& out);
  bool PeekNan() const;
  uint64_t NanBits(DType dtype);
  template <typename T>
  T Number();

  Lexer& lex_;
  int64_t splat_bytes_ = 0;  // of all constants that are larger than their text
};

}  // namespace shardc
