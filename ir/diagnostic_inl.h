#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardc {

template <typename Range>
std::string DidYouMean(std::string_view name, const Range& candidates, size_t limit) {
  std::vector<std::pair<int, std::string>> near;
  for (const auto& c : candidates) {
    std::string text(c);
    int distance = EditDistance(name, text);
    if (distance * 2 <= static_cast<int>(std::max(text.size(), name.size()))) {
      near.emplace_back(distance, std::move(text));
    }
  }
  std::sort(near.begin(), near.end());
  std::string out;
  for (size_t i = 0; i < near.size() && i < limit; ++i) {
    out += (i == 0 ? "did you mean " : ", ") + ("'" + near[i].second + "'");
  }
  return out.empty() ? out : out + "?";
}

}  // namespace shardc
