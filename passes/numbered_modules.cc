#include "passes/numbered_modules.h"

#include <algorithm>
#include <map>
#include <string_view>

namespace shardc {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// The path up to its number `which`, counted from 0; empty where there are fewer.
std::string_view UpToNumber(std::string_view path, size_t which) {
  for (size_t end = 0; end <= path.size(); ++end) {
    const bool ends = end == path.size() || path[end] == '.';
    if (!ends || end == 0 || !IsDigit(path[end - 1])) continue;
    if (which-- == 0) return path.substr(0, end);
  }
  return {};
}

std::string_view WithoutNumber(std::string_view path) {
  while (!path.empty() && IsDigit(path.back())) path.remove_suffix(1);
  return path;
}

void Find(const std::vector<std::string>& modules, const std::function<bool(size_t, size_t)>& fits,
          size_t begin, size_t end, size_t which, std::vector<NumberedStretch>& found) {
  auto member = [&](size_t step) { return UpToNumber(modules[step], which); };
  std::vector<NumberedStretch> members;
  std::map<std::string_view, size_t> size;  // by list
  bool numbered = false;
  for (size_t from = begin, to = from; from < end; from = to) {
    while (to < end && member(to) == member(from)) ++to;
    if (member(from).empty()) continue;
    numbered = true;
    if (!fits(from, to)) continue;
    members.push_back({from, to, 0});
    ++size[WithoutNumber(member(from))];
  }
  if (!numbered) return;
  for (NumberedStretch& s : members) s.members = size[WithoutNumber(member(s.from))];
  std::erase_if(members, [](const NumberedStretch& s) { return s.members < 2; });
  for (const NumberedStretch& s : members) {
    Find(modules, fits, begin, s.from, which + 1, found);
    found.push_back(s);
    begin = s.to;
  }
  Find(modules, fits, begin, end, which + 1, found);
}

}  // namespace

std::vector<NumberedStretch> NumberedStretches(const std::vector<std::string>& modules,
                                               const std::function<bool(size_t, size_t)>& fits) {
  std::vector<NumberedStretch> found;
  Find(modules, fits, 0, modules.size(), 0, found);
  return found;
}

}  // namespace shardc
