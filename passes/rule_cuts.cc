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

namespace {

// One of the cuts that a rule asks for, of a tensor that messages call `what`.
struct Asked {
  const SpecRule& rule;
  const CutDim& cut;
  const std::string& what;

  Diagnostic Refused(const char* id, const std::string& why, std::string fix) const {
    return Diagnostic(id, ExitCode::kBadSpec, rule.where.ToString(),
                      StrCat("dim ", cut.dim, " of ", what, why), std::move(fix));
  }
};

// What of the tensor stands for the dim that is to be cut.
const CountedDim& CountedOf(const Asked& asked, const TensorType& type,
                            const CountedDims& counted) {
  const auto rank = static_cast<int>(counted.size());
  const int dim = asked.cut.dim;
  if (dim < -rank || dim >= rank) {
    throw asked.Refused(
        "E2103", StrCat(" does not exist: its shape is ", ShapeToString(type.shape)),
        rank == 0 ? "a scalar cannot be cut; match less"
                  : StrCat("name a dim from ", -rank, " to ", rank - 1, ", or match less"));
  }
  return counted[dim < 0 ? dim + rank : dim];
}

// What annotations say of a dim is for one size.
void CheckAnnotation(const Asked& asked, int64_t size) {
  if (asked.cut.size > 0 && asked.cut.size != size) {
    throw asked.Refused("E2130",
                        StrCat(" has ", size, " elements, and is said to have ", asked.cut.size),
                        "bind the sizes that the annotations are for, or choose another spec");
  }
}

// Adds to the axes that cut the dim one that cuts it in this layout: the same for all of them.
void AddAxis(const Asked& asked, int axis, const DimSharding& layout, DimSharding& d) {
  d.axes.push_back(axis);
  if (d.axes.size() > 1 && asked.cut.balanced_segments == 1 &&
      (d.segments != layout.segments || d.granule != layout.granule)) {
    throw asked.Refused("E2130", " is cut in two ways",
                        asked.cut.size > 0 ? "choose another spec" : "cut it in one of them");
  }
  d.segments = layout.segments;
  d.granule = layout.granule;
}

// Of a stack of matrices how many of them there are, or elements in each, whichever is cut.
int64_t UnitsOf(const DimSharding& layout, int64_t size) {
  return layout.segments.empty() ? size / layout.granule : layout.segments[0];
}

}  // namespace

Sharding RuleCuts::Cut(const SpecRule& rule, const Value* value, const CountedDims& counted,
                       const std::string& what) {
  const TensorType& type = value->type;
  const Mesh& mesh = graph_.mesh;
  TensorType result(type.dtype, type.shape);
  for (const CutDim& cut : rule.cuts) {
    const Asked asked{rule, cut, what};
    const std::optional<int> axis = Axis(rule, cut.axis);
    const CountedDim& of = CountedOf(asked, type, counted);
    const Ints& dims = of.dims;
    if (!axis || mesh.axis_size(*axis) == 1) continue;
    const int64_t ranks = mesh.axis_size(*axis);
    const bool stacked = of.of != CountedDim::Of::kAll;
    DimSharding layout{{}, cut.granule, cut.segments};
    if (stacked) layout = LayoutOf(*value->producer, of);
    if ((stacked && UnitsOf(layout, type.shape[dims[0]]) < ranks) ||
        IsTooFine(value, dims, ranks) || (!rule.role.empty() && IsShort(value, dims, ranks))) {
      StaysWhole(rule, cut, what, ranks);
      continue;
    }
    const auto dim = static_cast<size_t>(DimToCutOf(value, dims, ranks));
    const int64_t size = type.shape[dim];
    DimSharding& d = result.sharding.dims[dim];
    CheckAnnotation(asked, size);
    if (layout.segments.empty()) layout.segments = BalancedSegments(rule, cut, size);
    AddAxis(asked, *axis, layout, d);
    if (const int64_t parts = NumParts(d, mesh); size < parts && !IsShared(value, dim, parts)) {
      throw asked.Refused("E2106",
                          StrCat(" has ", size, size == 1 ? " element" : " elements",
                                 " and cannot be cut into ", parts, " parts"),
                          "use a smaller axis, or leave this tensor whole");
    }
  }
  CheckSharding(result, mesh, StrCat(rule.where.ToString(), ": ", what));
  return Canonical(result, mesh);
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
