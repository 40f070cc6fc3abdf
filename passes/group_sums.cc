#include "passes/group_sums.h"

#include <map>
#include <vector>

#include "ir/op_def.h"
#include "passes/home_stages.h"
#include "passes/numbering.h"

namespace shardc {
namespace {

bool IsSum(const Op* op) {
  return op && op->name() == "add" && op->in(0) == op->out() && op->in(1) == op->out();
}

class Grouper {
 public:
  explicit Grouper(Graph& graph) : graph_(graph), homes_(HomeStages(graph)) {
    for (size_t i = 0; i < homes_.size(); ++i) made_at_.push_back(static_cast<int>(i));
  }

  void Run() {
    std::vector<Op*> roots;
    for (const auto& op : graph_.ops()) {
      if (IsSum(op.get()) && !IsTerm(*op)) roots.push_back(op.get());
    }
    for (Op* root : roots) Group(root);
  }

 private:
  // Whether the sum is only there to be added to another.
  bool IsTerm(const Op& sum) const { return IsSum(graph_.OnlyUser(sum.result())); }

  int StageOf(const Value* v) const { return v->producer ? homes_[v->producer->id] : kAnyStage; }

  void Group(Op* root) {
    std::vector<Value*> terms, waiting = {root->result()};
    std::vector<Op*> sums;  // each before those that are its terms
    while (!waiting.empty()) {
      Value* v = waiting.back();
      waiting.pop_back();
      Op* sum = v->producer;
      if (sum == root || (IsSum(sum) && IsTerm(*sum))) {
        sums.push_back(sum);
        waiting.insert(waiting.end(), {sum->operands[1], sum->operands[0]});
      } else {
        terms.push_back(v);
      }
    }
    std::map<int, std::vector<Value*>> by_stage;
    for (Value* v : terms) by_stage[StageOf(v)].push_back(v);
    if (by_stage.size() < 2 || by_stage.size() == terms.size()) return;
    Value* total = nullptr;
    for (auto& [stage, group] : by_stage) {
      Value* sum = group[0];
      for (size_t i = 1; i < group.size(); ++i) sum = Add(sum, group[i], *root, stage);
      total = total ? Add(total, sum, *root, root->stage) : sum;
    }
    graph_.ReplaceAllUses(root->result(), total);
    for (Op* sum : sums) graph_.Erase(sum);
  }

  int MadeAt(const Value* v) const { return v->producer ? made_at_[v->producer->id] : -1; }

  // As soon as both are there, so that neither has to be kept.
  Value* Add(Value* sum, Value* term, const Op& like, int stage) {
    const Value* later = MadeAt(term) > MadeAt(sum) ? term : sum;
    Op* before = later->producer ? graph_.Next(later->producer) : graph_.ops().front().get();
    Op* op = graph_.AddOp(*like.def, {sum, term}, {like.out()}, {}, before, like);
    op->stage = stage;
    if (later->producer && StageOf(later) == stage) {
      op->virtual_stage = later->producer->virtual_stage;
    }
    op->microbatch = later->producer ? later->producer->microbatch : -1;
    op->id = static_cast<int>(homes_.size());
    homes_.push_back(stage);
    made_at_.push_back(MadeAt(later));
    return op->result();
  }

  Graph& graph_;
  std::vector<int> homes_;    // by Op::id
  std::vector<int> made_at_;  // by Op::id: the place in the order, of new ops about
};

}  // namespace

void GroupSums(Graph& graph) {
  if (!graph.pipeline_axis.empty()) Grouper(graph).Run();
}

}  // namespace shardc
