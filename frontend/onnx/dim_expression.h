// Dims that exporters write as sums and products of symbols.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>

namespace shardc::onnx_import {

// The names in "past_sequence_length + 2*sequence"; none when the text is no such expression
// (integers, names, +, -, *, parentheses).
std::set<std::string> SymbolsIn(const std::string& text);

// Its value by that of each name; nothing when a name has none, the text is no such expression or
// the value is no int64.
std::optional<int64_t> EvaluateDim(
    const std::string& text, const std::function<std::optional<int64_t>(const std::string&)>& size);

}  // namespace shardc::onnx_import
