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

// Of ops that belong to a microbatch; -1: of those without a stage.
std::set<int> Stages(const Graph& graph) {
  std::set<int> all;
  for (const auto& op : graph.ops()) {
    if (op->microbatch >= 0) all.insert(op->stage);
  }
  return all;
}

// The backward goes through the stages in falling order.
void AddUnits(const std::set<int>& stages, int microbatch, Phase phase, std::vector<Unit>& units) {
  const size_t first = units.size();
  for (int s : stages) units.push_back({s, microbatch, phase});
  if (phase == Phase::kBackward) {
    std::reverse(units.begin() + static_cast<std::ptrdiff_t>(first), units.end());
  }
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
  const std::set<int> stages = Stages(graph);
  for (int m : Microbatches(graph)) {
    for (Phase phase : {Phase::kForward, Phase::kBackward}) AddUnits(stages, m, phase, units);
  }
  return units;
}

std::vector<Unit> ForwardFirst(const Graph& graph) {
  std::vector<Unit> units;
  const std::set<int> all = Microbatches(graph), stages = Stages(graph);
  for (Phase phase : {Phase::kForward, Phase::kBackward}) {
    for (int m : all) AddUnits(stages, m, phase, units);
  }
  return units;
}

std::vector<Unit> OneForwardOneBackward(const Graph& graph) {
  const std::set<int> all = Microbatches(graph);
  const std::vector<int> microbatches(all.begin(), all.end());
  const std::set<int> stages = Stages(graph);
  if (microbatches.empty() || stages.empty()) return {};
  const int count = static_cast<int>(microbatches.size()), last = *stages.rbegin();
  struct Line {
    int forwards = 0, backwards = 0;  // begun
    int free = 0;                     // when
  };
  std::vector<Line> lines(static_cast<size_t>(last) + 1);
  // When it ends; by stage and microbatch.
  constexpr int kNever = std::numeric_limits<int>::max();
  std::vector<std::vector<int>> ends[2];
  for (auto& e : ends) e.assign(lines.size(), std::vector<int>(microbatches.size(), kNever));
  std::vector<Unit> units;
  while (static_cast<int>(units.size()) < 2 * count * (last + 1)) {
    int earliest = kNever, stage = -1;
    bool backward = false;
    for (int k = 0; k <= last; ++k) {
      const Line& line = lines[static_cast<size_t>(k)];
      const int ahead = std::min(last - k, count);
      const bool back = line.forwards == count || line.forwards - line.backwards > ahead;
      if (line.backwards == count) continue;
      // What it takes from the stage before, or behind.
      const int from = back ? k + 1 : k - 1;
      const auto m = static_cast<size_t>(back ? line.backwards : line.forwards);
      int ready = 0;
      if (from >= 0 && from <= last) ready = ends[back ? 1 : 0][static_cast<size_t>(from)][m];
      if (ready == kNever) continue;
      const int begin = std::max(ready, line.free);
      if (begin >= earliest) continue;
      earliest = begin;
      stage = k;
      backward = back;
    }
    Line& line = lines[static_cast<size_t>(stage)];
    int& next = backward ? line.backwards : line.forwards;
    line.free = earliest + (backward ? 2 : 1);
    ends[backward ? 1 : 0][static_cast<size_t>(stage)][static_cast<size_t>(next)] = line.free;
    units.push_back({stage, microbatches[static_cast<size_t>(next)],
                     backward ? Phase::kBackward : Phase::kForward});
    ++next;
  }
  return units;
}

void OrderBySchedule(Graph& graph, std::span<const Unit> units) {
  if (!units.empty()) Ordering(graph, units).Run();
}

}  // namespace shardc
