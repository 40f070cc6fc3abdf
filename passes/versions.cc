#include "passes/versions.h"

#include <algorithm>
#include <limits>

#include "ir/op_def.h"
#include "passes/provenance.h"
#include "passes/reshard_cost.h"
#include "passes/weights.h"

namespace shardc {
namespace {

bool IsConstraint(const Op* user) { return user && user->def->constrains; }

}  // namespace

Versions::Versions(Graph& graph) : graph_(graph), weights_(WeightsOf(graph)) {}

std::span<Value* const> Versions::Of(const Value* value) const {
  auto it = versions_.find(Root(value));
  return it == versions_.end() ? std::span<Value* const>() : it->second;
}

const Sharding* Versions::WishOf(const Value* value) const {
  auto it = wishes_.find(value);
  return it == wishes_.end() ? nullptr : &it->second;
}

const Value* Versions::Root(const Value* value) const {
  auto it = roots_.find(value);
  return it == roots_.end() ? value : it->second;
}

Value* Versions::Get(Value* value, const Sharding& want, Op* user) {
  if (value->type.sharding == want) return value;
  const Mesh& mesh = graph_.mesh;
  Value* root = const_cast<Value*>(Root(value));
  auto& versions = versions_[root];
  if (versions.empty()) versions.push_back(root);
  Value* source = nullptr;
  double best = std::numeric_limits<double>::infinity();
  // A constraint on a weight is there to have a version of it that lives no longer than its uses.
  const bool own = IsConstraint(user) && IsWeight(root);
  for (Value* v : versions) {
    if (own && v != root) continue;
    if (v->type.sharding == want) return v;
    double cost = ReshardBytes(v->type, want, mesh);
    if (cost < best) {
      best = cost;
      source = v;
    }
  }
  SHARDC_CHECK(source, "no way from ", TypeToString(root->type, mesh), " to ",
               TypeToString({root->type.dtype, root->type.shape, want}, mesh));
  // Several users of a partial value share one reduction, to what was wished for.
  const bool shared = root->users.size() + (graph_.IsOutput(root) ? 1 : 0) > 1;
  if (source == root && root->type.sharding.partial() && shared && versions.size() == 1) {
    const Sharding* wish = WishOf(root);
    if (wish && *wish != want &&
        ReshardBytes({root->type.dtype, root->type.shape, *wish}, want, mesh) == 0) {
      source = Make(root, *wish, user, versions);
    }
  }
  return Make(source, want, user, versions);
}

Value* Versions::Make(Value* source, const Sharding& want, Op* user,
                      std::vector<Value*>& versions) {
  const Mesh& mesh = graph_.mesh;
  TensorType type(source->type.dtype, source->type.shape, want);
  CheckSharding(type, mesh, user ? Describe(*user) : "output");
  const Op* producer = source->producer;
  const bool partial = source->type.sharding.partial();
  // A sum begins at once where it leaves less to be kept, or has time until a later phase.
  const bool early =
      partial && user && producer &&
      (producer->phase != user->phase || LocalBytes(type, mesh) < LocalBytes(source->type, mesh));
  Op* before = user && !early ? user
               : producer     ? graph_.Next(producer)
                              : graph_.ops().front().get();
  Op* op = graph_.AddOp(GetOpDef("reshard"), {source}, {type}, {}, before);
  const Op* cause = partial || !user || IsConstraint(user) ? producer : user;
  op->phase = IsConstraint(user) ? user->phase : cause ? cause->phase : Phase::kForward;
  if (cause) op->BelongWith(*cause);
  if (IsConstraint(user)) {
    op->stage = user->stage;
    op->virtual_stage = user->virtual_stage;
    op->microbatch = user->microbatch;
  }
  Value* made = op->result();
  op->attrs.Set("why", Explain(source, made, user));
  op->attrs.Set("for", std::string(cause ? cause->name() : "input"));
  made->provenance = source->provenance;
  if (IsConstraint(user)) {
    // It stands for the constraint's result from here on.
    for (int axis = 0; axis < mesh.num_axes(); ++axis) {
      const int step = ProvenanceOf(user->result(), axis);
      if (step >= 0 && PlacementOf(source->type, axis, mesh) != PlacementOf(type, axis, mesh))
        SetProvenance(made, axis, step);
    }
  }
  if (IsWeight(source)) weights_.insert(made);
  roots_[made] = Root(source);
  versions.push_back(made);
  return made;
}

Strings Versions::Explain(const Value* source, const Value* made, const Op* user) const {
  const Mesh& mesh = graph_.mesh;
  Strings why;
  auto explain = [&](int last) { AddReasons(why, ProvenanceChain(graph_, last)); };
  for (int axis = 0; axis < mesh.num_axes(); ++axis) {
    const Placement from = PlacementOf(source->type, axis, mesh),
                    to = PlacementOf(made->type, axis, mesh);
    if (from == to) continue;
    int step = ProvenanceOf(source, axis);
    if (from.kind == Placement::kWhole && user) {
      for (const Value* r : user->results) step = std::max(step, ProvenanceOf(r, axis));
    }
    explain(step);
    // A constraint says why itself.
    auto reason = reasons_.find({source, axis});
    if (reason != reasons_.end() && from.kind != Placement::kWhole && to.kind == Placement::kCut &&
        !IsConstraint(user)) {
      explain(reason->second);
    }
  }
  if (IsConstraint(user)) {
    const Strings spec = WhyOf(*user);
    why.insert(why.end(), spec.begin(), spec.end());
  } else {
    why.push_back((user ? Describe(*user) + " needs it as " : "an output of the graph is ") +
                  ShardingToString(made->type, mesh));
  }
  return why;
}

}  // namespace shardc
