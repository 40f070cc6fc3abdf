#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <tuple>

#include "frontend/recover/patterns.h"

namespace shardc::recover {

namespace {

// The users of a value in the order of the graph, each once.
std::vector<Op*> SitesOf(const Graph& graph, const Value* value) {
  std::set<const Op*> users(value->users.begin(), value->users.end());
  std::vector<Op*> sites;
  for (const auto& op : graph.ops()) {
    if (users.contains(op.get())) sites.push_back(op.get());
  }
  return sites;
}

// The sites, those together that are calls of one module which has this parameter, as of a norm of
// both q and k. Only "weight" and "bias" tell: a module has one of each.
// TorchScript counts the calls: "h.0.norm_1", of which `lost`, its names of merged ones, has none.
std::vector<std::vector<Op*>> ByModule(const std::vector<Op*>& sites, const Value* value,
                                       const std::string& name, const Strings& lost) {
  const std::string& first = sites[0]->site;
  const bool owned = name == first + ".weight" || name == first + ".bias";
  auto module = [&](const std::string& site) {
    const std::string last = owned ? name.substr(first.size()) : "";
    const std::string called = site.substr(0, site.find_last_not_of("0123456789") + 1);
    if (!called.ends_with('_') || called == site || std::ranges::count(lost, site + last))
      return site;
    const std::string without = called.substr(0, called.size() - 1);
    const bool known =
        !lost.empty() && (without == first || std::ranges::count(lost, without + last));
    return known ? without : site;
  };
  std::vector<std::vector<Op*>> groups;
  std::map<std::tuple<std::string, std::string_view, int64_t>, size_t> known;
  for (Op* op : sites) {
    const auto operand = std::ranges::find(op->operands, value) - op->operands.begin();
    const bool called = owned && !op->site.empty();
    const size_t at =
        called ? known.try_emplace({module(op->site), op->name(), operand}, groups.size())
                     .first->second
               : groups.size();
    if (at == groups.size()) groups.emplace_back();
    groups[at].push_back(op);
  }
  return groups;
}

void EraseAliases(Attributes& attrs) {
  attrs.Erase("aliases");
  attrs.Erase("source_aliases");
}

// Whether the parameter's data (its first row) are not all one value, as a fill's are.
bool Varies(const Graph& graph, const Op* param) {
  auto source = graph.sources.find(param->attrs.String("name"));
  if (source == graph.sources.end() || param->out().num_elements() == 0) return false;
  Shape shape(param->out().shape.size(), 1);
  shape.back() = param->out().shape.back();
  HostTensor row(param->out().dtype, shape);
  source->second->Read(Shape(shape.size(), 0), shape, row.raw());
  for (int64_t i = 1; i < row.num_elements(); ++i) {
    if (row.AsDouble(i) != row.AsDouble(0)) return true;
  }
  return false;
}

// At how many sites each shared matrix is multiplied with. Exporters merge vectors of equal values,
// as new ones are, but two matrices are equal only if they are one: then layers are run several
// times, with their vectors.
std::set<size_t> SitesOfSharedMatrices(const Graph& graph) {
  std::set<size_t> counts;
  for (const Op* param : graph.Params()) {
    const std::vector<Op*>& users = param->result()->users;
    if (param->out().rank() != 2 || users.size() < 2 || !Varies(graph, param)) continue;
    bool linear = std::all_of(users.begin(), users.end(),
                              [&](const Op* user) { return MultipliesBy(user, param->result()); });
    if (linear) counts.insert(users.size());
  }
  return counts;
}

}  // namespace

void SplitSharedVectors(Graph& graph) {
  const std::set<size_t> shared = SitesOfSharedMatrices(graph);
  std::set<std::string> names;
  for (Op* param : graph.Params()) names.insert(param->attrs.String("name"));
  for (Op* param : graph.Params()) {
    Value* value = param->result();
    if (param->out().rank() != 1 || !IsFloat(param->out().dtype)) continue;
    if (value->users.size() < 2) continue;
    std::vector<Op*> sites = SitesOf(graph, value);
    if (sites.size() < 2) continue;
    const std::string name = param->attrs.String("name");
    // The names that the exporter merged into this one, in the order of their sites, when all are
    // known.
    Strings lost = param->attrs.StringList("aliases", {});
    // A name for each site: then each is a parameter.
    const bool all_known = lost.size() == sites.size() - 1;
    const auto groups = ByModule(sites, value, all_known ? "" : name, lost);
    const bool known = lost.size() == groups.size() - 1;
    // No names were lost where a layer runs several times: those found are of other parameters.
    if ((known || lost.empty()) && shared.contains(sites.size())) {
      EraseAliases(param->attrs);
      continue;
    }
    // As of matrices: equal, and no fill, they are one, as what every step of a recurrence reads.
    if (!known && Varies(graph, param)) {
      graph.notes.push_back(
          StrCat("parameter '", name, "' is read at ", sites.size(), " places: trained as one"));
      continue;
    }
    Attributes more = param->attrs;
    EraseAliases(more);
    if (known) EraseAliases(param->attrs);
    std::string second;
    for (size_t i = 1; i < groups.size(); ++i) {
      const Op* user = groups[i][0];
      std::string own_name = known                ? lost[i - 1]
                             : user->site.empty() ? ""
                                                  : StrCat(name, "@", user->site);
      for (size_t n = 2; own_name.empty() || names.contains(own_name); ++n) {
        own_name = StrCat(name, "@", n);
      }
      names.insert(own_name);
      Builder builder(graph, graph.Next(param), *user);
      Value* own = builder.Param(own_name, param->out().dtype, param->out().shape, more);
      if (auto source = graph.sources.find(name); source != graph.sources.end()) {
        graph.sources[own_name] = source->second;
      }
      for (Op* op : groups[i]) graph.ReplaceUses(op, value, own);
      if (i == 1) second = own_name;
    }
    if (groups.size() < 2) continue;
    graph.notes.push_back(StrCat("vector '", name, "' is used at ", groups.size(),
                                 " sites, and each has a parameter of its own with these values: ",
                                 "the second is '", second, "'"));
  }
}

}  // namespace shardc::recover
