#include "passes/zero.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <unordered_set>

#include "ir/choices.h"
#include "ir/op_def.h"
#include "passes/bucket.h"
#include "passes/constrain.h"
#include "passes/layout.h"
#include "passes/provenance.h"
#include "passes/split_axes.h"
#include "passes/weights.h"

namespace shardc {
namespace {

// The axes that the spec names, or the parts they were split into; those of one rank left out.
std::set<int> NamedAxes(const Graph& graph, const Spec& spec) {
  std::set<int> axes;
  for (const std::string& name : spec.zero.axes) {
    bool found = std::any_of(spec.mesh.begin(), spec.mesh.end(),
                             [&](const MeshAxis& a) { return a.name == name; });
    const bool whole = graph.mesh.FindAxis(name).has_value();
    for (int axis = 0; axis < static_cast<int>(graph.mesh.axes().size()); ++axis) {
      const MeshAxis& a = graph.mesh.axes()[axis];
      if (whole ? a.name != name : !IsPartOfAxis(a.name, name)) continue;
      found = true;
      if (a.size > 1) axes.insert(axis);
    }
    if (!found) {
      throw Diagnostic(
          "E2104", ExitCode::kBadSpec, spec.zero.axes_where,
          StrCat("zero_axes: axis '", name, "' is not in the mesh ", graph.mesh.ToString()),
          Choices(name, "axes", graph.mesh.Names()));
    }
  }
  return axes;
}

std::set<int> BatchAxes(const Graph& graph, const Spec& spec) {
  std::set<int> axes;
  for (const auto& input : graph.inputs()) {
    if (input->type.rank() == 0) continue;
    const AxisList& cut = input->type.sharding.dims[0].axes;
    axes.insert(cut.begin(), cut.end());
  }
  const bool meant = std::any_of(spec.inputs.begin(), spec.inputs.end(),
                                 [](const SpecRule& rule) { return !rule.cuts.empty(); });
  if (axes.empty() && !meant) {
    throw Diagnostic("E2108", ExitCode::kBadSpec, spec.zero.where,
                     StrCat("zero_stage ", *spec.zero.stage,
                            " needs ranks that share the batch, and "
                            "no axis cuts the first dim of an input"),
                     "cut the inputs (input { match: \"*\" shard_spec { dims: 0 axes: \"dp\" } }), "
                     "or name the axes with zero_axes");
  }
  return axes;
}

// The dim with the axes behind those that cut it; nothing when they do not fit there.
std::optional<DimSharding> WithAxes(int64_t size, const DimSharding& now, const AxisList& axes,
                                    const Mesh& mesh) {
  // Propagation adds axes in mesh order.
  if (now.cut() && now.axes.back() > axes[0]) return std::nullopt;
  if (now.axes.size() + axes.size() > AxisList::kMax || !now.segments.empty()) return std::nullopt;
  DimSharding with = now;
  for (int a : axes) with.axes.push_back(a);
  if (!FillsParts(size, with, mesh)) return std::nullopt;
  return Canonical(size, std::move(with), mesh);
}

// Whether what views the value has its cuts with this one too. A reshape that merges two dims, of
// which tp cuts the first, has not.
bool ViewsHave(const Value& value, int dim, const DimSharding& with, const Mesh& mesh) {
  return std::ranges::all_of(value.users, [&](const Op* user) {
    if (!user->def->rule || user->operands.size() != 1 || user->results.size() != 1) return true;
    const ShardingRule rule = user->def->rule(*user);
    std::vector<FactorCut> cuts;
    for (int d = 0; d < value.type.rank(); ++d) {
      const auto at = static_cast<size_t>(d);
      const DimSharding& cut = d == dim ? with : value.type.sharding.dims[at];
      if (!cut.cut()) continue;
      auto of_dim = ProjectToFactors(rule, rule.operands[0][at], value.type.shape[at], cut, mesh);
      if (!of_dim) return false;
      std::ranges::copy(*of_dim, std::back_inserter(cuts));
    }
    for (size_t r = 0; r < user->out().shape.size(); ++r) {
      if (!LiftToDim(rule, rule.results[0][r], user->out().shape[r], cuts, mesh)) return false;
    }
    return true;
  });
}

// The sharding with a dim cut over the axes, or over the first of them; nothing where no dim can.
std::optional<std::pair<int, DimSharding>> ChooseDim(const Value& value, AxisList axes,
                                                     const Mesh& mesh) {
  const TensorType& type = value.type;
  for (; !axes.empty(); axes.erase(axes.back())) {
    std::optional<std::pair<int, DimSharding>> best;
    int best_rank = 0;
    for (int d = 0; d < type.rank(); ++d) {
      auto with = WithAxes(type.shape[d], type.sharding.dims[d], axes, mesh);
      if (!with) continue;
      const bool padded = HasPadding(type.shape[d], *with, mesh);
      const int rank = (ViewsHave(value, d, *with, mesh) ? 2 : 0) + (padded ? 0 : 1);
      const bool better = !best || rank > best_rank ||
                          (rank == best_rank && padded && type.shape[d] > type.shape[best->first]);
      if (!better) continue;
      best = {d, std::move(*with)};
      best_rank = rank;
    }
    if (best) return best;
  }
  return std::nullopt;
}

constexpr int kSeveral = -2;

// The microbatch that all terms of a sum are of, or kSeveral. The terms: sums of one microbatch
// each, as they are before they are widened to be added.
int CollectTerms(const Graph& graph, Value* v, std::vector<Value*>& terms) {
  const Op* op = v->producer;
  if (op && op->name() == "add" && op->in(0) == op->in(1) && graph.OnlyUser(op->operands[0]) &&
      graph.OnlyUser(op->operands[1])) {
    std::vector<Value*> within;
    const int a = CollectTerms(graph, op->operands[0], within);
    const int b = CollectTerms(graph, op->operands[1], within);
    if (a != b || a == kSeveral) {
      terms.insert(terms.end(), within.begin(), within.end());
      return kSeveral;
    }
  }
  while (op && op->name() == "cast" && graph.OnlyUser(op->operands[0])) {
    v = op->operands[0];
    op = v->producer;
  }
  terms.push_back(v);
  return op ? op->microbatch : -1;
}

class Gathering {
 public:
  Gathering(Graph& graph, const Zero& zero)
      : graph_(graph),
        zero_(zero),
        weights_(WeightsOf(graph)),
        names_(graph.mesh.Names(zero.axes)) {
    graph.NumberOps();
  }

