#pragma once

#include <algorithm>

namespace shardc {

// std::ranges::contains of C++23.
template <typename Range, typename T>
bool Contains(const Range& range, const T& value) {
  return std::find(range.begin(), range.end(), value) != range.end();
}

}  // namespace shardc
