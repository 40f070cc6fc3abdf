#include "ir/attributes.h"

#include <algorithm>

namespace shardc {
namespace {
template <typename Entries>
auto LowerBound(Entries& entries, std::string_view name) {
  return std::lower_bound(entries.begin(), entries.end(), name,
                          [](const auto& e, std::string_view n) { return e.first < n; });
}
}  // namespace

void Attributes::Set(std::string_view name, Attribute value) {
  auto it = LowerBound(entries_, name);
  if (it != entries_.end() && it->first == name) {
    it->second = std::move(value);
  } else {
    entries_.emplace(it, std::string(name), std::move(value));
  }
}

void Attributes::Erase(std::string_view name) {
  auto it = LowerBound(entries_, name);
  if (it != entries_.end() && it->first == name) entries_.erase(it);
}

const Attribute* Attributes::Find(std::string_view name) const {
  auto it = LowerBound(entries_, name);
  return it != entries_.end() && it->first == name ? &it->second : nullptr;
}

bool Attributes::operator==(const Attributes& o) const {
  return std::equal(entries_.begin(), entries_.end(), o.entries_.begin(), o.entries_.end(),
                    [](const Entry& a, const Entry& b) {
                      if (a.first != b.first || a.second.index() != b.second.index()) return false;
                      if (auto* t = std::get_if<TensorPtr>(&a.second)) {
                        return *t == std::get<TensorPtr>(b.second) ||
                               **t == *std::get<TensorPtr>(b.second);
                      }
                      return a.second == b.second;
                    });
}

}  // namespace shardc
