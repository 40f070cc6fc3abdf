#include "passes/bucket.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "ir/op_def.h"
#include "passes/home_stages.h"
#include "passes/numbering.h"
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

// Goes through the ops in order. An all_reduce waits, in a group with others of its key, until an
// op reads one of their results; there the group becomes one op. Views of results wait with them.
class Buckets {
 public:
  Buckets(Graph& graph, int64_t max_bytes)
      : graph_(graph), max_bytes_(max_bytes), homes_(HomeStages(graph)) {}

  void Run() {
    for (auto it = graph_.ops().begin(); it != graph_.ops().end();) {
      Op* op = (it++)->get();
      if (!op->results.empty() && waiting_.contains(op->result())) continue;
      if (WaitsToo(op)) continue;
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
  bool WaitsToo(Op* op) {
    if (op->operands.size() != 1 || !IsView(*op, graph_.mesh)) return false;
    const auto w = waiting_.find(op->operands[0]);
    if (w == waiting_.end()) return false;
    const Key key = w->second;
    views_[key].push_back(op);
    waiting_[op->result()] = key;
    return true;
  }

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
      // Dims of 1 may stand before a vector, as Keras's norms have them.
      const Shape& shape = v->type.shape;
      if (shape.empty() || NumElements(shape) == shape.back()) continue;
      const Op* producer = v->producer;
      while (const Value* from = producer ? HandedOn(*producer) : nullptr) {
        producer = from->producer;
      }
      return producer;
    }
    return nullptr;
  }

  // The operand that the op hands on: that of a view; of what is cheap, as rotary positions, the
  // only one that is partial. Null: there is none. Elementwise ops stay where they are.
  const Value* HandedOn(const Op& op) const {
    if (op.operands.size() == 1 && IsView(op, graph_.mesh)) return op.operands[0];
    if (!op.def->cheap || op.def->communicates || op.results.size() != 1) return nullptr;
    const Value* partial = nullptr;
    for (const Value* v : op.operands) {
      if (v->type.sharding.partial_sum.empty()) continue;
      if (partial) return nullptr;
      partial = v;
    }
    const bool as_large = partial && op.out().num_elements() == partial->type.num_elements();
    return as_large ? partial : nullptr;
  }

  Key KeyOf(const Op& op) const {
    const Op* producer = Producer(op);
    return {op.attrs.StringList("axes"),
            op.attrs.String("reduce", "sum"),
            op.in(0).dtype,
            op.phase,
            op.stage,
            homes_[op.id],
            op.microbatch < 0 ? 0 : op.virtual_stage,
            op.microbatch,
            producer ? producer->id : -1};
  }

  void Open(Op* op) {
    Key key = KeyOf(*op);
    open_[key].push_back(op);
    for (Value* r : op->results) waiting_[r] = key;
  }

  // Moves later reductions of what the same op makes right behind this one. Else the first op that
  // reads its result would end the wait before they come.
  void FetchSiblings(Op* op, const Op& producer) {
    const Key key = KeyOf(*op);
    std::vector<Op*> later;
    auto collect = [&](auto& self, const Op& maker) -> void {
      for (const Value* r : maker.results) {
        for (Op* user : r->users) {
          if (HandedOn(*user) == r && ReadyBefore(*user, r, *op)) self(self, *user);
          if (user->operands.size() == 1 && user->id > op->id && Small(*user) &&
              KeyOf(*user) == key)
            later.push_back(user);
        }
      }
    };
    collect(collect, producer);
    for (Op* other : later) {
      MoveMakersBefore(other->operands[0]->producer, op);
      if (graph_.Next(op) != other) graph_.MoveBefore(other, graph_.Next(op));
      Open(other);
    }
  }

  // Whether all that `maker` reads but what it hands on is there before the op.
  static bool ReadyBefore(const Op& maker, const Value* handed_on, const Op& op) {
    return maker.id < op.id || std::ranges::all_of(maker.operands, [&](const Value* v) {
             return v == handed_on || !v->producer || v->producer->id < op.id;
           });
  }

  // The op that makes the operand of a reduction, and those before it, if they come after `op`: all
  // hand on what is there.
  void MoveMakersBefore(Op* maker, Op* op) {
    if (maker->id < op->id) return;
    MoveMakersBefore(HandedOn(*maker)->producer, op);
    graph_.MoveBefore(maker, op);
    maker->id = op->id - 1;
  }

  void Flush(Key key) {
    std::vector<Op*> ops = std::move(open_[key]), views = std::move(views_[key]);
    open_.erase(key);
    views_.erase(key);
    for (const auto* waited : {&ops, &views}) {
      for (Op* op : *waited) {
        for (Value* r : op->results) waiting_.erase(r);
      }
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
    Op* before = all;
    for (Op* view : views) {
      if (graph_.Next(before) != view) graph_.MoveBefore(view, graph_.Next(before));
      view->id = all->id;
      before = view;
    }
  }

  Graph& graph_;
  int64_t max_bytes_;
  std::vector<int> homes_;  // by Op::id
  std::map<Key, std::vector<Op*>> open_, views_;
  std::unordered_map<const Value*, Key> waiting_;
};

}  // namespace

void BucketSmallReductions(Graph& graph, int64_t max_bytes) { Buckets(graph, max_bytes).Run(); }

}  // namespace shardc
