#include "tools/module_names.h"

#include "ir/graph.h"

namespace shardc {

std::map<std::string, std::string> ModuleTransposes(const Manifest& manifest) {
  std::map<std::string, std::string> names;
  for (const ManifestState& s : manifest.states) {
    if (s.transpose_of.empty()) continue;
    const std::string& own = s.piece_of.empty() ? s.name : s.piece_of;
    names[own] = s.transpose_of;
    if (s.is_param) names[GradientName(own)] = GradientName(s.transpose_of);
  }
  return names;
}

}  // namespace shardc
