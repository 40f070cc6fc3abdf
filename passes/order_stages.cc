#include "passes/order_stages.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "ir/diagnostic.h"
#include "ir/op_def.h"

namespace shardc {
namespace {

class Orderer {
 public:
  explicit Orderer(Graph& graph) : graph_(graph) {
    stages_ = static_cast<int>(graph.mesh.axis_size(*graph.mesh.FindAxis(graph.pipeline_axis)));
    lines_.resize(static_cast<size_t>(stages_));
    next_.resize(static_cast<size_t>(stages_));
  }

  void Run() {
    WriteLines();
    while (AdvanceAll()) {
    }
    for (Op* op : order_) graph_.MoveBefore(op, nullptr);
  }

 private:
  static bool IsTransfer(const Op& op) { return op.name() == "send_recv"; }
  static int SenderOf(const Op& op) { return static_cast<int>(op.attrs.Int("from")); }

  // What each stage does, one after the other. A transfer is in two lines.
  void WriteLines() {
    std::unordered_set<const Op*> received;
    for (const auto& op : graph_.ops()) {
      if (IsTransfer(*op)) continue;
      if (op->stage < 0) {
        order_.push_back(op.get());  // states and constants
        continue;
      }
      std::vector<Op*>& line = lines_[static_cast<size_t>(op->stage)];
      for (const Value* v : op->operands) {
        Op* from = v->producer;
        if (from && IsTransfer(*from) && received.insert(from).second) line.push_back(from);
      }
      line.push_back(op.get());
      for (const Value* r : op->results) {
        for (Op* user : r->users) {
          if (IsTransfer(*user)) line.push_back(user);
        }
      }
    }
  }

  Op* At(int stage) const {
    const auto s = static_cast<size_t>(stage);
    return next_[s] < lines_[s].size() ? lines_[s][next_[s]] : nullptr;
  }

  void Step(int stage) { ++next_[static_cast<size_t>(stage)]; }

  // Runs a stage as far as it can. Whether it moved.
  bool Advance(int stage) {
    bool moved = false;
    for (Op* op = At(stage); op; op = At(stage)) {
      if (IsTransfer(*op)) {
        const int from = SenderOf(*op), to = op->stage;
        const bool early = stage == to && done_.contains(op);
        if (!early && (At(from) != op || At(to) != op)) return moved;
        if (!early) {
          Transfer(op);
          Step(from == stage ? to : from);
        }
      } else {
        order_.push_back(op);
      }
      Step(stage);
      moved = true;
    }
    return moved;
  }

  void Transfer(Op* op) {
    order_.push_back(op);
    done_.insert(op);
  }

  // Whether there is more to do.
  bool AdvanceAll() {
    bool moved = false, left = false;
    for (int s = 0; s < stages_; ++s) moved = Advance(s) || moved;
    for (int s = 0; s < stages_; ++s) left = left || At(s);
    if (!moved && left) ReceiveEarly();
    return left;
  }

  // All stages wait. Of the ops that are left the first in the graph's order has all it needs or
  // waits for what was made already, so that some stage stands before a send: it is received before
  // what the receiver waits for, best where that is itself something to be received.
  void ReceiveEarly() {
    Op* best = nullptr;
    for (int s = 0; s < stages_; ++s) {
      Op* op = At(s);
      if (!op || !IsTransfer(*op) || SenderOf(*op) != s) continue;
      const Op* other = At(op->stage);
      const bool receives = other && other->stage == op->stage;
      if (!best || receives) best = op;
      if (receives) break;
    }
    SHARDC_CHECK(best, "stages wait for each other");
    Transfer(best);
    Step(SenderOf(*best));
  }

  Graph& graph_;
  int stages_ = 0;
  std::vector<std::vector<Op*>> lines_;  // by stage
  std::vector<size_t> next_;             // by stage: its place in its line
  std::vector<Op*> order_;
  std::unordered_set<const Op*> done_;  // transfers
};

}  // namespace

void OrderStages(Graph& graph) { Orderer(graph).Run(); }

}  // namespace shardc
