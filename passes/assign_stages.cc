#include "passes/assign_stages.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string_view>
#include <tuple>
#include <unordered_set>

#include "ir/diagnostic.h"
#include "ir/op_def.h"
#include "passes/find_layers.h"
#include "passes/layer_passes.h"
#include "passes/numbering.h"
#include "passes/weights.h"

namespace shardc {
namespace {

constexpr int kNone = -1;

// Cuts a list into `parts` runs of at least one, so that the largest sum is smallest, and of those
// the sums most alike. Gives the length of each.
std::vector<int> Deal(const std::vector<double>& costs, int parts) {
  const int n = static_cast<int>(costs.size());
  std::vector<double> before(costs.size() + 1);
  std::partial_sum(costs.begin(), costs.end(), before.begin() + 1);
  struct Best {
    double largest = std::numeric_limits<double>::infinity(), squares = 0;
    int from = 0;
    bool operator<(const Best& o) const {
      return largest != o.largest ? largest < o.largest : squares < o.squares;
    }
  };
  // best[k][i]: the first i in k runs.
  std::vector<std::vector<Best>> best(static_cast<size_t>(parts) + 1,
                                      std::vector<Best>(costs.size() + 1));
  best[0][0].largest = 0;
  for (size_t k = 1; k < best.size(); ++k) {
    for (int i = static_cast<int>(k); i <= n; ++i) {
      for (int from = static_cast<int>(k) - 1; from < i; ++from) {
        const Best& rest = best[k - 1][from];
        const double sum = before[i] - before[from];
        Best now{std::max(rest.largest, sum), rest.squares + sum * sum, from};
        Best& slot = best[k][i];
        if (now < slot) slot = now;
      }
    }
  }
  std::vector<int> lengths(parts);
  for (int k = parts, i = n; k > 0; --k) {
    const int from = best[k][i].from;
    lengths[static_cast<size_t>(k) - 1] = i - from;
    i = from;
  }
  return lengths;
}

// How good a way to deal is: what the stage with the most has, then the longest run, then how much
// alike runs are. Less is better.
std::tuple<double, double, double> Imbalance(const std::vector<double>& costs,
                                             const std::vector<int>& lengths, int stages) {
  std::vector<double> of_stage(stages);
  double longest = 0, squares = 0;
  size_t layer = 0;
  for (size_t run = 0; run < lengths.size(); ++run) {
    double sum = 0;
    for (int i = 0; i < lengths[run]; ++i) sum += costs[layer++];
    of_stage[run % of_stage.size()] += sum;
    longest = std::max(longest, sum);
    squares += sum * sum;
  }
  return {*std::max_element(of_stage.begin(), of_stage.end()), longest, squares};
}

// Layers go from run to run while that helps.
void Balance(const std::vector<double>& costs, int stages, std::vector<int>& lengths) {
  auto best = Imbalance(costs, lengths, stages);
  for (bool better = true; better;) {
    better = false;
    for (size_t from = 0; from < lengths.size(); ++from) {
      for (size_t to = 0; to < lengths.size(); ++to) {
        if (from == to || lengths[from] == 1) continue;
        std::vector<int> other = lengths;
        --other[from];
        ++other[to];
        if (auto now = Imbalance(costs, other, stages); now < best) {
          best = now;
          lengths = std::move(other);
          better = true;
        }
      }
    }
  }
}

class Assigner {
 public:
  Assigner(Graph& graph, const PipelineSpec& spec, int stages, bool trains)
      : graph_(graph),
        spec_(spec),
        stages_(stages),
        trains_(trains),
        runs_(int64_t{stages} * spec.virtual_stages),
        layers_(JoinPasses(graph, FindLayers(graph))) {}

  void Run() {
    if (Fewer()) DivideLayers();
    PlaceByLayers();
    PlaceBeforeLayers();
    const std::vector<int> run_of = RunOfLayers();
    for (const auto& op : graph_.ops()) {
      const int layer = layer_[op->id];
      if (layer == kNone) continue;
      op->stage = run_of[layer] % stages_;
      op->virtual_stage = run_of[layer] / stages_;
    }
  }

 private:
  bool Fewer() const { return static_cast<int64_t>(layers_.size()) < runs_; }

