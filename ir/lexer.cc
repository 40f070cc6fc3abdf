#include "ir/lexer.h"

#include <algorithm>

#include "ir/diagnostic.h"
#include "ir/parse_number.h"

namespace shardc {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

bool IsWordChar(char c) {
  return IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '.';
}

int HexDigit(char c) {
  if (IsDigit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

Lexer::Lexer(std::string_view text, std::string file) : text_(text), file_(std::move(file)) {
  Advance();
}

Token Lexer::Take() {
  Token token = std::move(next_);
  Advance();
  return token;
}

bool Lexer::Accept(std::string_view symbol) {
  if (!PeekIs(symbol)) return false;
  Advance();
  return true;
}

void Lexer::Expect(std::string_view symbol) {
  if (!Accept(symbol)) Unexpected(next_, StrCat("'", symbol, "'"));
}

void Lexer::ExpectWord(std::string_view word) {
  if (!PeekIs(Token::kWord) || next_.raw != word) Unexpected(next_, StrCat("'", word, "'"));
  Advance();
}

Token Lexer::Expect(Token::Kind kind, std::string_view expected) {
  if (!PeekIs(kind)) Unexpected(next_, expected);
  return Take();
}

int64_t Lexer::ExpectInt(std::string_view expected) {
  std::optional<int64_t> value;
  if (PeekIs(Token::kNumber)) value = ParseNumber<int64_t>(next_.raw);
  if (!value) Unexpected(next_, expected);
  Advance();
  return *value;
}

std::string Lexer::Where(const Token& token) const {
  return StrCat(file_, ":", token.line, ":", token.column);
}

void Lexer::Fail(const Token& at, std::string what, std::string fix) const {
  throw Diagnostic("E7001", ExitCode::kBadModel, Where(at), std::move(what), std::move(fix));
}

void Lexer::Unexpected(const Token& found, std::string_view expected) const {
  std::string what = "found ";
  if (found.kind == Token::kEnd) {
    what += "the end of the text";
  } else if (found.raw.size() > 40) {
    what += StrCat("'", found.raw.substr(0, 40), "...'");
  } else {
    what += StrCat("'", found.raw, "'");
  }
  Fail(found, StrCat(what, ", expected ", expected));
}

void Lexer::SkipSpace() {
  for (;;) {
    char c = At(0);
    if (at_ >= text_.size()) return;
    if (c == '\n') {
      ++at_;
      ++line_;
      line_start_ = at_;
    } else if (c == ' ' || c == '\t' || c == '\r') {
      ++at_;
    } else if (c == '/' && At(1) == '/') {
      at_ = std::min(text_.find('\n', at_), text_.size());
    } else {
      return;
    }
  }
}

void Lexer::Advance() {
  SkipSpace();
  next_ = Token();
  next_.line = line_;
  next_.column = static_cast<int>(at_ - line_start_) + 1;
  if (at_ >= text_.size()) return;
  size_t start = at_;
  char c = At(0);
  if (c == '"') {
    next_.kind = Token::kString;
    LexQuoted(next_);
  } else if (c == '%') {
    next_.kind = Token::kValue;
    ++at_;
    if (At(0) == '"') {
      LexQuoted(next_);
    } else {
      while (IsWordChar(At(0))) ++at_;
      if (at_ == start + 1) Fail(next_, "'%' without a name", "write %name or %\"any name\"");
    }
  } else if (IsDigit(c) || (c == '-' && (IsDigit(At(1)) || At(1) == 'i' || At(1) == '.'))) {
    next_.kind = Token::kNumber;
    LexNumber();
  } else if (IsWordChar(c)) {
    next_.kind = Token::kWord;
    while (IsWordChar(At(0))) ++at_;
  } else if (std::string_view("()[]{}<>=,:@/").find(c) != std::string_view::npos ||
             (c == '-' && At(1) == '>')) {
    next_.kind = Token::kSymbol;
    at_ += c == '-' ? 2 : 1;
  } else {
    bool printable = c > ' ' && c < 0x7f;
    Fail(next_, printable ? StrCat("a stray '", c, "'") : "a character that cannot be here");
  }
  next_.raw = text_.substr(start, at_ - start);
}

void Lexer::LexNumber() {
  size_t start = at_++;
  bool hex = text_[start] == '0' && At(0) == 'x';
  for (;; ++at_) {
    char c = At(0), before = text_[at_ - 1];
    bool exponent = !hex && (c == '-' || c == '+') && (before == 'e' || before == 'E');
    if (!IsWordChar(c) && !exponent) return;
  }
}

void Lexer::LexQuoted(Token& token) {
  token.quoted = true;
  ++at_;
  for (;; ++at_) {
    char c = At(0);
    if (at_ >= text_.size() || c == '\n') Fail(token, "the string has no closing '\"'");
    if (c == '"') break;
    if (c != '\\') {
      token.unescaped += c;
      continue;
    }
    char escaped = At(1);
    ++at_;
    if (escaped == 'n') {
      token.unescaped += '\n';
    } else if (escaped == 't') {
      token.unescaped += '\t';
    } else if (escaped == '"' || escaped == '\\') {
      token.unescaped += escaped;
    } else if (int high = HexDigit(At(1)), low = HexDigit(At(2));
               escaped == 'x' && high >= 0 && low >= 0) {
      token.unescaped += static_cast<char>(16 * high + low);
      at_ += 2;
    } else {
      Fail(token, "the string has an unknown escape",
           "the escapes are \\\" \\\\ \\n \\t and \\xHH");
    }
  }
  ++at_;
}

}  // namespace shardc
