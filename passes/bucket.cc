#include "passes/bucket.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "ir/op_def.h"
#include "passes/home_stages.h"
#include "passes/provenance.h"

namespace shardc {
namespace {

struct Key {
  Strings axes;
  std::string reduce;
  DType dtype;
  Phase phase;
  int stage, home, virtual_stage, microbatch;
  int producer;  // Op::id; -1: anywhere in the phase
  auto operator<=>(const Key&) const = default;
};

// Groups open at a point of the graph: reductions that can still wait for others of their key.
class Buckets {
 public:
  Buckets(Graph& graph, int64_t max_bytes)
      : graph_(graph), max_bytes_(max_bytes), homes_(HomeStages(graph)) {}

  void Run() {
    for (auto it = graph_.ops().begin(); it != graph_.ops().end();) {
      Op* op = (it++)->get();
      if (!op->results.empty() && waiting_.contains(op->result())) continue;
      // Whatever reads a waiting result ends the wait.
      for (Value* v : op->operands) {
        if (auto w = waiting_.find(v); w != waiting_.end()) Flush(w->second);
      }
      if (!Small(*op)) continue;
      Open(op);
      if (const Op* maker = Producer(*op)) FetchSiblings(op, *maker);
    }
    while (!open_.empty()) Flush(open_.begin()->first);
  }

 private:
  bool Small(const Op& op) const {
    if (op.name() != "all_reduce") return false;
    int64_t bytes = 0;
    for (const Value* v : op.operands) bytes += LocalBytes(v->type, graph_.mesh);
    return bytes <= (Producer(op) ? std::max(max_bytes_, kJointBytes) : max_bytes_);
  }

  // Vectors and scalars (gradients of biases and norms, sums) merge wherever they are; larger
  // tensors only with results of the same op (the statistics of one cross entropy, the gradients of
  // k and v), so that they need not wait.
  const Op* Producer(const Op& op) const {
    for (const Value* v : op.operands) {
      if (v->type.rank() <= 1) continue;
      const Op* producer = v->producer;
      while (producer && producer->operands.size() == 1 && IsView(*producer, graph_.mesh)) {
        producer = producer->operands[0]->producer;
      }
      return producer;
    }
    return nullptr;
  }

  Key KeyOf(const Op& op) const {
    const Op* producer = Producer(op);
    return {op.attrs.StringList("axes"),
            op.attrs.String("reduce", "sum"),
            op.in(0).dtype,
            op.phase,
            op.stage,
            homes_[static_cast<size_t>(op.id)],
            op.microbatch < 0 ? 0 : op.virtual_stage,
            op.microbatch,
            producer ? producer->id : -1};
  }

  void Open(Op* op) {
    Key key = KeyOf(*op);
    open_[key].push_back(op);
    for (Value* r : op->results) waiting_[r] = key;
  }

  // Later reductions of what the same op makes come right behind this one: what reads this one's
  // result would end the wait.
  void FetchSiblings(Op* op, const Op& producer) {
    const Key key = KeyOf(*op);
    std::vector<Op*> later;
    auto collect = [&](auto& self, const Op& maker) -> void {
      for (const Value* r : maker.results) {
        for (Op* user : r->users) {
          if (user->operands.size() != 1) continue;
          if (IsView(*user, graph_.mesh)) self(self, *user);
          if (user->id > op->id && Small(*user) && KeyOf(*user) == key) later.push_back(user);
        }
      }
    };
    collect(collect, producer);
    for (Op* other : later) {
      MoveViewsBefore(other->operands[0]->producer, op);
      if (graph_.Next(op) != other) graph_.MoveBefore(other, graph_.Next(op));
      Open(other);
    }
  }

  // The op that makes the operand of a reduction, and those before it, if they come after `op`: all
  // are views of what is there.
  void MoveViewsBefore(Op* view, Op* op) {
    if (view->id < op->id) return;
    MoveViewsBefore(view->operands[0]->producer, op);
    graph_.MoveBefore(view, op);
    view->id = op->id - 1;
  }

  void Flush(Key key) {
    std::vector<Op*> ops = std::move(open_[key]);
    open_.erase(key);
    for (Op* op : ops) {
      for (Value* r : op->results) waiting_.erase(r);
    }
    if (ops.size() < 2) return;
    std::vector<Value*> operands;
    std::vector<TensorType> types;
    Strings why, causes;
    for (Op* op : ops) {
      for (size_t i = 0; i < op->operands.size(); ++i) {
        operands.push_back(op->operands[i]);
        types.push_back(op->out(static_cast<int>(i)));
      }
      AddReasons(why, WhyOf(*op));
      AddReasons(causes, {op->attrs.String("for", "")});
    }
    Op* last = ops.back();
    Attributes attrs = last->attrs;
    if (why.size() > 12) {
      why.insert(why.begin() + 6, StrCat("... ", why.size() - 9, " more reasons ..."));
      why.erase(why.begin() + 7, why.end() - 3);
    }
    attrs.Set("why", why);
    std::string cause;
    for (size_t i = 0; i < causes.size() && i < 4; ++i) cause += (i ? "," : "") + causes[i];
    attrs.Set("for", cause);
    Op* all = graph_.AddOp(*last->def, operands, types, std::move(attrs), graph_.Next(last), *last);
    all->id = last->id;
    size_t next = 0;
    for (Op* op : ops) {
      for (Value* r : op->results) graph_.ReplaceAllUses(r, all->result(static_cast<int>(next++)));
      graph_.Erase(op);
    }
  }

  Graph& graph_;
  int64_t max_bytes_;
  std::vector<int> homes_;  // by Op::id
  std::map<Key, std::vector<Op*>> open_;
  std::unordered_map<const Value*, Key> waiting_;
};

}  // namespace

void BucketSmallReductions(Graph& graph, int64_t max_bytes) { Buckets(graph, max_bytes).Run(); }

}  // namespace shardc
