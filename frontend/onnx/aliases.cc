#include "frontend/onnx/aliases.h"

#include <algorithm>
#include <string_view>

#include "ir/contains.h"

namespace shardc::onnx_import {
namespace {

using onnx::NodeProto;

struct Site {
  int position = 0;
  int input = 0;
  const NodeProto* node = nullptr;
  std::string via;  // the Identity's result that the node reads; empty: the tensor itself
};

// Not a name of a module's parameter.
bool IsBias(const NodeProto& node, int input) {
  static const std::set<std::string_view> kBiasThird = {"Gemm", "LayerNormalization", "Conv",
                                                        "ConvTranspose"};
  return node.op_type() == "Add" || (input == 2 && kBiasThird.contains(node.op_type()));
}

// Of these the second input is the weight, and the first what it works on.
bool WorksOn(const NodeProto& node, int input) {
  static const std::set<std::string_view> kWeightSecond = {"Conv", "ConvTranspose", "Gemm",
                                                           "LayerNormalization", "MatMul"};
  return input == 0 && kWeightSecond.contains(node.op_type());
}

class Aliases {
 public:
  Aliases(const std::vector<std::string>& params, const Uses& uses, const ModuleNames& names)
      : params_(params), uses_(uses), names_(names) {
    for (const auto* t : uses.initializers()) {
      taken_.insert(t->name());
      ranks_[t->name()] = t->dims_size();
    }
    for (const std::string& param : params) {
      auto folded = names.folded_from.find(param);
      if (folded != names.folded_from.end()) {
        std::set<std::string> sources(folded->second.begin(), folded->second.end());
        std::erase_if(sources, [&](const std::string& source) {
          return !names.is_parameter.contains(source);
        });
        if (sources.size() == 1) copies_[*sources.begin()].push_back(param);
      }
      AddSites(param, sites_[param]);
      std::stable_sort(sites_[param].begin(), sites_[param].end(),
                       [](const Site& a, const Site& b) { return a.position < b.position; });
    }
  }

  AliasesFound Run() {
    for (const std::string& param : params_) {
      found_.of[param];
      FromIdentities(param);
      FromFolding(param);
    }
    for (const std::string& param : params_) FromModules(param);
    FromElimination();
    return std::move(found_);
  }

 private:
  void AddSites(const std::string& param, std::vector<Site>& sites) {
    // A value, and how many of its uses are done. A chain of Identity nodes may be longer than a
    // stack is deep.
    std::vector<std::pair<std::string, size_t>> open = {{param, 0}};
    while (!open.empty()) {
      auto& [value, done] = open.back();
      const std::vector<Use>& uses = uses_.Of(value);
      if (done == uses.size()) {
        open.pop_back();
        continue;
      }
      const Use& use = uses[done++];
      if (use.node == nullptr) continue;
      if (use.node->op_type() == "Identity" && use.node->output_size() > 0) {
        const std::string& output = use.node->output(0);
        if (identities_.insert(output).second) open.emplace_back(output, 0);
      } else {
        sites.push_back({use.position, use.input, use.node, open.size() == 1 ? "" : value});
      }
    }
  }

  bool Give(const std::string& param, const std::string& alias) {
    if (!taken_.insert(alias).second) return false;
    found_.of[param].push_back(alias);
    return true;
  }

  bool GiveSource(const std::string& param, const std::string& alias) {
    if (!Give(param, alias)) return false;
    found_.sources.insert(alias);
    return true;
  }

  void FromIdentities(const std::string& param) {
    for (const Site& site : sites_[param]) {
      if (!IsMadeUp(site.via) && IsListed(site.via)) Give(param, site.via);
    }
  }

  // Without a list every name may be one.
  bool IsListed(const std::string& name) const {
    return names_.is_parameter.empty() || names_.is_parameter.contains(name);
  }

  void FromFolding(const std::string& param) {
    auto folded = names_.folded_from.find(param);
    if (folded == names_.folded_from.end()) return;
    for (const std::string& name : folded->second) {
      if (!names_.is_parameter.contains(name) || !GiveSource(param, name)) continue;
      if (folded->second.size() == 1 && IsTransposeOf(name, param)) {
        found_.transpose_of[param] = name;
      }
    }
  }

  // It stands for the weight's transpose where a node is a Linear layer of that weight; or it was
  // aten.t of it, which names it: "t", "t_1". A "permute" or "transpose" may have left the dims as
  // they were.
  bool IsTransposeOf(const std::string& source, const std::string& param) const {
    if (ranks_.at(param) != 2) return false;
    return FunctionOf(param) == "t" || std::ranges::any_of(sites_.at(param), [&](const Site& site) {
             return site.node->op_type() == "MatMul" && site.input == 1 &&
                    LinearWeight(*site.node, names_) == source;
           });
  }