  void DivideLayers() {
    const size_t whole = layers_.size();
    layers_ = JoinPasses(graph_, FindLayers(graph_, std::numeric_limits<size_t>::max()));
    if (Fewer()) throw TooFewLayers(whole);
    const std::string has = whole > 0 ? StrCat(whole, " layers") : "no layer that repeats";
    graph_.notes.push_back(StrCat("the pipeline over '", spec_.axis, "' has ", Stages(),
                                  ", and the model ", has,
                                  ": it is cut between parts of layers, as attention and MLP"));
    of_ = "parts";
  }

  // Of `whole` layers, which have too few parts, too.
  Diagnostic TooFewLayers(size_t whole) const {
    const auto parts = static_cast<int>(layers_.size());
    const bool few = parts < stages_;  // whatever the virtual stages
    std::string fix =
        StrCat("use ", spec_.axis, "=", std::max(parts, 1), few && parts > 1 ? " or less" : "");
    if (const int most = parts / stages_; !few) {
      fix = most > 1 ? StrCat("use ", most, " virtual stages or less")
                     : "leave the virtual stages out";
    }
    std::string has = whole > 0 ? StrCat(whole, " layers") : "no layer that repeats";
    if (layers_.size() > whole)
      has += StrCat(whole > 0 ? ", of " : ", and ", parts, parts == 1 ? " part" : " parts");
    return Diagnostic(
        "E2120", ExitCode::kBadSpec, few ? spec_.where : spec_.virtual_stages_where,
        StrCat("the pipeline over '", spec_.axis, "' has ", Stages(), ", and the model has ", has),
        fix);
  }

  std::string Stages() const {
    return StrCat(
        stages_, " stages",
        runs_ > stages_ ? StrCat(" of ", spec_.virtual_stages, " virtual ones each") : "");
  }

  int& LayerOf(const Op* op) { return layer_[op->id]; }

  // Layers, and what depends on them: with the last that it depends on. But what reads a weight is
  // with the first layer that uses it: each layer of a decoder makes keys and values of its own of
  // what the encoder gives, which would all travel, and their weights be with the encoder.
  void PlaceByLayers() {
    constexpr int kNever = std::numeric_limits<int>::max();
    layer_.assign(graph_.NumberOps(), kNone);
    for (size_t l = 0; l < layers_.size(); ++l) {
      for (const Op* op : layers_[l].ops) LayerOf(op) = static_cast<int>(l);
    }
    std::vector<int> used(layer_.size(), kNever);  // by op: the first layer that does
    for (auto it = graph_.ops().rbegin(); it != graph_.ops().rend(); ++it) {
      const Op* op = it->get();
      const int by = LayerOf(op) != kNone ? LayerOf(op) : used[op->id];
      for (const Value* v : op->operands) {
        if (!v->producer) continue;
        int& first = used[v->producer->id];
        first = std::min(first, by);
      }
    }
    const std::unordered_set<const Value*> weights = WeightsOf(graph_);
    for (const auto& op : graph_.ops()) {
      int& layer = LayerOf(op.get());
      if (layer != kNone) continue;
      bool weighted = false;
      for (const Value* v : op->operands) {
        if (v->producer) layer = std::max(layer, LayerOf(v->producer));
        weighted |= weights.contains(v);
      }
      const int first = used[op->id];
      if (layer != kNone && weighted && first != kNever) layer = std::max(layer, first);
    }
  }

  // What depends on parameters alone is with the first that uses it.
  void PlaceBeforeLayers() {
    std::vector<bool> of_param(layer_.size());
    std::vector<Op*> order;
    for (const auto& op : graph_.ops()) {
      if (op->def->is_state) {
        of_param[op->id] = true;
        continue;
      }
      if (LayerOf(op.get()) != kNone) continue;
      for (const Value* v : op->operands) {
        if (v->producer && of_param[v->producer->id]) {
          of_param[op->id] = true;
        }
      }
      if (of_param[op->id]) order.push_back(op.get());
    }
    for (auto it = order.rbegin(); it != order.rend(); ++it) {
      int first = std::numeric_limits<int>::max();
      for (const Value* r : (*it)->results) {
        for (const Op* user : r->users) {
          if (LayerOf(user) != kNone) first = std::min(first, LayerOf(user));
        }
      }
      LayerOf(*it) = first == std::numeric_limits<int>::max() ? 0 : first;
    }
  }

