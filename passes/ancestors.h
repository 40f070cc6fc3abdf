// A tree, and where the ways from two of its nodes up to the root meet.
#pragma once

#include <cstddef>
#include <vector>

namespace shardc {

// Each node has one above it that is far away, so that a way up takes few steps (Myers, "An
// applicative random-access stack", 1983).
class Ancestors {
 public:
  // Of nodes 0 ... `nodes` - 1, none of which is in the tree yet.
  explicit Ancestors(size_t nodes);

  int root() const { return static_cast<int>(depth_.size()) - 1; }
  // Once for each node; the parent is the root, or in the tree.
  void Add(int node, int parent);
  // The first node that is above both or one of them itself; both are in the tree.
  int Meet(int a, int b) const;

 private:
  std::vector<int> depth_, parent_, far_;
};

}  // namespace shardc
