// The check of options that take a seed.
#pragma once

#include <string>

#include "ir/parse_number.h"

namespace shardc {

// Empty where the text is a whole number that T holds, else what is wrong: CLI11 takes numbers that
// are too large, or negative ones where T has none, for others.
template <typename T>
std::string IsSeed(const std::string& text) {
  return ParseNumber<T>(text) ? "" : text + " is no seed";
}

}  // namespace shardc
