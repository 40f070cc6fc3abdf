// The whole of a text as a number.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace shardc {

// As std::from_chars takes it, which knows neither spaces nor a plus; nothing where the text is
// something else, or a number that T does not hold. `base`: of an integer, if not 10.
template <typename T, typename... Base>
std::optional<T> ParseNumber(std::string_view text, Base... base) {
  T value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value, base...);
  return error == std::errc() && at == end ? std::optional(value) : std::nullopt;
}

}  // namespace shardc
