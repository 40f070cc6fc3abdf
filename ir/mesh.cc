#include "ir/mesh.h"

#include <algorithm>

#include "ir/diagnostic.h"
#include "ir/parse_number.h"
#include "ir/sharding.h"

namespace shardc {
namespace {
constexpr int64_t kMaxRanks = int64_t{1} << 20;
constexpr size_t kMaxAxes = 16;

Diagnostic BadMesh(std::string what) {
  return Diagnostic("E2001", ExitCode::kBadSpec, "mesh", std::move(what),
                    "write axes as name=size, major to minor, e.g. --mesh dp=2,tp=4");
}
}  // namespace

Mesh::Mesh(std::vector<MeshAxis> axes) : axes_(std::move(axes)) {
  if (axes_.size() > kMaxAxes) throw BadMesh("more than 16 axes");
  for (size_t i = 0; i < axes_.size(); ++i) {
    const MeshAxis& a = axes_[i];
    if (a.name.empty()) throw BadMesh("an axis has no name");
    for (char c : a.name) {
      if (!isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '.') {
        throw BadMesh(StrCat("'", a.name, "' is not a name; letters, digits, _ and . make one"));
      }
    }
    if (a.size < 1) throw BadMesh(StrCat("axis '", a.name, "' has size ", a.size));
    if (a.size > kMaxRanks || num_ranks_ * a.size > kMaxRanks) {
      throw BadMesh(StrCat("more than ", kMaxRanks, " ranks"));
    }
    for (size_t j = 0; j < i; ++j) {
      if (axes_[j].name == a.name) throw BadMesh(StrCat("axis '", a.name, "' appears twice"));
    }
    num_ranks_ *= a.size;
  }
  const auto several = std::ranges::count_if(axes_, [](const MeshAxis& a) { return a.size > 1; });
  if (several > AxisList::kMax) {
    throw Diagnostic("E2001", ExitCode::kBadSpec, "mesh",
                     StrCat(ToString(), " has ", several,
                            " axes of more than one rank, and a tensor is cut over ",
                            int{AxisList::kMax}, " at most"),
                     "join axes that cut the same tensors: a=2,b=2 to a=4");
  }
  strides_.resize(axes_.size());
  int64_t stride = 1;
  for (size_t i = axes_.size(); i-- > 0;) {
    strides_[i] = stride;
    stride *= axes_[i].size;
  }
}

Mesh Mesh::Parse(std::string_view text) {
  std::vector<MeshAxis> axes;
  while (!text.empty()) {
    size_t comma = text.find(',');
    std::string_view item = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    size_t eq = item.find('=');
    if (eq == std::string_view::npos) throw BadMesh(StrCat("'", item, "' is not name=size"));
    std::string_view name = item.substr(0, eq), size = item.substr(eq + 1);
    const std::optional<int64_t> n = ParseNumber<int64_t>(size);
    if (!n) throw BadMesh(StrCat("'", size, "' is not a size of axis '", name, "'"));
    axes.push_back({std::string(name), *n});
    if (comma != std::string_view::npos && text.empty()) throw BadMesh("ends with a comma");
  }
  return Mesh(std::move(axes));
}

std::optional<int> Mesh::FindAxis(std::string_view name) const {
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].name == name) return static_cast<int>(i);
  }
  return std::nullopt;
}

int64_t Mesh::Coordinate(int64_t rank, int axis) const {
  return rank / strides_[axis] % axes_[axis].size;
}

int64_t Mesh::GroupIndex(int64_t rank, const std::vector<int>& axes) const {
  int64_t index = 0;
  for (int a : axes) index = index * axes_[a].size + Coordinate(rank, a);
  return index;
}

int64_t Mesh::GroupSize(const std::vector<int>& axes) const {
  int64_t size = 1;
  for (int a : axes) size *= axes_[a].size;
  return size;
}

std::vector<int> Mesh::Group(int64_t rank, const std::vector<int>& axes) const {
  int64_t base = rank;
  for (int a : axes) base -= Coordinate(rank, a) * strides_[a];
  std::vector<int> group = {static_cast<int>(base)};
  for (int a : axes) {
    std::vector<int> wider;
    wider.reserve(group.size() * axes_[a].size);
    for (int r : group) {
      for (int64_t i = 0; i < axes_[a].size; ++i) {
        wider.push_back(r + static_cast<int>(i * strides_[a]));
      }
    }
    group = std::move(wider);
  }
  return group;
}

std::vector<std::vector<int>> Mesh::Groups(const std::vector<int>& axes) const {
  std::vector<std::vector<int>> groups;
  for (int64_t r = 0; r < num_ranks_; ++r) {
    if (GroupIndex(r, axes) == 0) groups.push_back(Group(r, axes));
  }
  return groups;
}

std::vector<std::string> Mesh::Names() const {
  std::vector<std::string> names;
  for (const MeshAxis& a : axes_) names.push_back(a.name);
  return names;
}

std::string Mesh::ToString() const {
  std::string out;
  for (const MeshAxis& a : axes_)
    out += (out.empty() ? "" : ",") + a.name + "=" + std::to_string(a.size);
  return out;
}

}  // namespace shardc
