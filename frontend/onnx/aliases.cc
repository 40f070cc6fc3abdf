#include "frontend/onnx/aliases.h"

#include <algorithm>
#include <string_view>

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
bool IsMadeUp(const std::string& name) {
  return name.empty() || name.starts_with('/') || name.find("::") != name.npos;
}

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

std::string LastPart(const std::string& name) {
  size_t dot = name.rfind('.');
  return dot == name.npos ? name : name.substr(dot + 1);
}

class Aliases {
 public:
  Aliases(const std::vector<std::string>& params, const Uses& uses, const ModuleNames& names)
      : params_(params), uses_(uses), names_(names) {
    for (const auto* t : uses.initializers()) {
      taken_.insert(t->name());
      if (t->dims_size() >= 2) matrices_.insert(t->name());
    }
    for (const std::string& param : params) {
      auto folded = names.folded_from.find(param);
      if (folded != names.folded_from.end()) {
        for (const std::string& source : std::set(folded->second.begin(), folded->second.end()))
          ++copies_[source];
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

  bool IsTransposeOf(const std::string& source, const std::string& param) const {
    return matrices_.contains(param) &&
           std::ranges::any_of(sites_.at(param), [&](const Site& site) {
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
      if (matrices_.contains(param) != matrices) continue;
      if (!found_.of[param].empty() || !names_.is_parameter.contains(param)) continue;
      const std::vector<Site>& sites = sites_[param];
      size_t further = sites.size() + copies_[param];
      if (further-- < 2) continue;
      std::vector<std::string> fitting = Lost(param, further);
      bool in_order = fitting.size() == further;
      for (size_t i = 1; i <= further; ++i) {
        std::string name = i < sites.size() ? ByModule(param, sites[i], fitting) : "";
        if (name.empty() && in_order) name = fitting[i - 1];
        if (name.empty()) continue;
        if (i < sites.size()) name_at_[{sites[i].node, sites[i].input}] = name;
        Give(param, name);
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
      auto named = name_at_.find({site.node, i});
      const std::string& name = named == name_at_.end() ? site.node->input(i) : named->second;
      size_t dot = name.rfind('.');
      if (i != site.input && dot != name.npos) modules.push_back(name.substr(0, dot));
    }
    for (const std::string& module : modules) {
      std::string name = module + "." + LastPart(param);
      if (std::find(fitting.begin(), fitting.end(), name) != fitting.end()) return name;
    }
    return "";
  }

  const std::vector<std::string>& params_;
  const Uses& uses_;
  const ModuleNames& names_;
  std::set<std::string> taken_, identities_, matrices_;
  std::map<std::string, std::vector<Site>> sites_;
  std::map<std::string, size_t> copies_;  // how many tensors of the file were folded from it
  std::map<std::pair<const NodeProto*, int>, std::string> name_at_;
  AliasesFound found_;
};

}  // namespace

AliasesFound FindAliases(const std::vector<std::string>& params, const Uses& uses,
                         const ModuleNames& names) {
  return Aliases(params, uses, names).Run();
}

}  // namespace shardc::onnx_import
