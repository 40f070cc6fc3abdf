#include "passes/schedule.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "ir/diagnostic.h"
#include "passes/reorder.h"

namespace shardc {
namespace {

std::set<int> Microbatches(const Graph& graph) {
  std::set<int> all;
  for (const auto& op : graph.ops()) {
    if (op->microbatch >= 0) all.insert(op->microbatch);
  }
  return all;
}

// In the order of the forward.
struct Place {
  int virtual_stage, stage;  // stage -1: of ops without one
  auto operator<=>(const Place&) const = default;
};

// Of ops that belong to a microbatch.
std::set<Place> Places(const Graph& graph) {
  std::set<Place> all;
  for (const auto& op : graph.ops()) {
    if (op->microbatch >= 0) all.insert({op->virtual_stage, op->stage});
  }
  return all;
}

// The backward goes through the places in falling order.
void AddUnits(const std::set<Place>& places, int microbatch, Phase phase,
              std::vector<Unit>& units) {
  const size_t first = units.size();
  for (const Place& p : places) units.push_back({p.stage, microbatch, phase, p.virtual_stage});
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
      const Unit& u = units[i];
      place_[{u.stage, u.virtual_stage, u.microbatch, u.phase}] = i;
    }
  }

  void Run() {
    const std::vector<Op*> ops = NumberedOps(graph_);
    at_.resize(ops.size());
    for (const Op* op : ops) at_[op->id] = UnitOf(*op);
    BringToReaders(ops, at_);
    // What nothing reads is last.
    Reorder(graph_, ops, [&](size_t i) { return std::min(at_[i], last_); });
  }

 private:
  int UnitOf(const Op& op) {
    if (op.phase == Phase::kOptimizer) return last_;
    if (op.microbatch >= 0 && op.name() != "send_recv") {
      Phase& reached = reached_[{op.stage, op.virtual_stage, op.microbatch}];
      reached = std::max(reached, op.phase);
      auto it = place_.find({op.stage, op.virtual_stage, op.microbatch, reached});
      if (it != place_.end()) return it->second;
    }
    int latest = kNoUnit;
    for (const Value* v : op.operands) {
      if (!v->producer) continue;
      const int unit = at_[v->producer->id];
      if (unit != kAnyUnit) latest = std::max(latest, unit);
    }
    return latest == kNoUnit ? kAnyUnit : latest;
  }

  Graph& graph_;
  std::map<std::tuple<int, int, int, Phase>, int> place_;
  std::map<std::tuple<int, int, int>, Phase> reached_;  // by stage, virtual stage and microbatch
  std::vector<int> at_;                                 // by Op::id
  int last_ = 0;
};

// One forward, one backward: what each stage does in which order, and when it can.
class Interleaving {
 public:
  Interleaving(std::vector<int> microbatches, int stages, int virtual_stages)
      : microbatches_(std::move(microbatches)),
        stages_(stages),
        virtual_stages_(virtual_stages),
        lines_(static_cast<size_t>(stages)) {
    WriteOrders();
    for (auto& ends : ends_) {
      ends.assign(stages * virtual_stages, std::vector<int>(microbatches_.size(), kNever));
    }
  }

  std::vector<Unit> Run() {
    while (units_.size() < 2 * orders_[0].size() * lines_.size()) Begin(Earliest());
    return std::move(units_);
  }

 private:
  static constexpr int kNever = std::numeric_limits<int>::max();
  struct Piece {
    int virtual_stage, microbatch;  // the latter by its place in the list
  };
  struct Line {
    int begun[2] = {0, 0};  // forwards and backwards
    int free = 0;           // when
  };
  struct Next {
    int begin = kNever, stage = -1;
    bool backward = false;
  };

  int count() const { return static_cast<int>(orders_[0].size()); }

  // As many microbatches as there are stages go through all virtual stages before others begin.
  void WriteOrders() {
    const int m = static_cast<int>(microbatches_.size());
    for (int first = 0; first < m; first += stages_) {
      const int end = std::min(first + stages_, m);
      for (int v = 0; v < virtual_stages_; ++v) {
        for (int i = first; i < end; ++i) {
          orders_[0].push_back({v, i});
          orders_[1].push_back({virtual_stages_ - 1 - v, i});
        }
      }
    }
  }

