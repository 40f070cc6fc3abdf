#include "passes/order_axes.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ir/diagnostic.h"
#include "ir/op_def.h"
#include "passes/provenance.h"
#include "passes/set_mesh.h"
#include "passes/split_axes.h"
#include "passes/weights.h"

namespace shardc {
namespace {

// `order`: the old axes, as they shall be.
void Renumber(Graph& graph, const std::vector<int>& order) {
  if (std::ranges::is_sorted(order)) return;
  std::vector<MeshAxis> axes;
  for (const int old : order) axes.push_back(graph.mesh.axes()[old]);
  SetMesh(graph, Mesh(std::move(axes)));
}

// Which axes are to come before which others.
class Before {
 public:
  explicit Before(const Graph& graph)
      : graph_(graph), axes_(graph.mesh.num_axes()), before_(axes_, std::vector<bool>(axes_)) {}

  // As a dim of the value is cut.
  void Require(const Value* v, const AxisList& axes) {
    for (int i = 1; i < axes.size(); ++i) {
      const int major = axes[i - 1], minor = axes[i];
      if (Reaches(minor, major)) throw Contradiction(v, major, minor);
      before_[major][minor] = true;
    }
  }

  // Where nothing that is required speaks against it.
  void Prefer(int major, int minor) {
    if (!Reaches(minor, major)) before_[major][minor] = true;
  }

  // In mesh order, as far as that goes.
  std::vector<int> Order() const {
    std::vector<int> order;
    std::vector<bool> taken(axes_);
    while (std::ssize(order) < axes_) {
      for (int a = 0; a < axes_; ++a) {
        bool free = !taken[a];
        for (int other = 0; other < axes_; ++other) free &= taken[other] || !before_[other][a];
        if (!free) continue;
        taken[a] = true;
        order.push_back(a);
        break;
      }
    }
    return order;
  }

 private:
  bool Reaches(int from, int to) const {
    if (from == to) return true;
    for (int a = 0; a < axes_; ++a) {
      if (before_[from][a] && Reaches(a, to)) return true;
    }
    return false;
  }

  Diagnostic Contradiction(const Value* v, int major, int minor) const {
    const auto& axes = graph_.mesh.axes();
    const Strings why = ProvenanceChain(graph_, ProvenanceOf(v, minor));
    return Diagnostic(
        "E2105", ExitCode::kBadSpec, why.empty() ? "model" : why.front(),
        StrCat("a dim of ", TypeToString(v->type, graph_.mesh), " is cut over ", axes[major].name,
               " before ", axes[minor].name, ", and another dim the other way round"),
        "list the axes of all dims in one order");
  }

  const Graph& graph_;
  int axes_;
  std::vector<std::vector<bool>> before_;  // [major][minor]
};

}  // namespace

void OrderAxes(Graph& graph) {
  Before before(graph);
  ForEachValue(graph, [&](const Value* v) {
    for (const DimSharding& d : v->type.sharding.dims) before.Require(v, d.axes);
  });
  for (const auto& op : graph.ops()) {
    if (!op->def->constrains) continue;
    const Value* v = op->result();
    for (int d = 0; d < v->type.rank(); ++d) {
      const AxisList& own = v->type.sharding.dims[d].axes;
      const auto weights = own.empty() ? std::nullopt : AxesOfWeights(v, d);
      for (const int axis : weights.value_or(AxisList())) {
        if (!v->type.sharding.Uses(axis)) before.Prefer(axis, own[0]);
      }
    }
  }
  Renumber(graph, before.Order());
}

void RestoreAxes(Graph& graph, const Mesh& mesh) {
  std::vector<int> order;
  for (const MeshAxis& axis : mesh.axes()) {
    for (int a = 0; a < graph.mesh.num_axes(); ++a) {
      const std::string& name = graph.mesh.axes()[a].name;
      const bool split = !mesh.FindAxis(name) && IsPartOfAxis(name, axis.name);
      if (name == axis.name || split) order.push_back(a);
    }
  }
  Renumber(graph, order);
}

}  // namespace shardc
