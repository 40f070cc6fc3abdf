#include <cstdio>
#include <nlohmann/json.hpp>

#include "tools/dump.h"

namespace shardc {
namespace {

using Json = nlohmann::ordered_json;

Json CollectiveJson(const Plan& plan, const CollectiveUse& use) {
  const Mesh& mesh = plan.manifest.mesh;
  const Collective& c = *use.collective;
  Json out;
  out["id"] = c.id;
  out["kind"] = CollectiveKindName(c.kind);
  if (c.max) out["reduce"] = "max";
  out["axes"] = mesh.Names(c.axes);
  out["groups"] = GroupsOf(plan, use);
  out["dtype"] = DTypeName(c.dtype);
  out["shapes"] = use.shapes;
  out["elements"] = c.elements;
  out["bytes"] = use.bytes;
  out["phase"] = PhaseName(use.instruction->phase);
  out["op"] = c.op;
  out["site"] = use.instruction->site;
  out["why"] = c.why;
  if (c.kind == CollectiveKind::kSendRecv) {
    out["from"] = c.from;
    out["to"] = c.to;
  } else if (!plan.manifest.pipeline_axis.empty()) {
    out["stage"] = StageOf(plan, *use.program);
  }
  return out;
}

}  // namespace

void PrintDumpJson(const Plan& plan) {
  const Manifest& m = plan.manifest;
  Json json;
  json["mesh"] = Json::object();
  for (const MeshAxis& a : m.mesh.axes()) json["mesh"][a.name] = a.size;
  json["collectives"] = Json::array();
  for (const CollectiveUse& use : CollectivesOf(plan)) {
    json["collectives"].push_back(CollectiveJson(plan, use));
  }
  json["params"] = Json::array();
  for (const ManifestState& s : m.states) {
    if (!s.is_param) continue;
    json["params"].push_back({{"name", s.name},
                              {"shape", s.shape},
                              {"sharding", s.layout},
                              {"local_shape", s.local_shape}});
    if (!s.transpose_of.empty()) json["params"].back()["transpose_of"] = s.transpose_of;
    if (!s.piece_of.empty()) json["params"].back()["piece_of"] = s.piece_of;
    if (!s.stages.empty()) json["params"].back()["stages"] = s.stages;
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
