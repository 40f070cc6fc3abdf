#include "passes/schedule.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>

namespace shardc {
namespace {

std::set<int> Microbatches(const Graph& graph) {
  std::set<int> all;
  for (const auto& op : graph.ops()) {
    if (op->microbatch >= 0) all.insert(op->microbatch);
  }
  return all;
}

constexpr int kNoUnit = -1, kAnyUnit = std::numeric_limits<int>::max();

class Ordering {
 public:
  Ordering(Graph& graph, std::span<const Unit> units) : graph_(graph) {
    last_ = static_cast<int>(units.size());
    for (int i = 0; i < last_; ++i) {
      const Unit& u = units[static_cast<size_t>(i)];
      place_[{u.stage, u.microbatch, u.phase}] = i;
    }
    for (const auto& op : graph.ops()) {
      op->id = static_cast<int>(ops_.size());
      ops_.push_back(op.get());
    }
  }

  void Run() {
    at_.resize(ops_.size());
    for (const Op* op : ops_) at_[Index(op)] = UnitOf(*op);
    for (size_t i = ops_.size(); i-- > 0;) {
      for (const Value* r : ops_[i]->results) {
        for (const Op* user : r->users) at_[i] = std::min(at_[i], at_[Index(user)]);
      }
      // Nothing reads it.
      at_[i] = std::min(at_[i], last_);
    }
    std::stable_sort(ops_.begin(), ops_.end(),
                     [&](const Op* a, const Op* b) { return at_[Index(a)] < at_[Index(b)]; });
    for (Op* op : ops_) graph_.MoveBefore(op, nullptr);
  }

 private:
  static size_t Index(const Op* op) { return static_cast<size_t>(op->id); }

  int UnitOf(const Op& op) {
    if (op.phase == Phase::kOptimizer) return last_;
    if (op.microbatch >= 0) {
      Phase& reached = reached_[{op.stage, op.microbatch}];
      reached = std::max(reached, op.phase);
      auto it = place_.find({op.stage, op.microbatch, reached});
      if (it != place_.end()) return it->second;
    }
    int latest = kNoUnit;
    for (const Value* v : op.operands) {
      if (!v->producer) continue;
      const int unit = at_[Index(v->producer)];
      if (unit != kAnyUnit) latest = std::max(latest, unit);
    }
    return latest == kNoUnit ? kAnyUnit : latest;
  }

  Graph& graph_;
  std::map<std::tuple<int, int, Phase>, int> place_;
  std::map<std::pair<int, int>, Phase> reached_;  // by stage and microbatch
  std::vector<Op*> ops_;
  std::vector<int> at_;  // by Op::id
  int last_ = 0;
};

}  // namespace

std::vector<Unit> OneByOne(const Graph& graph) {
  std::vector<Unit> units;
  for (int m : Microbatches(graph)) {
    for (Phase phase : {Phase::kForward, Phase::kBackward}) units.push_back({-1, m, phase});
  }
  return units;
}

std::vector<Unit> ForwardFirst(const Graph& graph) {
  std::vector<Unit> units;
  const std::set<int> all = Microbatches(graph);
  for (Phase phase : {Phase::kForward, Phase::kBackward}) {
    for (int m : all) units.push_back({-1, m, phase});
  }
  return units;
}

void OrderBySchedule(Graph& graph, std::span<const Unit> units) {
  if (!units.empty()) Ordering(graph, units).Run();
}

}  // namespace shardc
