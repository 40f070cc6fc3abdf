#include "passes/ancestors.h"

#include <utility>

namespace shardc {

Ancestors::Ancestors(size_t nodes)
    : depth_(nodes + 1), parent_(nodes + 1, root()), far_(nodes + 1, root()) {}

void Ancestors::Add(int node, int parent) {
  const int far = far_[parent];
  const bool even = depth_[parent] - depth_[far] == depth_[far] - depth_[far_[far]];
  depth_[node] = depth_[parent] + 1;
  parent_[node] = parent;
  far_[node] = even ? far_[far] : parent;
}

int Ancestors::Meet(int a, int b) const {
  if (depth_[a] < depth_[b]) std::swap(a, b);
  while (depth_[a] > depth_[b]) a = depth_[far_[a]] >= depth_[b] ? far_[a] : parent_[a];
  while (a != b) {
    const bool above = far_[a] != far_[b];
    a = above ? far_[a] : parent_[a];
    b = above ? far_[b] : parent_[b];
  }
  return a;
}

}  // namespace shardc
