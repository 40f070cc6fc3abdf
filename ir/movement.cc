#include "ir/movement.h"

#include <algorithm>

#include "ir/diagnostic.h"

namespace shardc {
namespace {

class MovementCheck {
 public:
  MovementCheck(const Op& op, const Mesh& mesh)
      : moves_(*op.def->moves), attrs_(op.attrs), mesh_(mesh) {}

  std::optional<std::string> Run(const TensorType& from, const TensorType& to) {
    for (const std::string& name : attrs_.StringList("axes")) {
      const auto axis = mesh_.FindAxis(name);
      if (!axis) return StrCat("the mesh has no axis '", name, "'");
      if (axes_.contains(*axis)) return StrCat("names axis '", name, "' twice");
      if (mesh_.axis_size(*axis) > 1) axes_.push_back(*axis);
    }
    const auto before = Without(from, moves_.from), after = Without(to, moves_.to);
    if (!before) return Wanted("operand", from, moves_.from);
    if (!after) return Wanted("result", to, moves_.to);
    if (*before == *after) return std::nullopt;
    return StrCat("its operand ", TypeToString(from, mesh_), " and its result ",
                  TypeToString(to, mesh_), " differ in more than ", Names());
  }

 private:
  int64_t Dim(const Lies& lies) const { return attrs_.Int(lies.dim); }

  // How the tensor lies over the other axes; nothing where it does not lie so over these.
  std::optional<Sharding> Without(TensorType type, const Lies& lies) const {
    type.sharding = Canonical(type, mesh_);
    Sharding& s = type.sharding;
    if (lies.kind == Lies::kCut) {
      const auto d = static_cast<size_t>(Dim(lies));
      const std::vector<int> cut = s.dims[d].axes.ToVector(), axes = axes_.ToVector();
      if (cut.size() < axes.size() || !std::equal(axes.rbegin(), axes.rend(), cut.rbegin())) {
        return std::nullopt;
      }
      const auto left = static_cast<int>(cut.size() - axes.size());
      s.dims[d] = FirstAxes(type.shape[d], s.dims[d], left, mesh_);
    } else if (lies.kind == Lies::kPartial) {
      AxisList& partial = IsMax() ? s.partial_max : s.partial_sum;
      for (int a : axes_) {
        if (!partial.contains(a)) return std::nullopt;
        partial.erase(a);
      }
    }
    const bool more = std::any_of(axes_.begin(), axes_.end(), [&](int a) { return s.Uses(a); });
    return more ? std::nullopt : std::optional(s);
  }

  bool IsMax() const { return attrs_.String("reduce", "sum") == "max"; }
  std::string Names() const { return Join(mesh_.Names(axes_), ","); }

  std::string Wanted(std::string_view what, const TensorType& type, const Lies& lies) const {
    const std::string how = lies.kind == Lies::kWhole ? "be whole over "
                            : lies.kind == Lies::kPartial
                                ? IsMax() ? "be a partial maximum over " : "be a partial sum over "
                                : StrCat("have dim ", Dim(lies), " cut, behind other axes, by ");
    return StrCat("its ", what, " has to ", how, Names(), ", and is ", TypeToString(type, mesh_));
  }

  const Movement& moves_;
  const Attributes& attrs_;
  const Mesh& mesh_;
  AxisList axes_;
};

}  // namespace

std::optional<std::string> WrongMovement(const Op& op, const Mesh& mesh) {
  if (!op.def->moves) return std::nullopt;
  for (size_t i = 0; i < op.operands.size(); ++i) {
    const auto n = static_cast<int>(i);
    if (auto wrong = MovementCheck(op, mesh).Run(op.in(n), op.out(n))) return wrong;
  }
  return std::nullopt;
}

}  // namespace shardc
