// What each parameter is for, from structure alone: names differ between exporters.
#include "frontend/recover/roles.h"

#include <algorithm>

#include "frontend/recover/patterns.h"
#include "ir/op_def.h"

namespace shardc::recover {
namespace {

bool HasRole(const Op* param) { return param->attrs.Has("role"); }

void SetNormRoles(const Graph& graph) {
  for (const auto& op : graph.ops()) {
    if (!IsNorm(op.get())) continue;
    for (size_t i = 1; i < op->operands.size(); ++i) {
      const Value* v = ArrangedFrom(op->operands[i]);
      if (v->type.num_elements() != op->in(static_cast<int>(i)).num_elements()) continue;
      SetRole(ProducedBy(v, "param"), "NORM", i == 1 ? "weight" : "bias");
    }
  }
}

bool ReachesOutput(const Graph& graph, const Value* v, int depth = 0) {
  if (graph.IsOutput(v)) return true;
  if (depth > 8) return false;
  return std::any_of(v->users.begin(), v->users.end(), [&](const Op* user) {
    if (OneOf(user->name(), {"cross_entropy", "softmax"})) return true;
    return (user->def->elementwise ||
            OneOf(user->name(), {"reshape", "cast", "slice", "split", "transpose", "concat"})) &&
           std::ranges::any_of(user->results, [&](const Value* result) {
             return ReachesOutput(graph, result, depth + 1);
           });
  });
}

void SetHeadRoles(const Graph& graph, const std::set<int64_t>& vocabularies, LinearRoles& roles) {
  for (const Linear& linear : roles.linears()) {
    if (linear.experts) continue;
    if (HasRole(linear.weight) && LinearRoles::Of(linear) != "TOKEN_EMBEDDING") continue;
    if (!vocabularies.contains(linear.matmul->out().shape.back())) continue;
    if (ReachesOutput(graph, linear.out)) roles.Set(linear, "LM_HEAD");
  }
}

// Without those that are as large as the width of a table's rows: there what goes to one may go
// back to the residual stream.
std::set<int64_t> WithoutWidths(const Graph& graph, std::set<int64_t> vocabularies) {
  for (const Op* param : graph.Params()) {
    if (param->attrs.String("role", "") == "TOKEN_EMBEDDING")
      vocabularies.erase(param->out().shape.back());
  }
  return vocabularies;
}

// Where q, k and v were made one product, with a bias for each added after it is split.
void SetRoleOfPiecesBiases(const Linear& linear, const std::string& role) {
  for (const Op* split : linear.out->users) {
    if (split->name() != "split" || !IsLastAxis(split->attrs.Int("axis"), split->in(0).rank()))
      continue;
    for (const Value* piece : split->results) {
      for (const Op* add : piece->users) {
        Op* bias = add->name() == "add" ? ProducedBy(add->operands[1], "param") : nullptr;
        if (bias && bias->out().rank() == 1) SetRole(bias, role, "bias");
      }
    }
  }
}

}  // namespace

void SetRole(Op* param, const std::string& role, const std::string& part) {
  if (param == nullptr || HasRole(param)) return;
  param->attrs.Set("role", role);
  param->attrs.Set("part", part);
}

LinearRoles::LinearRoles(const Graph& graph) : linears_(FindLinears(graph)) {
  for (const Linear& linear : linears_) {
    at_[linear.matmul->result()] = &linear;
    outs_.insert(linear.out);
  }
}

const Linear* LinearRoles::At(const Value* v) const {
  auto it = at_.find(v);
  return it == at_.end() ? nullptr : it->second;
}

void LinearRoles::Set(const Linear& linear, const std::string& role) {
  const bool by_rows = OneOf(role, {"ATTENTION_OUT", "MLP_DOWN"});
  const Ints& wanted = by_rows ? linear.rows : linear.columns;
  auto [cut, first] = cuts_.try_emplace(linear.weight, wanted);
  const bool piece = linear.matmul->in(1).num_elements() < linear.weight->out().num_elements();
  if (!first && piece && cut->second != wanted) torn_.insert(linear.weight);
  if (!HasRole(linear.weight)) {
    SetRole(linear.weight, role, "weight");
    const int64_t rank = linear.weight->out().rank();
    const bool stack = !linear.stacked.empty() && role.starts_with("MLP_");
    if (linear.rows != Ints{rank - 2} || linear.columns != Ints{rank - 1} || stack) {
      linear.weight->attrs.Set("rows", linear.rows);
      linear.weight->attrs.Set("columns", linear.columns);
    }
    if (stack) linear.weight->attrs.Set("stacked", linear.stacked);
  }
  SetRoleOfPiecesBiases(linear, role);
  for (Op* piece : linear.bias_pieces) SetRole(piece, role, "bias");
  const auto& [bias, columns, parts] = linear.bias;
  if (bias == nullptr || HasRole(bias)) return;
  SetRole(bias, role, "bias");
  const bool stack = parts > 1 && role.starts_with("MLP_");
  if (columns != Ints{bias->out().rank() - 1} || stack) bias->attrs.Set("columns", columns);
  if (stack) bias->attrs.Set("stacked", Ints{columns[0], parts});
}

void LinearRoles::ClearTorn() {
  for (const Linear& linear : linears_) {
    if (!torn_.contains(linear.weight)) continue;
    std::vector<Op*> params = linear.bias_pieces;
    params.insert(params.end(), {linear.weight, linear.bias.param});
    for (Op* param : params) {
      for (const char* attr : {"role", "part", "rows", "columns", "stacked"}) {
        if (param) param->attrs.Erase(attr);
      }
    }
  }
}

void SetRoles(Graph& graph) {
  LinearRoles roles(graph);
  SetNormRoles(graph);
  const std::set<int64_t> vocabularies = SetEmbeddingRoles(graph);
  SetAttentionRoles(graph, roles);
  SetRolesOfRates(roles);
  // Before MLPs: a head may be behind an activation, as Medusa's.
  SetHeadRoles(graph, WithoutWidths(graph, vocabularies), roles);
  SetMlpRoles(graph, roles);
  SetHeadRoles(graph, vocabularies, roles);
  SetMixerRoles(roles);
  roles.ClearTorn();
}

}  // namespace shardc::recover
