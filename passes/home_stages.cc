#include "passes/home_stages.h"

#include <map>
#include <unordered_set>

#include "ir/op_def.h"
#include "passes/numbering.h"
#include "passes/weights.h"

namespace shardc {
namespace {

class Homes {
 public:
  explicit Homes(const Graph& graph) : graph_(graph), weights_(WeightsOf(graph)) {}

  std::vector<int> Run() {
    for (const auto& op : graph_.ops()) {
      op->id = static_cast<int>(homes_.size());
      homes_.push_back(HomeOf(*op));
      bool state = op->def->is_state;
      for (const Value* v : op->operands) {
        state = state || (v->producer && of_state_[v->producer->id]);
      }
      of_state_.push_back(state);
    }
    return std::move(homes_);
  }

 private:
  int HomeOf(const Op& op) const {
    if (op.def->is_state || op.results.empty()) return kAnyStage;
    std::map<int, int64_t> bytes;  // by stage
    bool of_state = false;
    for (const Value* v : op.operands) {
      if (!v->producer) continue;
      const int maker = v->producer->id;
      of_state = of_state || of_state_[maker];
      if (homes_[maker] != kAnyStage) bytes[homes_[maker]] += LocalBytes(v->type, graph_.mesh);
    }
    if (bytes.empty()) {
      // A parameter's lookups and products are done where they belong, its copies where they are
      // read.
      const bool copy = weights_.contains(op.result()) && op.operands.size() == 1 &&
                        (IsCheap(*op.def) || op.def->communicates || IsView(op, graph_.mesh));
      return !of_state || copy ? kAnyStage : op.stage;
    }
    if (op.stage >= 0 && !ShrinksOnTheWay(op)) return op.stage;
    auto most = bytes.begin();
    for (auto it = bytes.begin(); it != bytes.end(); ++it) {
      if (it->second > most->second) most = it;
    }
    return most->first;
  }

  // Collectives that leave less (reductions, and where a part is taken) run before the value
  // travels to another stage, whichever stage asked for them; those that make more run behind.
  bool ShrinksOnTheWay(const Op& op) const {
    return op.def->communicates &&
           LocalBytes(op.in(0), graph_.mesh) >= LocalBytes(op.out(), graph_.mesh);
  }

  const Graph& graph_;
  std::unordered_set<const Value*> weights_;
  std::vector<int> homes_;
  std::vector<bool> of_state_;
};

}  // namespace

std::vector<int> HomeStages(const Graph& graph) { return Homes(graph).Run(); }

}  // namespace shardc
