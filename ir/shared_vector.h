// A vector whose copies hold the same elements once, until one of them is changed.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

namespace shardc {

// As std::vector, of which it has what is used. Copying is free; what is not const first takes the
// elements for this copy alone, so a reference or iterator into it holds until the next copy is
// made. Several threads may read one, or copies; none may change a copy while others come or go.
template <typename T>
class SharedVector {
 public:
  using value_type = T;
  using const_iterator = typename std::vector<T>::const_iterator;
  using iterator = typename std::vector<T>::iterator;

  SharedVector() = default;
  SharedVector(std::vector<T> items) : items_(std::make_shared<std::vector<T>>(std::move(items))) {}
  SharedVector(std::initializer_list<T> items) : SharedVector(std::vector<T>(items)) {}

  const std::vector<T>& get() const {
    static const std::vector<T> none;
    return items_ ? *items_ : none;
  }
  operator const std::vector<T>&() const { return get(); }
  // For this copy alone.
  std::vector<T>& own() {
    if (!items_) {
      items_ = std::make_shared<std::vector<T>>();
    } else if (items_.use_count() != 1) {
      items_ = std::make_shared<std::vector<T>>(*items_);
    }
    return *items_;
  }
  // Whether both are copies of one that has not changed since.
  bool SharesWith(const SharedVector& other) const { return items_ == other.items_; }

  size_t size() const { return get().size(); }
  bool empty() const { return get().empty(); }
  const T& operator[](size_t i) const { return get()[i]; }
  const T& front() const { return get().front(); }
  const T& back() const { return get().back(); }
  const T* data() const { return get().data(); }
  const_iterator begin() const { return get().begin(); }
  const_iterator end() const { return get().end(); }

  T& operator[](size_t i) { return own()[i]; }
  T& front() { return own().front(); }
  T& back() { return own().back(); }
  T* data() { return own().data(); }
  iterator begin() { return own().begin(); }
  iterator end() { return own().end(); }
  template <typename... Args>
  void assign(Args&&... args) {
    own().assign(std::forward<Args>(args)...);
  }
  void clear() { own().clear(); }
  void reserve(size_t n) { own().reserve(n); }
  void resize(size_t n) { own().resize(n); }
  void push_back(T item) { own().push_back(std::move(item)); }
  void pop_back() { own().pop_back(); }
  template <typename... Args>
  T& emplace_back(Args&&... args) {
    return own().emplace_back(std::forward<Args>(args)...);
  }
  template <typename... Args>
  iterator insert(const_iterator at, Args&&... args) {
    return own().insert(at, std::forward<Args>(args)...);
  }
  iterator erase(const_iterator at) { return own().erase(at); }
  iterator erase(const_iterator first, const_iterator last) { return own().erase(first, last); }

  friend bool operator==(const SharedVector& a, const SharedVector& b) {
    return a.SharesWith(b) || a.get() == b.get();
  }

 private:
  std::shared_ptr<std::vector<T>> items_;
};

}  // namespace shardc
