#include "passes/numbered_modules.h"

#include <algorithm>
#include <map>
#include <string_view>

namespace shardc {
namespace {

using Stretch = std::pair<size_t, size_t>;

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
          Stretch of, size_t which, std::vector<Stretch>& found) {
  auto member = [&](size_t step) { return UpToNumber(modules[step], which); };
  std::vector<Stretch> members;
  std::map<std::string_view, int> size;  // by list
  bool numbered = false;
  for (size_t from = of.first, to = from; from < of.second; from = to) {
    while (to < of.second && member(to) == member(from)) ++to;
    if (member(from).empty()) continue;
    numbered = true;
    if (!fits(from, to)) continue;
    members.emplace_back(from, to);
    ++size[WithoutNumber(member(from))];
  }
  if (!numbered) return;
  std::erase_if(members,
                [&](const Stretch& s) { return size[WithoutNumber(member(s.first))] < 2; });
  size_t at = of.first;
  for (const Stretch& s : members) {
    Find(modules, fits, {at, s.first}, which + 1, found);
    found.push_back(s);
    at = s.second;
  }
  Find(modules, fits, {at, of.second}, which + 1, found);
}

}  // namespace

std::vector<Stretch> NumberedStretches(const std::vector<std::string>& modules,
                                       const std::function<bool(size_t, size_t)>& fits) {
  std::vector<Stretch> found;
  Find(modules, fits, {0, modules.size()}, 0, found);
  return found;
}

}  // namespace shardc