  // Forward and backward: a product takes as long for the gradient of each operand, where that
  // depends on what is trained.
  std::vector<double> CostsOfLayers() {
    std::vector<double> costs(layers_.size());
    std::vector<bool> trained(layer_.size());
    for (const auto& op : graph_.ops()) {
      const auto gradients = std::ranges::count_if(op->operands, [&](const Value* v) {
        return v->producer && trained[v->producer->id] && IsFloat(v->type.dtype);
      });
      trained[op->id] =
          op->def->is_state ? trains_ && op->attrs.Bool("trained", true) : gradients > 0;
      const int layer = LayerOf(op.get());
      if (layer == kNone) continue;
      const double times = 1 + static_cast<double>(std::min<int64_t>(gradients, 2));
      costs[layer] += times * static_cast<double>(Flops(*op));
    }
    return costs;
  }

  std::vector<int> RunOfLayers() {
    const std::vector<double> costs = CostsOfLayers();
    std::vector<int> lengths = spec_.layers;
    if (lengths.empty()) {
      lengths = Deal(costs, static_cast<int>(runs_));
      Balance(costs, stages_, lengths);
    }
    const int dealt = std::accumulate(lengths.begin(), lengths.end(), 0);
    if (static_cast<int64_t>(lengths.size()) != runs_ || dealt != static_cast<int>(costs.size())) {
      throw Diagnostic(
          "E2121", ExitCode::kBadSpec, spec_.where,
          StrCat("stage_layers deals ", dealt, " ", of_, " to ", lengths.size(),
                 " stages; the model has ", costs.size(), " ", of_, " and the mesh ", Stages()),
          "leave it out to have them dealt evenly");
    }
    std::vector<int> run_of;
    for (size_t run = 0; run < lengths.size(); ++run) {
      run_of.insert(run_of.end(), lengths[run], static_cast<int>(run));
    }
    return run_of;
  }

  Graph& graph_;
  const PipelineSpec& spec_;
  int stages_;
  bool trains_;  // whether there will be gradients
  int64_t runs_;
  std::vector<Layer> layers_;
  std::string_view of_ = "layers";  // what layers_ are
  std::vector<int> layer_;          // by Op::id
};

}  // namespace

void RefuseCutsOverPipeline(const Graph& graph, const Spec& spec) {
  if (graph.pipeline_axis.empty()) return;
  const std::string& name = graph.pipeline_axis;
  const int axis = *graph.mesh.FindAxis(name);
  auto check = [&](const TensorType& type, const std::string& what) {
    if (!type.sharding.Uses(axis)) return;
    throw Diagnostic("E2122", ExitCode::kBadSpec, spec.pipeline.where,
                     StrCat("'", name, "' is the pipeline's axis, and ", what,
                            " is cut over it: ", TypeToString(type, graph.mesh)),
                     "cut it over another axis");
  };
  for (const auto& input : graph.inputs()) check(input->type, "input " + input->name);
  for (const auto& op : graph.ops()) {
    for (const Value* r : op->results) {
      check(r->type, op->def->is_state ? "parameter " + op->attrs.String("name")
                                       : StrCat("a value at ", op->site));
    }
  }
}

void AssignStages(Graph& graph, const Spec& spec, bool trains) {
  const std::optional<int> axis = graph.mesh.FindAxis(spec.pipeline.axis);
  if (spec.pipeline.axis.empty() || !axis || graph.mesh.axis_size(*axis) < 2) {
    if (spec.pipeline.virtual_stages > 1) {
      throw Diagnostic("E2121", ExitCode::kBadSpec, spec.pipeline.virtual_stages_where,
                       StrCat(spec.pipeline.virtual_stages, " virtual stages, and no pipeline"),
                       spec.pipeline.axis.empty()
                           ? "name the pipeline's axis: pipeline_axis"
                           : StrCat("use a mesh with ", spec.pipeline.axis, "=2 or more"));
    }
    if (spec.pipeline.layers.size() <= 1) return;
    const std::string& name = spec.pipeline.axis;
    const size_t stages = spec.pipeline.layers.size();
    throw Diagnostic("E2121", ExitCode::kBadSpec, spec.pipeline.where,
                     StrCat("stage_layers deals layers to ", stages, " stages, and the mesh has ",
                            axis ? StrCat(name, "=1") : StrCat("no axis '", name, "'")),
                     StrCat("use ", name, "=", stages, ", or leave it out"));
  }
  graph.pipeline_axis = spec.pipeline.axis;
  const auto stages = static_cast<int>(graph.mesh.axis_size(*axis));
  Assigner(graph, spec.pipeline, stages, trains).Run();
}

}  // namespace shardc
