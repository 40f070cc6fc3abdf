#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <tuple>

#include "frontend/recover/patterns.h"
#include "ir/contains.h"

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

std::string LastPart(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == name.npos ? "" : name.substr(dot);
}

// The sites, those together that are calls of one module which has this parameter, as of a norm of
// both q and k. Only "weight" and "bias" tell: a module has one of each.
// TorchScript counts the calls: "h.0.norm_1", of which `lost`, its names of merged ones, has none.
std::vector<std::vector<Op*>> ByModule(const std::vector<Op*>& sites, const Value* value,
                                       const std::string& name, const Strings& lost) {
  const std::string last = LastPart(name);
  const std::string own = name.substr(0, name.size() - last.size());
  const bool owned = (last == ".weight" || last == ".bias") &&
                     std::ranges::any_of(sites, [&](const Op* op) { return op->site == own; });
  auto module = [&](const std::string& site) {
    const std::string called = site.substr(0, site.find_last_not_of("0123456789") + 1);
    if (!called.ends_with('_') || called == site || Contains(lost, site + last)) return site;
    const std::string without = called.substr(0, called.size() - 1);
    const bool known = !lost.empty() && (without == own || Contains(lost, without + last));
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

// A name for each group, of the parameter's own and those that the exporter merged into it: what
// the group's module has; then in order where there are as many as groups without one, and else the
// own one for the first of these. Empty: not known.
Strings NamesOf(const std::vector<std::vector<Op*>>& groups, const std::string& own,
                const Strings& lost) {
  Strings all = {own}, names;
  all.insert(all.end(), lost.begin(), lost.end());
  Strings left = all;
  for (const std::vector<Op*>& group : groups) {
    const std::string& site = group[0]->site;
    auto the_only = [&](const Strings& of, auto fits) {
      return std::ranges::count_if(of, fits) == 1 ? *std::ranges::find_if(of, fits) : "";
    };
    auto is_of_site = [&](const std::string& name) {
      const std::string last = LastPart(name);
      return !last.empty() && name == site + last;
    };
    // Of a module that is not called itself, but its parts are, TorchScript has no name.
    auto is_of_inner = [&](const std::string& name) {
      return !site.empty() && name.ends_with("." + site + LastPart(name));
    };
    names.push_back(site + LastPart(own));
    // The own one may be that of another module, and be called otherwise there.
    if (!Contains(left, names.back())) names.back() = the_only(left, is_of_site);
    if (names.back().empty()) names.back() = the_only(all, is_of_inner);
    if (!Contains(left, names.back())) names.back() = "";
    std::erase(left, names.back());
  }
  if (std::ssize(left) != std::ranges::count(names, "")) {
    left.resize(!left.empty() && left[0] == own ? 1 : 0);
  }
  for (size_t i = 0, next = 0; i < names.size() && next < left.size(); ++i) {
    if (names[i].empty()) names[i] = left[next++];
  }
  return names;
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

bool IsFill(const Graph& graph, const Op* param) {
  auto source = graph.sources.find(param->attrs.String("name"));
  if (source == graph.sources.end() || param->out().num_elements() == 0) return false;
  HostTensor data(param->out().dtype, param->out().shape);
  source->second->Read(Shape(data.shape().size(), 0), data.shape(), data.raw());
  for (int64_t i = 1; i < data.num_elements(); ++i) {
    if (data.AsDouble(i) != data.AsDouble(0)) return false;
  }
  return true;
}

// As of the zeros that LoRA begins with.
void NoteSharedFill(Graph& graph, const Op* param) {
  std::set<std::string> sites;
  for (const Op* op : param->result()->users) sites.insert(op->site);
  if (sites.size() < 2 || Varies(graph, param) || !IsFill(graph, param)) return;
  graph.notes.push_back(
      StrCat("matrix '", param->attrs.String("name"), "' has one value, is read in ", sites.size(),
             " modules, and is trained as one (where it was several, which an exporter makes one "
             "of, --module keeps them apart)"));
}

class VectorSplitter {
 public:
  explicit VectorSplitter(Graph& graph) : graph_(graph), shared_(SitesOfSharedMatrices(graph)) {
    for (const Op* param : graph.Params()) taken_.insert(param->attrs.String("name"));
  }

  void Split(Op* param) {
    Value* value = param->result();
    const std::vector<Op*> sites = SitesOf(graph_, value);
    if (sites.size() < 2) return;
    const std::string name = param->attrs.String("name");
    const Strings sources = param->attrs.StringList("source_aliases", {});
    Strings lost = param->attrs.StringList("aliases", {});
    std::erase_if(lost, [&](const std::string& alias) { return Contains(sources, alias); });
    // A name for each site: then each is a parameter.
    const bool all_known = lost.size() == sites.size() - 1;
    const Groups groups = ByModule(sites, value, all_known ? "" : name, lost);
    Strings names = NamesOf(groups, name, lost);
    const bool known = !Contains(names, "");
    // No names were lost where a layer runs several times: those found are of other parameters.
    if ((known || lost.empty()) && shared_.contains(sites.size()))
      return EraseAliases(param->attrs);
    // As of matrices: equal, and no fill, they are one, as what every step of a recurrence reads.
    if (!known && Varies(graph_, param)) {
      graph_.notes.push_back(
          StrCat("parameter '", name, "' is read at ", sites.size(), " places: trained as one"));
      return;
    }
    if (groups.size() < 2) return;
    MakeOwn(param, groups, std::move(names));
    // The first of what the exporter made of several, but for which it is known.
    if (!known && !sources.empty()) {
      for (const char* list : {"aliases", "source_aliases"}) param->attrs.Set(list, sources);
    }
    if (!value->users.empty() || graph_.IsOutput(value)) return;
    graph_.sources.erase(name);
    graph_.Erase(param);
  }

 private:
  using Groups = std::vector<std::vector<Op*>>;

  // A parameter for each group, but for that of the name that it has.
  void MakeOwn(Op* param, const Groups& groups, Strings names) {
    const std::string name = param->attrs.String("name");
    EraseAliases(param->attrs);
    const Attributes attrs = param->attrs;
    std::string other;
    for (size_t i = 0; i < groups.size(); ++i) {
      if (names[i] == name) continue;
      const Op* user = groups[i][0];
      if (names[i].empty() && !user->site.empty()) names[i] = StrCat(name, "@", user->site);
      for (size_t n = 2; names[i].empty() || taken_.contains(names[i]); ++n) {
        names[i] = StrCat(name, "@", n);
      }
      taken_.insert(names[i]);
      if (other.empty()) other = names[i];
      Builder builder(graph_, graph_.Next(param), *user);
      Value* own = builder.Param(names[i], param->out().dtype, param->out().shape, attrs);
      if (auto source = graph_.sources.find(name); source != graph_.sources.end()) {
        graph_.sources[names[i]] = source->second;
      }
      for (Op* op : groups[i]) graph_.ReplaceUses(op, param->result(), own);
    }
    graph_.notes.push_back(StrCat("vector '", name, "' is used at ", groups.size(),
                                  " sites, and each has a parameter of its own with these values, ",
                                  "one of them '", other, "'"));
  }

  Graph& graph_;
  const std::set<size_t> shared_;
  std::set<std::string> taken_;
};

}  // namespace

void SplitSharedVectors(Graph& graph) {
  VectorSplitter splitter(graph);
  for (Op* param : graph.Params()) {
    const bool single = param->attrs.Bool("single", false);
    param->attrs.Erase("single");
    if (single) continue;
    if (!IsFloat(param->out().dtype) || param->result()->users.size() < 2) continue;
    if (param->out().rank() == 1) {
      splitter.Split(param);
    } else if (param->out().rank() > 1 && !param->attrs.Has("merged")) {
      NoteSharedFill(graph, param);
    }
  }
}

}  // namespace shardc::recover