  void Run() {
    for (Op* param : graph_.Params()) {
      const std::string& name = param->attrs.String("name");
      if (zero_.params.contains(name)) Visit(param->result(), name, {});
    }
  }

 private:
  // In the whole step, or by microbatch in the forward and in the backward.
  using When = std::pair<int, Phase>;

  // `whole`: what the value is made of, where that is gathered.
  void Visit(Value* value, const std::string& param, const std::map<When, Value*>& whole) {
    if (!seen_.insert(value).second) return;
    std::map<When, std::vector<Op*>> uses;
    std::vector<Value*> made;
    for (Op* user : value->users) {
      const bool makes_weights = !user->results.empty() && weights_.contains(user->results[0]);
      if (makes_weights) {
        made.insert(made.end(), user->results.begin(), user->results.end());
      } else if (user->phase != Phase::kOptimizer) {
        uses[zero_.stage < 3 ? When(-1, Phase::kForward) : When(user->microbatch, user->phase)]
            .push_back(user);
      }
    }
    std::map<When, Value*> gathered;
    // Stages 1 and 2 keep what is whole until its last use in a step. With few tokens that is most
    // of the memory, and there nothing is made before it is used.
    const Op& maker = *value->producer;
    const bool again = zero_.stage == 3 && maker.operands.size() == 1 && maker.results.size() == 1;
    for (const auto& [when, users] : uses) {
      auto source = whole.find(when);
      const bool there =
          again && source != whole.end() && source->second->producer->id <= First(users)->id;
      gathered[when] =
          there ? MakeAgain(value, users, source->second) : Gather(value, users, param, when.first);
    }
    for (Value* v : made) Visit(v, param, gathered);
  }

  static Op* First(const std::vector<Op*>& users) {
    return *std::min_element(users.begin(), users.end(),
                             [](const Op* a, const Op* b) { return a->id < b->id; });
  }

  // The op that makes the value, on what is whole already: nothing more travels.
  Value* MakeAgain(Value* value, const std::vector<Op*>& users, Value* whole) {
    const Op& maker = *value->producer;
    Op* op = graph_.AddOp(*maker.def, {whole}, {TensorType(value->type.dtype, value->type.shape)},
                          maker.attrs, graph_.Next(whole->producer), *whole->producer);
    op->id = whole->producer->id;
    for (Op* user : users) graph_.ReplaceUses(user, value, op->result());
    return op->result();
  }

