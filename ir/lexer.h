// Tokens of the text form of graphs, with places for messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shardc {

struct Token {
  enum Kind {
    kEnd,
    kWord,    // letters, digits, "_" and ".", not beginning with a digit
    kNumber,  // 12, -3, 1e-05, -inf, 0x00ff; also a word that begins with a digit
    kString,  // "..."
    kValue,   // %name or %"name": text() is the name
    kSymbol,  // one character, or "->"
  };
  Kind kind = kEnd;
  std::string_view raw;  // as in the source
  std::string unescaped;
  bool quoted = false;  // text() comes from a quoted string
  int line = 1, column = 1;

  std::string_view text() const {
    return quoted ? std::string_view(unescaped) : raw.substr(kind == kValue ? 1 : 0);
  }
};

// Reads one token ahead. `text` must outlive the lexer and its tokens.
class Lexer {
 public:
  Lexer(std::string_view text, std::string file);

  const Token& Peek() const { return next_; }
  Token Take();

  bool PeekIs(std::string_view symbol) const {
    return next_.kind == Token::kSymbol && next_.raw == symbol;
  }
  bool PeekIs(Token::Kind kind) const { return next_.kind == kind; }
  // Takes the symbol if it comes next.
  bool Accept(std::string_view symbol);
  // These throw Diagnostic E7001 if something else comes next.
  void Expect(std::string_view symbol);
  void ExpectWord(std::string_view word);
  Token Expect(Token::Kind kind, std::string_view expected);
  int64_t ExpectInt(std::string_view expected);

  std::string Where(const Token& token) const;  // "file:3:14"
  // Throw Diagnostic E7001 there.
  [[noreturn]] void Fail(const Token& at, std::string what, std::string fix = {}) const;
  [[noreturn]] void Unexpected(const Token& found, std::string_view expected) const;

 private:
  void Advance();
  void SkipSpace();
  void LexQuoted(Token& token);
  void LexNumber();
  char At(size_t offset) const { return at_ + offset < text_.size() ? text_[at_ + offset] : '\0'; }

  std::string_view text_;
  std::string file_;
  size_t at_ = 0, line_start_ = 0;
  int line_ = 1;
  Token next_;
};

}  // namespace shardc
