#include "passes/move_to_readers.h"

#include <algorithm>
#include <vector>

#include "ir/op_def.h"
#include "passes/home_stages.h"
#include "passes/numbering.h"

namespace shardc {
namespace {

class Mover {
 public:
  explicit Mover(Graph& graph) : graph_(graph), homes_(HomeStages(graph)) {}

  void Run() {
    // Readers first: a chain moves as a whole.
    for (auto it = graph_.ops().rbegin(); it != graph_.ops().rend(); ++it) {
      Op& op = **it;
      if (op.stage < 0 || HomeOf(&op) == kAnyStage || !IsCheap(*op.def)) continue;
      const Op* reader = Reader(op);
      if (!reader || HomeOf(reader) == op.stage) continue;
      if (Comes(op, HomeOf(reader)) >= Leaves(op)) continue;
      op.stage = homes_[op.id] = HomeOf(reader);
      op.virtual_stage = reader->virtual_stage;
    }
  }

 private:
  int HomeOf(const Op* op) const { return homes_[op->id]; }
  int64_t Bytes(const Value* v) const { return LocalBytes(v->type, graph_.mesh); }

  // One that reads the results, where all are on one stage; else null.
  const Op* Reader(const Op& op) const {
    const Op* reader = nullptr;
    for (const Value* r : op.results) {
      if (graph_.IsOutput(r)) return nullptr;
      for (const Op* user : r->users) {
        if (reader && HomeOf(reader) != HomeOf(user)) return nullptr;
        if (!reader) reader = user;
      }
    }
    return reader && HomeOf(reader) != kAnyStage ? reader : nullptr;
  }

  // What would travel only for the op.
  int64_t Comes(const Op& op, int stage) const {
    int64_t bytes = 0;
    for (const Value* v : op.operands) {
      if (!v->producer || HomeOf(v->producer) == stage) continue;
      const bool read = std::any_of(v->users.begin(), v->users.end(), [&](const Op* user) {
        return user != &op && HomeOf(user) == stage;
      });
      if (!read) bytes += Bytes(v);
    }
    return bytes;
  }

  int64_t Leaves(const Op& op) const {
    int64_t bytes = 0;
    for (const Value* r : op.results) {
      if (!r->users.empty()) bytes += Bytes(r);
    }
    return bytes;
  }

  Graph& graph_;
  std::vector<int> homes_;  // by Op::id
};

}  // namespace

void MoveToReaders(Graph& graph) {
  if (!graph.pipeline_axis.empty()) Mover(graph).Run();
}

}  // namespace shardc