  // How many forwards a stage begins before its first forward and backward in turns.
  int Ahead(int stage) const {
    const int behind = stages_ - 1 - stage;
    return virtual_stages_ == 1 ? behind : 2 * behind + (virtual_stages_ - 1) * stages_;
  }

  bool BackwardIsNext(int stage) const {
    const Line& line = lines_[stage];
    return line.begun[0] == count() ||
           line.begun[0] - line.begun[1] > std::min(Ahead(stage), count());
  }

  const Piece& NextPiece(int stage, bool backward) const {
    const Line& line = lines_[stage];
    return orders_[backward][line.begun[backward]];
  }

  // All stages of the first virtual stage, of the second, ...
  int Position(int stage, const Piece& p) const { return p.virtual_stage * stages_ + stage; }

  int& End(bool backward, int position, int microbatch) {
    return ends_[backward][position][microbatch];
  }

  // When what the stage's next piece takes from its neighbour is there, and the stage is free.
  int Begins(int stage, bool backward) {
    const Line& line = lines_[stage];
    if (line.begun[backward] == count()) return kNever;
    const Piece& p = NextPiece(stage, backward);
    const int position = Position(stage, p), last = stages_ * virtual_stages_ - 1;
    int ready = 0;
    if (backward) {
      ready = End(position != last, std::min(position + 1, last), p.microbatch);
    } else if (position > 0) {
      ready = End(false, position - 1, p.microbatch);
    }
    return ready == kNever ? kNever : std::max(ready, line.free);
  }

  Next Earliest() {
    Next best;
    for (int k = 0; k < stages_; ++k) {
      const bool backward = BackwardIsNext(k);
      const int begin = Begins(k, backward);
      if (begin < best.begin) best = {begin, k, backward};
    }
    if (best.stage >= 0) return best;
    // Where microbatches are no multiple of the stages, backwards may wait for forwards that are
    // not yet their turn.
    for (int k = 0; k < stages_; ++k) {
      const int begin = Begins(k, false);
      if (begin < best.begin) best = {begin, k, false};
    }
    SHARDC_CHECK(best.stage >= 0, "no stage can go on");
    return best;
  }

  void Begin(const Next& next) {
    const Piece& p = NextPiece(next.stage, next.backward);
    Line& line = lines_[next.stage];
    line.free = next.begin + (next.backward ? 2 : 1);
    End(next.backward, Position(next.stage, p), p.microbatch) = line.free;
    units_.push_back({next.stage, microbatches_[p.microbatch],
                      next.backward ? Phase::kBackward : Phase::kForward, p.virtual_stage});
    ++line.begun[next.backward];
  }

  std::vector<int> microbatches_;
  int stages_, virtual_stages_;
  std::vector<Piece> orders_[2];  // of a stage: forward, backward
  std::vector<Line> lines_;       // by stage
  // Forward and backward, by position and microbatch: when it ends.
  std::vector<std::vector<int>> ends_[2];
  std::vector<Unit> units_;
};

}  // namespace

std::vector<Unit> OneByOne(const Graph& graph) {
  std::vector<Unit> units;
  const std::set<Place> places = Places(graph);
  for (int m : Microbatches(graph)) {
    for (Phase phase : {Phase::kForward, Phase::kBackward}) AddUnits(places, m, phase, units);
  }
  return units;
}

std::vector<Unit> ForwardFirst(const Graph& graph) {
  std::vector<Unit> units;
  const std::set<int> all = Microbatches(graph);
  const std::set<Place> places = Places(graph);
  for (Phase phase : {Phase::kForward, Phase::kBackward}) {
    for (int m : all) AddUnits(places, m, phase, units);
  }
  return units;
}

std::vector<Unit> OneForwardOneBackward(const Graph& graph) {
  const std::set<int> microbatches = Microbatches(graph);
  int stages = 0, virtual_stages = 0;
  for (const Place& p : Places(graph)) {
    stages = std::max(stages, p.stage + 1);
    virtual_stages = std::max(virtual_stages, p.virtual_stage + 1);
  }
  if (stages == 0) return {};
  return Interleaving({microbatches.begin(), microbatches.end()}, stages, virtual_stages).Run();
}

void OrderBySchedule(Graph& graph, std::span<const Unit> units) {
  if (!units.empty()) Ordering(graph, units).Run();
}

}  // namespace shardc
