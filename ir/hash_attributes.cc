#include "ir/hash_attributes.h"

#include <functional>
#include <string_view>
#include <variant>

#include "ir/host_tensor.h"

namespace shardc {
namespace {

template <typename T>
size_t Hash(const T& value) {
  return std::hash<T>()(value);
}

template <typename T>
size_t Hash(const std::vector<T>& list) {
  size_t hash = list.size();
  for (const T& value : list) hash = CombinedHash(hash, Hash(value));
  return hash;
}

size_t Hash(const TensorPtr& tensor) {
  const auto* data = reinterpret_cast<const char*>(tensor->raw());
  return Hash(std::string_view(data, static_cast<size_t>(tensor->bytes())));
}

}  // namespace

size_t CombinedHash(size_t first, size_t second) {
  return first ^ (second + 0x9e3779b97f4a7c15 + (first << 6) + (first >> 2));
}

size_t HashOf(const Attributes& attrs) {
  size_t hash = 0;
  for (const auto& [name, attribute] : attrs.entries()) {
    const size_t value = std::visit([](const auto& v) { return Hash(v); }, attribute);
    hash = CombinedHash(CombinedHash(hash, Hash(name)), value);
  }
  return hash;
}

}  // namespace shardc