  Value* Gather(Value* value, const std::vector<Op*>& users, const std::string& param,
                int microbatch) {
    Op* first = First(users);
    Op* op = graph_.AddOp(
        GetOpDef("sharding_constraint"), {value},
        {TensorType(value->type.dtype, value->type.shape)},
        {{"axes", names_},
         {"why", Strings{StrCat(zero_.why, " gathers parameter ", param, " where it is used")}}},
        first, *first);
    op->microbatch = microbatch;
    op->id = first->id;
    for (Op* user : users) graph_.ReplaceUses(user, value, op->result());
    return op->result();
  }

  Graph& graph_;
  const Zero& zero_;
  std::unordered_set<const Value*> weights_;
  Strings names_;
  std::unordered_set<const Value*> seen_;
};

}  // namespace

Zero ResolveZero(Graph& graph, const Spec& spec, bool optimizer) {
  Zero zero;
  const int stage = spec.zero.stage.value_or(0);
  const std::set<int> named = NamedAxes(graph, spec);
  if (stage == 0) return zero;
  if (stage < 3 && !optimizer) {
    throw Diagnostic(
        "E2109", ExitCode::kBadSpec, spec.zero.where,
        StrCat("zero_stage ", stage, " cuts what an optimizer keeps, and there is none"),
        "add --optimizer adamw, or compile with --zero 0");
  }
  const std::set<int> axes = spec.zero.axes.empty() ? BatchAxes(graph, spec) : named;
  const auto stages = graph.mesh.FindAxis(graph.pipeline_axis);
  if (!graph.pipeline_axis.empty() && stages && axes.contains(*stages)) {
    throw Diagnostic("E2122", ExitCode::kBadSpec, spec.zero.axes_where,
                     StrCat("'", graph.pipeline_axis, "' is the pipeline's axis: its ranks hold ",
                            "different parameters, and nothing is cut over it"),
                     "name other axes in zero_axes, or leave it out");
  }
  if (axes.empty()) {
    graph.notes.push_back(
        StrCat("zero_stage ", stage, ": the axes that it would cut over have one rank each"));
    return zero;
  }
  zero.stage = stage;
  for (int a : axes) zero.axes.push_back(a);
  zero.why = StrCat(spec.zero.where, ": zero_stage ", stage);
  return zero;
}

void CutParams(Graph& graph, Zero& zero) {
  if (zero.stage == 0) return;
  for (Op* param : graph.Params()) {
    Value* value = param->result();
    TensorType& type = value->type;
    const std::string& name = param->attrs.String("name");
    if (!IsFloat(type.dtype) || (type.rank() < 2 && type.bytes() <= kBucketBytes)) continue;
    if (zero.stage < 3 && !graph.FindOutput(GradientName(name))) continue;
    AxisList axes;
    for (int a : zero.axes) {
      if (!type.sharding.Uses(a)) axes.push_back(a);
    }
    auto cut = ChooseDim(*value, axes, graph.mesh);
    if (!cut) continue;
    const int dim = cut->first;
    type.sharding.dims[dim] = std::move(cut->second);
    zero.params.insert(name);
    for (int a : type.sharding.dims[dim].axes) {
      if (!axes.contains(a)) continue;
      SetProvenance(value, a,
                    AddProvenance(graph, -1,
                                  StrCat(zero.why, " cuts dim ", dim, " of parameter ", name,
                                         " over ", graph.mesh.axes()[a].name)));
    }
  }
}

void CutGradients(Graph& graph, const Zero& zero) {
  if (zero.stage < 2) return;
  for (const Op* param : graph.Params()) {
    const std::string& name = param->attrs.String("name");
    Value* gradient = graph.FindOutput(GradientName(name));
    if (!gradient || !zero.params.contains(name)) continue;
    std::vector<Value*> terms;
    if (CollectTerms(graph, gradient, terms) != kSeveral) continue;
    Sharding cut(param->out().shape.size());
    Strings axes;
    for (size_t d = 0; d < cut.dims.size(); ++d) {
      const DimSharding& dim = param->out().sharding.dims[d];
      const bool zeros = std::any_of(zero.axes.begin(), zero.axes.end(),
                                     [&](int a) { return dim.axes.contains(a); });
      if (!zeros) continue;
      cut.dims[d] = dim;
      for (int a : dim.axes) axes.push_back(graph.mesh.axes()[a].name);
    }
    for (Value* term : terms) {
      if (!term->producer) continue;
      Constrain(graph, term, cut, axes,
                StrCat(zero.why, " cuts the gradient of parameter ", name, " in each microbatch"));
    }
  }
}

void GatherParams(Graph& graph, const Zero& zero) {
  if (!zero.params.empty()) Gathering(graph, zero).Run();
}

}  // namespace shardc
