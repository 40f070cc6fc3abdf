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
    lines_.resize(stages_);
    next_.resize(stages_);
    clocks_.resize(stages_);
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
      std::vector<Op*>& line = lines_[op->stage];
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

  void Step(int stage) { ++next_[stage]; }

  double& Clock(int stage) { return clocks_[stage]; }

  // About how many flops the machine does in the time of the op.
  double CostOf(const Op& op) const {
    constexpr double kFlopsPerByte = 10;
    const LocalCost cost = CostOnRank(op, graph_.mesh);
    return static_cast<double>(cost.flops) + kFlopsPerByte * static_cast<double>(cost.bytes);
  }

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
        Clock(stage) += CostOf(*op);
      }
      Step(stage);
      moved = true;
    }
    return moved;
  }

  // The sender has not waited.
  void Transfer(Op* op) {
    order_.push_back(op);
    done_.insert(op);
    Clock(op->stage) = std::max(Clock(op->stage), Clock(SenderOf(*op)));
  }

  // Whether there is more to do.
  bool AdvanceAll() {
    bool moved = false, left = false;
    for (int s = 0; s < stages_; ++s) moved = Advance(s) || moved;
    for (int s = 0; s < stages_; ++s) left = left || At(s);
    if (!moved && left) ReceiveEarly();
    return left;
  }

  // Of a stage that stands before a transfer: the other end.
  int WaitsFor(int stage) const {
    const Op& op = *At(stage);
    return SenderOf(op) == stage ? op.stage : SenderOf(op);
  }

  // All stages wait, and so some of them for each other in a circle. Of the ops that are left the
  // first in the graph's order has all it needs or waits for what was made already, so that some of
  // these stand before a send. One is received before what its receiver waits for: that for which
  // the receiver has least to wait.
  void ReceiveEarly() {
    int stage = 0;
    while (!At(stage)) ++stage;
    for (int i = 0; i < stages_; ++i) stage = WaitsFor(stage);
    Op* best = nullptr;
    double least = 0;
    const int first = stage;
    do {
      Op* op = At(stage);
      const int next = WaitsFor(stage);
      const double wait = Clock(stage) - Clock(next);
      if (SenderOf(*op) == stage && (!best || wait < least)) {
        best = op;
        least = wait;
      }
      stage = next;
    } while (stage != first);
    SHARDC_CHECK(best, "stages wait for each other");
    Transfer(best);
    Step(SenderOf(*best));
  }

  Graph& graph_;
  int stages_ = 0;
  std::vector<std::vector<Op*>> lines_;  // by stage
  std::vector<size_t> next_;             // by stage: its place in its line
  std::vector<double> clocks_;           // by stage: when it comes there
  std::vector<Op*> order_;
  std::unordered_set<const Op*> done_;  // transfers
};

}  // namespace

void OrderStages(Graph& graph) { Orderer(graph).Run(); }

}  // namespace shardc
