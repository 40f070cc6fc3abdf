#include "passes/set_mesh.h"

#include <optional>
#include <utility>
#include <vector>

#include "ir/diagnostic.h"
#include "passes/provenance.h"

namespace shardc {
namespace {

AxisList Renamed(const TensorType& type, const AxisList& axes, const Mesh& from, const Mesh& to) {
  AxisList renamed;
  for (int a : axes) {
    const std::string& name = from.axes()[a].name;
    auto axis = to.FindAxis(name);
    if (!axis) {
      throw Diagnostic("E2104", ExitCode::kBadSpec, "model",
                       StrCat("axis '", name, "' of ", TypeToString(type, from),
                              " is not in the mesh ", to.ToString()),
                       "add it to --mesh, or leave shardings to the spec");
    }
    renamed.push_back(*axis);
  }
  return renamed;
}

// The stages of a graph that has them were dealt out already.
void RequirePipeline(const Graph& graph, const Mesh& to) {
  const std::string& name = graph.pipeline_axis;
  if (name.empty()) return;
  const int64_t stages = graph.mesh.axis_size(*graph.mesh.FindAxis(name));
  const std::optional<int> axis = to.FindAxis(name);
  if (axis && to.axis_size(*axis) == stages) return;
  throw Diagnostic("E2104", ExitCode::kBadSpec, "model",
                   StrCat("its pipeline has ", stages, " stages over '", name,
                          "', and the mesh is ", to.ToString()),
                   StrCat("put ", name, "=", stages, " into --mesh, or leave stages to the spec"));
}

}  // namespace

void SetMesh(Graph& graph, const Mesh& mesh) {
  RequirePipeline(graph, mesh);
  const Mesh from = graph.mesh;
  ForEachValue(graph, [&](Value* v) {
    TensorType type = v->type;
    auto rename = [&](AxisList& axes) { axes = Renamed(v->type, axes, from, mesh); };
    for (DimSharding& d : type.sharding.dims) rename(d.axes);
    rename(type.sharding.partial_sum);
    rename(type.sharding.partial_max);
    v->type = std::move(type);
    std::vector<int> steps;
    for (const MeshAxis& axis : mesh.axes()) {
      const auto old = from.FindAxis(axis.name);
      steps.push_back(old ? ProvenanceOf(v, *old) : -1);
    }
    v->provenance = std::move(steps);
  });
  graph.mesh = mesh;
  CanonicalizeShardings(graph);
}

void CanonicalizeShardings(Graph& graph) {
  ForEachValue(graph, [&](Value* v) { v->type.sharding = Canonical(v->type, graph.mesh); });
}

}  // namespace shardc
