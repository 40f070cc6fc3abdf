// What the steps of SetRoles share, one file each.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "frontend/recover/linears.h"

namespace shardc::recover {

// Sets `role` and `part` of a parameter that has none; null: does nothing.
void SetRole(Op* param, const std::string& role, const std::string& part);

// The products of a graph with weights, and the roles of these.
class LinearRoles {
 public:
  explicit LinearRoles(const Graph& graph);
  LinearRoles(const LinearRoles&) = delete;
  LinearRoles& operator=(const LinearRoles&) = delete;

  const std::vector<Linear>& linears() const { return linears_; }
  // Whose product v is; null where it is none's.
  const Linear* At(const Value* v) const;
  // Whether v is what a linear gives, with its bias or without.
  bool Gives(const Value* v) const { return At(v) || outs_.contains(v); }

  // Empty where the weight has none.
  static std::string Of(const Linear& linear) { return linear.weight->attrs.String("role", ""); }
  // Of the weight, and of the bias, where they have none.
  void Set(const Linear& linear, const std::string& role);
  // Takes the roles of a parameter away that holds several weights which Megatron-LM cuts along
  // other dims: no cut of it serves all.
  void ClearTorn();

 private:
  std::vector<Linear> linears_;
  std::map<const Value*, const Linear*> at_;
  std::set<const Value*> outs_;     // Linear::out
  std::map<const Op*, Ints> cuts_;  // of weights with a role, the dims that Megatron-LM cuts
  std::set<const Op*> torn_;
};

// TOKEN_EMBEDDING and POSITION_EMBEDDING. Returns the sizes of the vocabularies.
std::set<int64_t> SetEmbeddingRoles(Graph& graph);
// QKV and ATTENTION_OUT.
void SetAttentionRoles(const Graph& graph, LinearRoles& roles);
// QKV of what decays or gates each head of an attention without a softmax, beside its q, k and v.
void SetRolesOfRates(LinearRoles& roles);
// MLP_UP, MLP_GATE and MLP_DOWN.
void SetMlpRoles(const Graph& graph, LinearRoles& roles);
// QKV and ATTENTION_OUT of what mixes a sequence otherwise, of linears that have no role yet.
void SetMixerRoles(LinearRoles& roles);

}  // namespace shardc::recover
