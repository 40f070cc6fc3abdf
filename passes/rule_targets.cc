#include "passes/rule_targets.h"

#include <algorithm>
#include <set>
#include <unordered_set>

#include "ir/contains.h"
#include "ir/op_def.h"
#include "passes/counted_dims.h"
#include "passes/layout.h"
#include "passes/param_names.h"

namespace shardc {
namespace {

NameOf HowNamed(const Op& param, const std::string& name) {
  auto in = [&](const char* list) { return Contains(param.attrs.StringList(list, {}), name); };
  if (in("transposed_aliases") || name == param.attrs.String("transpose_of", "")) {
    return NameOf::kTranspose;
  }
  return in("source_aliases") ? NameOf::kUnknown : NameOf::kSame;
}

// Every module that an op is in: "a.b.c", "a.b" and "a".
std::vector<std::string> ModulesOf(const Op& op) {
  std::vector<std::string> modules;
  for (size_t end = op.site.size(); end != std::string::npos && end > 0;
       end = op.site.rfind('.', end - 1)) {
    modules.push_back(op.site.substr(0, end));
  }
  return modules;
}

// Whether something outside of the module reads the value.
bool Leaves(const Graph& graph, const Value* value, const std::string& module) {
  if (graph.IsOutput(value)) return true;
  return std::any_of(value->users.begin(), value->users.end(), [&](const Op* user) {
    if (user->def->constrains) return Leaves(graph, user->result(), module);
    return user->site != module && !user->site.starts_with(module + ".");
  });
}

// Whether the op makes each element of its results of one of its only operand's.
bool Arranges(const Op& op) {
  if (op.operands.size() != 1) return false;
  const ShardingRule rule = op.def->rule(op);
  const std::vector<std::vector<int>> in_it = {{0}};
  return rule.linear == in_it && std::ranges::all_of(rule.operands[0], [&](const DimFactors& d) {
           return std::ranges::all_of(d.factors, [&](int factor) {
             return std::ranges::any_of(rule.results, [&](const auto& result) {
               return DimOfFactor(result, factor) >= 0;
             });
           });
         });
}

// What depends on no input.
std::unordered_set<const Value*> MadeOfNoInput(const Graph& graph) {
  std::unordered_set<const Value*> made;
  for (const auto& op : graph.ops()) {
    const bool all =
        std::ranges::all_of(op->operands, [&](const Value* v) { return made.contains(v); });
    if (all) made.insert(op->results.begin(), op->results.end());
  }
  return made;
}

// The first ops behind a parameter that read an input too: of what a model scales or normalises
// before it multiplies by it, the product.
std::vector<const Op*> ProductsOf(const Value* param,
                                  const std::unordered_set<const Value*>& weights) {
  std::vector<const Op*> products;
  std::vector<const Value*> made = {param};
  std::unordered_set<const Op*> seen;
  for (size_t i = 0; i < made.size(); ++i) {
    for (const Op* user : UsersOf(made[i])) {
      if (user->results.empty() || !seen.insert(user).second) continue;
      if (weights.contains(user->results[0])) {
        made.insert(made.end(), user->results.begin(), user->results.end());
      } else {
        products.push_back(user);
      }
    }
  }
  return products;
}

}  // namespace

bool Matches(const SpecRule& rule, const Op& param) {
  if (!rule.role.empty() && param.attrs.String("role", "") != rule.role) return false;
  if (!rule.part.empty() && param.attrs.String("part", "weight") != rule.part) return false;
  if (rule.match.empty()) return true;
  auto names = NamesOf(param);
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& n) { return GlobMatch(rule.match, n); });
}

NameOf MatchedBy(const SpecRule& rule, const Op& param) {
  NameOf best = NameOf::kUnknown;
  for (const std::string& name : NamesOf(param)) {
    if (GlobMatch(rule.match, name)) best = std::min(best, HowNamed(param, name));
  }
  return best;
}

std::vector<const Op*> UsersOf(const Value* param) {
  const bool table = param->producer->attrs.String("role", "").ends_with("EMBEDDING");
  std::vector<const Op*> users;
  std::vector<const Value*> arranged = {param};
  for (size_t i = 0; i < arranged.size(); ++i) {
    for (const Op* user : arranged[i]->users) {
      if (!user->def->rule || user->results.empty()) continue;
      if (Arranges(*user) && !(table && user->def->picks)) {
        arranged.insert(arranged.end(), user->results.begin(), user->results.end());
      } else {
        users.push_back(user);
      }
    }
  }
  return users;
}

Value* WithBias(const Graph& graph, const Op* op) {
  Value* out = op->result();
  for (const Op* add = graph.OnlyUser(out); add && add->name() == "add";
       add = graph.OnlyUser(out)) {
    const Value* other = add->operands[add->operands[0] == out];
    if (!other->producer || other->producer->name() != "param" || other->type.rank() != 1) break;
    out = add->result();
  }
  return out;
}

std::vector<std::string> ModulesOf(const Graph& graph) {
  std::set<std::string> modules;
  for (const auto& op : graph.ops()) {
    for (std::string& m : ModulesOf(*op)) modules.insert(std::move(m));
  }
  return {modules.begin(), modules.end()};
}

std::vector<Value*> ValuesOfModules(const Graph& graph, const std::string& match) {
  std::vector<Value*> values;
  for (const auto& op : graph.ops()) {
    if (op->def->is_state || op->def->constrains || op->operands.empty()) continue;
    for (const std::string& module : ModulesOf(*op)) {
      if (!GlobMatch(match, module)) continue;
      for (Value* r : op->results) {
        // Scalars are a loss and its parts: nothing to cut.
        if (r->type.rank() > 0 && Leaves(graph, r, module)) values.push_back(r);
      }
    }
  }
  return values;
}

std::vector<Value*> ValuesOfRole(const Graph& graph, const std::string& role) {
  std::vector<Value*> values;
  const std::unordered_set<const Value*> weights = MadeOfNoInput(graph);
  for (Op* param : graph.Params()) {
    const std::string& own = param->attrs.String("role", "");
    if (param->attrs.String("part", "weight") != "weight") continue;
    // What each expert makes is no value of the whole layer, as their sum is.
    if (own == "MLP_DOWN" && DimsByRole(*param).size() > 2) continue;
    for (const Op* user : ProductsOf(param->result(), weights)) {
      // A tied weight looks tokens up and makes the logits.
      const bool head = own == "TOKEN_EMBEDDING" && !user->def->picks;
      if ((head ? "LM_HEAD" : own) == role) values.push_back(WithBias(graph, user));
    }
  }
  return values;
}

}  // namespace shardc
