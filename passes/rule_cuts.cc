#include "passes/rule_cuts.h"

#include <algorithm>

#include "ir/diagnostic.h"
#include "ir/op_def.h"

namespace shardc {

// Mesh index of an axis; nothing when it is declared in the spec and absent (size 1).
std::optional<int> RuleCuts::Axis(const SpecRule& rule, const std::string& name) const {
  if (auto a = graph_.mesh.FindAxis(name)) return a;
  for (const MeshAxis& a : spec_.mesh) {
    if (a.name == name) return std::nullopt;
  }
  const std::string guess = DidYouMean(name, graph_.mesh.Names());
  throw Diagnostic("E2104", ExitCode::kBadSpec, rule.where.ToString(),
                   graph_.mesh.num_axes() == 0
                       ? StrCat("axis '", name, "', and there is no mesh")
                       : StrCat("axis '", name, "' is not in the mesh ", graph_.mesh.ToString()),
                   StrCat("add it to --mesh, or declare it in the spec's mesh",
                          guess.empty() ? "" : "; ", guess));
}

Sharding RuleCuts::Cut(const SpecRule& rule, const Value* value, const CountedDims& counted,
                       const std::string& what) {
  const TensorType& type = value->type;
  const auto rank = static_cast<int>(counted.size());
  Sharding sharding(type.shape.size());
  for (const CutDim& cut : rule.cuts) {
    auto axis = Axis(rule, cut.axis);
    if (cut.dim < -rank || cut.dim >= rank) {
      throw Diagnostic(
          "E2103", ExitCode::kBadSpec, rule.where.ToString(),
          StrCat("dim ", cut.dim, " of ", what, ", which has the shape ",
                 ShapeToString(type.shape)),
          rank == 0 ? "a scalar cannot be cut; match less"
                    : StrCat("name a dim from ", -rank, " to ", rank - 1, ", or match less"));
    }
    if (!axis || graph_.mesh.axis_size(*axis) == 1) continue;
    const Ints& dims = counted[static_cast<size_t>(cut.dim < 0 ? cut.dim + rank : cut.dim)];
    const int64_t ranks = graph_.mesh.axis_size(*axis);
    if (IsTooFine(value, dims, ranks) || (!rule.role.empty() && IsShort(value, dims, ranks))) {
      StaysWhole(rule, cut, what, ranks);
      continue;
    }
    const auto dim = static_cast<size_t>(DimToCutOf(value, dims, ranks));
    DimSharding& d = sharding.dims[dim];
    if (!d.axes.empty() && d.axes.back() > *axis) {
      throw Diagnostic("E2105", ExitCode::kBadSpec, rule.where.ToString(),
                       StrCat("the axes of dim ", cut.dim, " of ", what,
                              " are not in the order of the mesh ", graph_.mesh.ToString()),
                       "list the axes of a dim in mesh order, or reorder --mesh");
    }
    if (d.axes.size() == AxisList::kMax) {
      throw Diagnostic("E2105", ExitCode::kBadSpec, rule.where.ToString(),
                       StrCat("dim ", cut.dim, " of ", what, " is cut over more than ",
                              int{AxisList::kMax}, " axes"),
                       "join axes of the mesh");
    }
    d.axes.push_back(*axis);
    if (cut.size > 0 && cut.size != type.shape[dim]) {
      throw Diagnostic("E2130", ExitCode::kBadSpec, rule.where.ToString(),
                       StrCat("dim ", cut.dim, " of ", what, " has ", type.shape[dim],
                              " elements, and is said to have ", cut.size),
                       "bind the sizes that the annotations are for, or choose another spec");
    }
    if (d.axes.size() > 1 && cut.balanced_segments == 1 &&
        (d.segments != cut.segments || d.granule != cut.granule)) {
      throw Diagnostic("E2130", ExitCode::kBadSpec, rule.where.ToString(),
                       StrCat("dim ", cut.dim, " of ", what, " is cut in two ways"),
                       "choose another spec");
    }
    d.segments = cut.segments.empty() ? BalancedSegments(rule, cut, type.shape[dim]) : cut.segments;
    d.granule = cut.granule;
    int64_t parts = NumParts(d, graph_.mesh);
    if (type.shape[dim] < parts && !IsShared(value, dim, parts)) {
      throw Diagnostic("E2106", ExitCode::kBadSpec, rule.where.ToString(),
                       StrCat("dim ", cut.dim, " of ", what, " has ", type.shape[dim],
                              type.shape[dim] == 1 ? " element" : " elements",
                              " and cannot be cut into ", parts, " parts"),
                       "use a smaller axis, or leave this tensor whole");
    }
  }
  TensorType cut(type.dtype, type.shape, sharding);
  CheckSharding(cut, graph_.mesh, StrCat(rule.where.ToString(), ": ", what));
  return Canonical(cut, graph_.mesh);
}

std::vector<int64_t> RuleCuts::BalancedSegments(const SpecRule& rule, const CutDim& cut,
                                                int64_t size) {
  auto ranks = [&](const CutDim& c) {
    const auto axis = Axis(rule, c.axis);
    return axis ? graph_.mesh.axis_size(*axis) : int64_t{1};
  };
  if (cut.balanced_segments == 1 || ranks(rule.cuts[0]) == 1) return {};
  int64_t parts = 1;
  for (const CutDim& other : rule.cuts) parts *= ranks(other);
  const int64_t n = std::min<int64_t>(cut.balanced_segments, size / parts);
  if (n < 2 || !HasStretchOf(size)) return {};
  // Whole shares of the ranks each, but for the last: padded no more than one stretch is.
  const int64_t shares = (size + parts - 1) / parts;
  std::vector<int64_t> segments;
  for (int64_t i = 0; i < n; ++i) segments.push_back(parts * ((shares + i) / n));
  segments.back() -= shares * parts - size;
  return segments;
}

// Whether some op must have one stretch of a dim of this size: the later it is, the more to do.
bool RuleCuts::HasStretchOf(int64_t size) {
  if (!stretches_) {
    stretches_.emplace();
    for (const auto& op : graph_.ops()) {
      if (!op->def->rule) continue;
      for (const Factor& f : op->def->rule(*op).factors) {
        if (f.contiguous) stretches_->insert(f.size);
      }
    }
  }
  return stretches_->contains(size);
}

void RuleCuts::StaysWhole(const SpecRule& rule, const CutDim& cut, const std::string& what,
                          int64_t parts) {
  if (!too_fine_.insert(&rule).second) return;
  graph_.notes.push_back(StrCat(rule.where.ToString(), ": ", what,
                                " stays whole, as others may: what stands for dim ", cut.dim,
                                " of it are dims of less than ", parts, " elements"));
}

Strings RuleCuts::AxesOf(const SpecRule& rule) const {
  Strings axes;
  for (const CutDim& cut : rule.cuts) {
    const bool known = std::find(axes.begin(), axes.end(), cut.axis) != axes.end();
    if (Axis(rule, cut.axis) && !known) axes.push_back(cut.axis);
  }
  return axes;
}

}  // namespace shardc