  void FromModules(const std::string& param) {
    if (!IsMadeUp(param)) return;
    for (const Site& site : sites_[param]) {
      std::string module = ModuleOf(*site.node);
      // The module's weight may be the other one: what it works on is folded where it is data of
      // no example.
      const bool folded = WorksOn(*site.node, site.input) && taken_.contains(site.node->input(1));
      if (module.empty() || folded) continue;
      GiveSource(param, module + (IsBias(*site.node, site.input) ? ".bias" : ".weight"));
    }
  }

  // The module's parameters that are nowhere in the file belong to the further uses of a tensor
  // that several uses share: where the node's module is known or another tensor of the node tells
  // it, and else in order if there are as many as uses.
  void FromElimination() {
    // A matrix with several uses has lost a name for certain, a vector may just be shared. What
    // vectors take may leave a matrix the only one.
    for (bool matrices : {true, false, true}) FromElimination(matrices);
  }

  void FromElimination(bool matrices) {
    for (const std::string& param : params_) {
      if ((ranks_.at(param) >= 2) != matrices) continue;
      if (!found_.of[param].empty() || !names_.is_parameter.contains(param)) continue;
      const std::vector<Site>& sites = sites_[param];
      const std::vector<std::string>& copies = copies_[param];
      const size_t uses = sites.size() + copies.size();
      if (uses < 2) continue;
      std::vector<std::string> fitting = Lost(param, uses - 1);
      fitting.insert(fitting.begin(), param);
      std::vector<std::string> names(uses);
      for (size_t i = 0; i < sites.size(); ++i) names[i] = ByModule(param, sites[i], fitting);
      for (size_t i = 0; i < copies.size(); ++i) {
        const std::vector<Site>& of_copy = sites_[copies[i]];
        if (!of_copy.empty()) names[sites.size() + i] = ByModule(param, of_copy[0], fitting);
      }
      // The tensor may have kept the name of any of them: where no module tells, the first one's.
      std::erase_if(fitting, [&](const std::string& name) { return Contains(names, name); });
      const bool in_order = std::ssize(fitting) == std::ranges::count(names, "");
      if (!in_order) fitting.resize(Contains(fitting, param) ? 1 : 0);
      for (size_t i = 0, next = 0; i < uses; ++i) {
        if (names[i].empty() && next < fitting.size()) names[i] = fitting[next++];
        if (names[i].empty()) continue;
        if (i < sites.size()) name_at_[{sites[i].node, sites[i].input}] = names[i];
        Give(param, names[i]);
      }
    }
  }

  // Lost names that end as `param` does; those after it in the module's order if they are as many
  // as wanted, because the first of equal tensors is the one that is kept.
  std::vector<std::string> Lost(const std::string& param, size_t wanted) const {
    std::vector<std::string> all, after;
    bool is_after = false;
    for (const std::string& name : names_.parameters) {
      is_after |= name == param;
      if (LastPart(name) != LastPart(param) || taken_.contains(name)) continue;
      all.push_back(name);
      if (is_after) after.push_back(name);
    }
    return after.size() == wanted ? after : all;
  }

  std::string ByModule(const std::string& param, const Site& site,
                       const std::vector<std::string>& fitting) const {
    std::vector<std::string> modules = {ModuleOf(*site.node)};
    for (int i = 0; i < site.node->input_size(); ++i) {
      const std::string name = i == site.input ? "" : NameAt(*site.node, i);
      const size_t dot = name.rfind('.');
      if (dot != name.npos) modules.push_back(name.substr(0, dot));
    }
    for (const std::string& module : modules) {
      std::string name = module + "." + LastPart(param);
      if (Contains(fitting, name)) return name;
    }
    return "";
  }

  // What the module calls the node's operand; empty where that is not known: a tensor with several
  // uses has the name of one of them.
  std::string NameAt(const NodeProto& node, int input) const {
    const auto named = name_at_.find({&node, input});
    if (named != name_at_.end()) return named->second;
    const auto sites = sites_.find(node.input(input));
    const bool shared = sites != sites_.end() && sites->second.size() > 1;
    return shared ? "" : node.input(input);
  }

  const std::vector<std::string>& params_;
  const Uses& uses_;
  const ModuleNames& names_;
  std::set<std::string> taken_, identities_;
  std::map<std::string, int> ranks_;
  std::map<std::string, std::vector<Site>> sites_;
  std::map<std::string, std::vector<std::string>> copies_;  // what was folded from it alone
  std::map<std::pair<const NodeProto*, int>, std::string> name_at_;
  AliasesFound found_;
};

}  // namespace

AliasesFound FindAliases(const std::vector<std::string>& params, const Uses& uses,
                         const ModuleNames& names) {
  return Aliases(params, uses, names).Run();
}

}  // namespace shardc::onnx_import
