#include <algorithm>
#include <set>

#include "frontend/recover/patterns.h"

namespace shardc::recover {

void SplitSharedVectors(Graph& graph) {
  std::set<std::string> names;
  for (Op* param : graph.Params()) names.insert(param->attrs.String("name"));
  for (Op* param : graph.Params()) {
    Value* value = param->result();
    if (param->out().rank() != 1 || !IsFloat(param->out().dtype) || value->users.size() < 2)
      continue;
    const std::vector<Op*> users = value->users;
    const std::string name = param->attrs.String("name");
    Op* first = nullptr;
    int sites = 1;
    for (const auto& owned : graph.ops()) {
      Op* user = owned.get();
      if (std::find(users.begin(), users.end(), user) == users.end()) continue;
      if (first == nullptr) {
        first = user;
        continue;
      }
      std::string site_name = user->site.empty() ? "" : StrCat(name, "@", user->site);
      while (site_name.empty() || names.contains(site_name)) site_name = StrCat(name, "@", ++sites);
      names.insert(site_name);
      Builder builder(graph, graph.Next(param));
      builder.site = user->site;
      Attributes more = param->attrs;
      more.Erase("aliases");
      Value* own = builder.Param(site_name, param->out().dtype, param->out().shape, more);
      if (auto source = graph.sources.find(name); source != graph.sources.end()) {
        graph.sources[site_name] = source->second;
      }
      for (size_t i = 0; i < user->operands.size(); ++i) {
        if (user->operands[i] == value) graph.SetOperand(user, static_cast<int>(i), own);
      }
      graph.notes.push_back(StrCat("vector '", name, "' is used at several sites: '", site_name,
                                   "' is a parameter of its own with the same values"));
    }
  }
}

}  // namespace shardc::recover
