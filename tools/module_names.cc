#include "tools/module_names.h"

#include "ir/contains.h"
#include "ir/graph.h"

namespace shardc {

std::map<std::string, std::vector<ModuleTensor>> ModuleTensors(const Manifest& manifest) {
  std::map<std::string, std::vector<ModuleTensor>> tensors;
  for (const ManifestState& s : manifest.states) {
    const std::string& own = s.piece_of.empty() ? s.name : s.piece_of;
    std::vector<ModuleTensor> names = {{own}};
    if (!s.transpose_of.empty()) names = {{s.transpose_of, true}};
    for (const std::string& alias : s.aliases) {
      if (!Contains(s.unlike_aliases, alias)) names.push_back({alias});
    }
    tensors[own] = names;
    if (!s.is_param) continue;
    for (ModuleTensor& t : names) t.name = GradientName(t.name);
    tensors[GradientName(own)] = names;
  }
  return tensors;
}

std::map<std::string, std::string> MadeOfModules(const Manifest& manifest) {
  std::map<std::string, std::string> made;
  for (const ManifestState& s : manifest.states) {
    const std::string& own = s.piece_of.empty() ? s.name : s.piece_of;
    for (const std::string& alias : s.unlike_aliases) {
      if (alias == s.transpose_of) continue;
      made[alias] = own;
      if (s.is_param) made[GradientName(alias)] = GradientName(own);
    }
  }
  return made;
}

}  // namespace shardc
