// The check of options that take a seed.
#pragma once

#include <charconv>
#include <string>
#include <system_error>

namespace shardc {

// Empty where the text is a whole number that T holds, else what is wrong: CLI11 takes numbers that
// are too large, or negative ones where T has none, for others.
template <typename T>
std::string IsSeed(const std::string& text) {
  T seed;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, seed);
  return read.ec == std::errc() && read.ptr == end ? "" : text + " is no seed";
}

}  // namespace shardc
