#include <cstdio>
#include <nlohmann/json.hpp>

#include "tools/dump.h"

namespace shardc {
namespace {

using Json = nlohmann::ordered_json;

Json CollectiveJson(const Mesh& mesh, const CollectiveUse& use) {
  const Collective& c = *use.collective;
  Json axes = Json::array();
  for (int a : c.axes) axes.push_back(mesh.axes()[a].name);
  Json out;
  out["id"] = c.id;
  out["kind"] = CollectiveKindName(c.kind);
  if (c.max) out["reduce"] = "max";
  out["axes"] = axes;
  out["groups"] = mesh.Groups(c.axes);
  out["dtype"] = DTypeName(c.dtype);
  out["shapes"] = use.shapes;
  out["elements"] = c.elements;
  out["bytes"] = use.bytes;
  out["phase"] = PhaseName(use.instruction->phase);
  out["op"] = c.op;
  out["site"] = use.instruction->site;
  out["why"] = c.why;
  return out;
}

}  // namespace

void PrintDumpJson(const Plan& plan) {
  const Program& program = plan.programs.front();
  const Manifest& m = plan.manifest;
  Json json;
  json["mesh"] = Json::object();
  for (const MeshAxis& a : program.mesh.axes()) json["mesh"][a.name] = a.size;
  json["collectives"] = Json::array();
  for (const CollectiveUse& use : CollectivesOf(program)) {
    json["collectives"].push_back(CollectiveJson(program.mesh, use));
  }
  json["params"] = Json::array();
  for (const ManifestState& s : m.states) {
    if (!s.is_param) continue;
    json["params"].push_back({{"name", s.name},
                              {"shape", s.shape},
                              {"sharding", s.layout},
                              {"local_shape", s.local_shape}});
    if (!s.piece_of.empty()) json["params"].back()["piece_of"] = s.piece_of;
  }
  json["memory"] = {{"weights", m.weights_bytes},         {"gradients", m.gradients_bytes},
                    {"activations", m.activations_bytes}, {"arena", m.arena_bytes},
                    {"optimizer", m.optimizer_bytes},     {"inputs", m.inputs_bytes},
                    {"kernels", m.kernels_bytes},         {"total", m.total_bytes()}};
  // Names come from models: what is not UTF-8 is replaced, not refused.
  std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::printf("%s\n", text.c_str());
}

}  // namespace shardc
