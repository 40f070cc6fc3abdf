#include "passes/fuse.h"

#include <unordered_map>

#include "ir/op_def.h"

namespace shardc {

void Fuse(Graph& graph) {
  std::unordered_map<std::string_view, std::vector<const OpDef*>> fused_at;
  for (const OpDef* def : AllOpDefs()) {
    if (def->fuse) fused_at[def->fuses_at].push_back(def);
  }
  graph.EraseDead();
  for (auto it = graph.ops().begin(); it != graph.ops().end();) {
    Op* root = (it++)->get();
    auto found = fused_at.find(root->name());
    if (found == fused_at.end()) continue;
    for (const OpDef* def : found->second) {
      if (def->fuse(graph, *root)) break;
    }
  }
  graph.EraseDead();
}

}  // namespace shardc
