// Named compile-time constants of an op.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "ir/host_tensor.h"

namespace shardc {

using Ints = std::vector<int64_t>;
using Strings = std::vector<std::string>;
// A type of its own: a variant of nothing but standard types and numbers is never without a value,
// thinks libstdc++ (also 14), and destroys one even after a copy that found no memory for it.
class TensorPtr : public std::shared_ptr<const HostTensor> {
 public:
  using shared_ptr::shared_ptr;
  TensorPtr(std::shared_ptr<const HostTensor> tensor) : shared_ptr(std::move(tensor)) {}
};

using Attribute = std::variant<int64_t, double, bool, std::string, Ints, Strings, TensorPtr>;

class Attributes {
 public:
  using Entry = std::pair<std::string, Attribute>;
  Attributes() = default;
  Attributes(std::initializer_list<Entry> entries) {
    for (const Entry& e : entries) Set(e.first, e.second);
  }

  // Keeps the entries sorted by name.
  void Set(std::string_view name, Attribute value);
  void Erase(std::string_view name);
  const Attribute* Find(std::string_view name) const;
  bool Has(std::string_view name) const { return Find(name) != nullptr; }

  // The getters without a default fail a CHECK when absent: the verifier has seen to it.
  int64_t Int(std::string_view name) const { return Get<int64_t>(name); }
  int64_t Int(std::string_view name, int64_t otherwise) const { return Get(name, otherwise); }
  double Float(std::string_view name) const { return Get<double>(name); }
  double Float(std::string_view name, double otherwise) const { return Get(name, otherwise); }
  bool Bool(std::string_view name, bool otherwise = false) const { return Get(name, otherwise); }
  const std::string& String(std::string_view name) const { return Get<std::string>(name); }
  std::string String(std::string_view name, std::string otherwise) const {
    return Get(name, std::move(otherwise));
  }
  const Ints& IntList(std::string_view name) const { return Get<Ints>(name); }
  Ints IntList(std::string_view name, Ints otherwise) const {
    return Get(name, std::move(otherwise));
  }
  const Strings& StringList(std::string_view name) const { return Get<Strings>(name); }
  Strings StringList(std::string_view name, Strings otherwise) const {
    return Get(name, std::move(otherwise));
  }
  const HostTensor& Tensor(std::string_view name) const { return *Get<TensorPtr>(name); }

  const std::vector<Entry>& entries() const { return entries_; }
  bool empty() const { return entries_.empty(); }
  // Equal by value, tensors too.
  bool operator==(const Attributes& o) const;

 private:
  template <typename T>
  const T& Get(std::string_view name) const {
    const Attribute* a = Find(name);
    SHARDC_CHECK(a && std::holds_alternative<T>(*a), "attribute ", name);
    return std::get<T>(*a);
  }
  template <typename T>
  T Get(std::string_view name, T otherwise) const {
    const Attribute* a = Find(name);
    return a ? std::get<T>(*a) : otherwise;
  }
  std::vector<Entry> entries_;
};

}  // namespace shardc
