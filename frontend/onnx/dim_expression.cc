#include "frontend/onnx/dim_expression.h"

#include <cctype>

#include "ir/parse_number.h"

namespace shardc::onnx_import {
namespace {

using SizeOf = std::function<std::optional<int64_t>(const std::string&)>;
constexpr int kMaxDepth = 100;

class Evaluator {
 public:
  Evaluator(const std::string& text, const SizeOf& size) : text_(text), size_(size) {}

  std::optional<int64_t> Run() {
    std::optional<int64_t> value = Sum();
    SkipSpace();
    return at_ == text_.size() ? value : std::nullopt;
  }

 private:
  void SkipSpace() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }

  bool Take(char c) {
    SkipSpace();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  std::optional<int64_t> Sum() {
    std::optional<int64_t> value = Product();
    while (value) {
      const bool plus = Take('+');
      if (!plus && !Take('-')) break;
      std::optional<int64_t> term = Product();
      int64_t sum = 0;
      if (!term || (plus ? __builtin_add_overflow(*value, *term, &sum)
                         : __builtin_sub_overflow(*value, *term, &sum))) {
        return std::nullopt;
      }
      value = sum;
    }
    return value;
  }

  std::optional<int64_t> Product() {
    std::optional<int64_t> value = Factor();
    while (value && Take('*')) {
      std::optional<int64_t> factor = Factor();
      int64_t product = 0;
      if (!factor || __builtin_mul_overflow(*value, *factor, &product)) return std::nullopt;
      value = product;
    }
    return value;
  }

  std::optional<int64_t> Factor() {
    if (Take('(')) {
      if (++depth_ > kMaxDepth) return std::nullopt;
      std::optional<int64_t> value = Sum();
      --depth_;
      return Take(')') ? value : std::nullopt;
    }
    SkipSpace();
    const size_t start = at_;
    auto in_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
    while (at_ < text_.size() && in_word(text_[at_])) ++at_;
    const std::string word = text_.substr(start, at_ - start);
    if (word.empty()) return std::nullopt;
    if (!std::isdigit(static_cast<unsigned char>(word[0]))) return size_(word);
    return ParseNumber<int64_t>(word);
  }

  const std::string& text_;
  const SizeOf& size_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

std::optional<int64_t> EvaluateDim(const std::string& text, const SizeOf& size) {
  return Evaluator(text, size).Run();
}

std::set<std::string> SymbolsIn(const std::string& text) {
  std::set<std::string> names;
  bool expression = EvaluateDim(text, [&](const std::string& name) {
                      names.insert(name);
                      return std::optional<int64_t>(1);
                    }).has_value();
  return expression ? names : std::set<std::string>();
}

}  // namespace shardc::onnx_import
