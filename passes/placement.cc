#include "passes/placement.h"

#include <algorithm>
#include <optional>
#include <set>

#include "ir/op_def.h"
#include "passes/layout.h"

namespace shardc {
namespace {

// What follows the value wherever it is read.
const Value* Settled(const Graph& graph, const Value* v) {
  if (!v->type.sharding.partial()) return v;
  if (v->users.empty() || graph.IsOutput(v) || v->users[0]->name() != "reshard") return nullptr;
  const Value* sum = v->users[0]->result();
  const bool all = std::all_of(v->users.begin(), v->users.end(), [&](const Op* user) {
    return user->name() == "reshard" && user->out() == sum->type;
  });
  return all ? sum : nullptr;
}

// Nothing where ONNX has no words for it.
std::optional<TensorPlacement::Dim> DimOf(int64_t axis, int64_t size, const DimSharding& cut,
                                          const Mesh& mesh) {
  const int64_t shards = NumParts(cut, mesh);
  TensorPlacement::Dim dim{axis, {}};
  if (cut.segments.empty()) {
    // ONNX has no words for a block that is shorter, nor for which rank has one element more.
    if (size % cut.granule != 0 || cut.granule == 1) {
      dim.factors = {{0, shards}};
    } else {
      dim.factors = {{size / cut.granule, shards}, {cut.granule, 1}};
    }
    return dim;
  }
  const int64_t segment = cut.segments[0];
  const bool equal = std::all_of(cut.segments.begin(), cut.segments.end(),
                                 [&](int64_t s) { return s == segment; });
  if (!equal || cut.granule != 1) return std::nullopt;
  dim.factors = {{static_cast<int64_t>(cut.segments.size()), 1}, {segment, shards}};
  return dim;
}

std::optional<TensorPlacement> PlacementOf(const Value& value, const Mesh& mesh) {
  TensorPlacement p;
  const bool state = value.producer && value.producer->def->is_state;
  p.tensor = state ? value.producer->attrs.String("name") : value.name;
  std::vector<std::vector<int>> axes;
  for (size_t d = 0; d < value.type.shape.size(); ++d) {
    const DimSharding& cut = value.type.sharding.dims[d];
    if (!cut.cut()) continue;
    // Shards of which some have nothing. Of a parameter its blocks say that, and the values follow.
    const bool in_blocks = state && value.type.shape[d] >= NumParts(cut, mesh);
    if (!in_blocks && !FillsParts(value.type.shape[d], cut, mesh)) return std::nullopt;
    auto dim = DimOf(static_cast<int64_t>(d), value.type.shape[d], cut, mesh);
    if (!dim) return std::nullopt;
    p.dims.push_back(std::move(*dim));
    axes.push_back(cut.axes.ToVector());
  }
  p.devices.resize(p.num_shards());
  for (int64_t r = 0; r < mesh.num_ranks(); ++r) {
    int64_t shard = 0;
    for (const std::vector<int>& a : axes) {
      shard = shard * mesh.GroupSize(a) + mesh.GroupIndex(r, a);
    }
    p.devices[shard].push_back(r);
  }
  return p;
}

}  // namespace

Placements DescribePlacement(const Graph& graph, const std::string& name) {
  Placements out;
  DeviceConfiguration& c = out.configuration;
  c.name = name;
  c.num_devices = graph.mesh.num_ranks();
  std::set<std::string> known;
  auto add = [&](const Value* value) {
    if (value->producer && value->producer->def->is_state) {
      const Attributes& attrs = value->producer->attrs;
      const bool piece = attrs.Has("piece_of");
      if (piece || !PlacementOf(*value, graph.mesh)) {
        std::string whole = attrs.String(piece ? "piece_of" : "name");
        if (known.insert(whole).second) out.untold.push_back(std::move(whole));
        return;
      }
    }
    const Value* settled = Settled(graph, value);
    if (!settled) return;
    auto p = PlacementOf(*settled, graph.mesh);
    if (!p) return;
    if (settled != value) p->tensor = value->name;
    Strings names = {p->tensor}, across;
    // Nodes may read a parameter under the name of a copy.
    if (value->producer) {
      const Strings aliases = value->producer->attrs.StringList("aliases", {});
      names.insert(names.end(), aliases.begin(), aliases.end());
      across = value->producer->attrs.StringList("transposed_aliases", {});
    }
    for (std::string& n : names) {
      if (n.empty() || !known.insert(n).second) continue;
      TensorPlacement named = *p;
      if (std::find(across.begin(), across.end(), n) != across.end()) {
        for (TensorPlacement::Dim& d : named.dims) d.axis = 1 - d.axis;
      }
      named.tensor = std::move(n);
      c.tensors.push_back(std::move(named));
    }
  };
  for (const auto& input : graph.inputs()) add(input.get());
  for (const auto& op : graph.ops()) {
    if (op->phase != Phase::kForward || op->name() == "reshard") continue;
    for (const Value* r : op->results) add(r);
  }
  return out;
}

}  // namespace shardc
