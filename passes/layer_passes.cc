#include "passes/layer_passes.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "ir/op_def.h"
#include "passes/numbering.h"
#include "passes/weights.h"

namespace shardc {
namespace {

class Joiner {
 public:
  Joiner(const Graph& graph, std::vector<Layer> layers)
      : graph_(graph), layers_(std::move(layers)), weights_(WeightsOf(graph)) {}

  std::vector<Layer> Run() && {
    FindWeights();
    if (!AnyShared()) return std::move(layers_);
    FindAbove();
    std::vector<std::vector<size_t>> groups;
    for (size_t l = 0; l < layers_.size(); ++l) {
      auto fits = [&](const std::vector<size_t>& group) { return BelongsTo(l, group); };
      auto group = std::ranges::find_if(groups, fits);
      if (group == groups.end()) group = groups.emplace(groups.end());
      group->push_back(l);
    }
    std::vector<Layer> joined;
    for (const std::vector<size_t>& group : groups) {
      Layer& layer = joined.emplace_back(std::move(layers_[group[0]]));
      for (size_t l : group) {
        if (l == group[0]) continue;
        layer.ops.insert(layer.ops.end(), layers_[l].ops.begin(), layers_[l].ops.end());
      }
    }
    return joined;
  }

 private:
  using States = std::set<const Op*>;

  void FindWeights() {
    for (const Layer& layer : layers_) {
      States states;
      std::vector<const Value*> open;
      States seen;
      for (const Op* op : layer.ops) {
        open.insert(open.end(), op->operands.begin(), op->operands.end());
      }
      while (!open.empty()) {
        const Value* v = open.back();
        open.pop_back();
        if (!weights_.contains(v) || !seen.insert(v->producer).second) continue;
        if (v->producer->def->is_state) states.insert(v->producer);
        open.insert(open.end(), v->producer->operands.begin(), v->producer->operands.end());
      }
      states_.push_back(std::move(states));
    }
  }

  bool AnyShared() const {
    States all;
    size_t count = 0;
    for (const States& states : states_) {
      all.insert(states.begin(), states.end());
      count += states.size();
    }
    return all.size() < count;
  }

  // above_[l]: the layers that what enters layer l depends on.
  void FindAbove() {
    std::map<const Op*, size_t> layer_of;
    std::map<const Value*, std::vector<size_t>> entering;
    for (size_t l = 0; l < layers_.size(); ++l) {
      for (const Op* op : layers_[l].ops) layer_of[op] = l;
      entering[layers_[l].in].push_back(l);
    }
    const std::vector<Op*> ops = NumberedOps(graph_);
    const std::vector<bool> none(layers_.size());
    std::vector<std::vector<bool>> of_op(ops.size(), none);
    above_.assign(layers_.size(), none);
    for (const Op* op : ops) {
      std::vector<bool>& above = of_op[op->id];
      for (const Value* v : op->operands) {
        if (!v->producer) continue;
        const std::vector<bool>& from = of_op[v->producer->id];
        for (size_t l = 0; l < from.size(); ++l) {
          if (from[l]) above[l] = true;
        }
      }
      if (auto it = layer_of.find(op); it != layer_of.end()) above[it->second] = true;
      for (const Value* r : op->results) {
        const auto it = entering.find(r);
        if (it == entering.end()) continue;
        for (size_t l : it->second) above_[l] = above;
      }
    }
  }

  bool BelongsTo(size_t l, const std::vector<size_t>& group) const {
    auto above = [&](size_t member) { return above_[l][member]; };
    return Shares(states_[l], states_[group[0]]) && std::ranges::none_of(group, above);
  }

  static bool Shares(const States& later, const States& earlier) {
    int64_t all = 0, shared = 0;
    for (const Op* op : later) {
      all += op->out().bytes();
      if (earlier.contains(op)) shared += op->out().bytes();
    }
    return shared > 0 && 2 * shared >= all;
  }

  const Graph& graph_;
  std::vector<Layer> layers_;
  std::unordered_set<const Value*> weights_;
  std::vector<States> states_;            // by layer
  std::vector<std::vector<bool>> above_;  // by layer
};

}  // namespace

std::vector<Layer> JoinPasses(const Graph& graph, std::vector<Layer> layers) {
  return Joiner(graph, std::move(layers)).Run();
}

}  // namespace shardc
