// The device mesh: ordered named axes; ranks are row-major, the last axis fastest.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardc {

struct MeshAxis {
  std::string name;
  int64_t size = 1;
  bool operator==(const MeshAxis&) const = default;
};

class Mesh {
 public:
  Mesh() = default;
  // Throws Diagnostic E2001 on a repeated name or one that is not made of letters, digits, _ and .,
  // a size < 1, more than 16 axes, more than 7 of several ranks (AxisList::kMax) or 2^20 ranks.
  explicit Mesh(std::vector<MeshAxis> axes);
  // "pp=4,dp=2,tp=2"; empty text is the mesh of one rank. Throws Diagnostic E2001.
  static Mesh Parse(std::string_view text);

  const std::vector<MeshAxis>& axes() const { return axes_; }
  int num_axes() const { return static_cast<int>(axes_.size()); }
  int64_t num_ranks() const { return num_ranks_; }
  int64_t axis_size(int axis) const { return axes_[axis].size; }
  std::optional<int> FindAxis(std::string_view name) const;
  std::vector<std::string> Names() const;
  template <typename Axes>
  std::vector<std::string> Names(const Axes& axes) const {
    std::vector<std::string> names;
    for (int a : axes) names.push_back(axes_[a].name);
    return names;
  }

  // Coordinate of `rank` along `axis`.
  int64_t Coordinate(int64_t rank, int axis) const;
  // Index of `rank` within its group over `axes` (major to minor in the order given).
  int64_t GroupIndex(int64_t rank, const std::vector<int>& axes) const;
  int64_t GroupSize(const std::vector<int>& axes) const;
  // The ranks that differ from `rank` only along `axes`, in GroupIndex order.
  std::vector<int> Group(int64_t rank, const std::vector<int>& axes) const;
  // All groups over `axes`, each in GroupIndex order, ordered by their first rank.
  std::vector<std::vector<int>> Groups(const std::vector<int>& axes) const;

  std::string ToString() const;  // "pp=4,dp=2,tp=2"
  bool operator==(const Mesh& o) const { return axes_ == o.axes_; }

 private:
  std::vector<MeshAxis> axes_;
  std::vector<int64_t> strides_;
  int64_t num_ranks_ = 1;
};

}  // namespace shardc
