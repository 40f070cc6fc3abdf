#include "passes/optimize_reshards.h"

#include <algorithm>
#include <vector>

#include "ir/builder.h"
#include "ir/op_def.h"
#include "passes/provenance.h"
#include "passes/reshard_cost.h"

namespace shardc {
namespace {

bool IsReshard(const Value* v) { return v->producer && v->producer->name() == "reshard"; }

bool OnlyUse(const Graph& graph, const Value* v) {
  return v->users.size() == 1 && !graph.IsOutput(v);
}

// The axes over which a reshard sums; none when it does anything else.
AxisList Reduced(const Value* v) {
  AxisList axes;
  if (!IsReshard(v)) return axes;
  const Sharding &from = v->producer->in(0).sharding, &to = v->type.sharding;
  if (from.dims != to.dims || from.partial_max != to.partial_max) return axes;
  for (int a : to.partial_sum) {
    if (!from.partial_sum.contains(a)) return axes;
  }
  for (int a : from.partial_sum) {
    if (!to.partial_sum.contains(a)) axes.push_back(a);
  }
  return axes;
}

bool IsReduction(const Value* v) { return !Reduced(v).empty(); }

bool Uses(const Sharding& s, int axis) {
  return s.partial_sum.contains(axis) || s.partial_max.contains(axis) ||
         std::any_of(s.dims.begin(), s.dims.end(), [&](auto& d) { return d.axes.contains(axis); });
}

// Whether the op, given a value that is partial over the axes instead of whole, gives a partial
// result.
bool PassesPartial(const Op& op, const Value* v, const AxisList& axes) {
  if (!op.def->rule || op.results.size() != 1) return false;
  int at = -1;
  for (size_t i = 0; i < op.operands.size(); ++i) {
    if (op.operands[i] == v) {
      if (at >= 0) return false;
      at = static_cast<int>(i);
    }
    for (int a : axes) {
      if (Uses(op.operands[i]->type.sharding, a)) return false;
    }
  }
  ShardingRule rule = op.def->rule(op);
  return std::any_of(rule.linear.begin(), rule.linear.end(),
                     [&](const auto& group) { return group.size() == 1 && group[0] == at; });
}

class Optimizer {
 public:
  explicit Optimizer(Graph& graph) : graph_(graph) {}

  void Run() {
    bool changed = true;
    while (changed) {
      changed = false;
      for (auto it = graph_.ops().begin(); it != graph_.ops().end();) {
        Op* op = (it++)->get();
        changed |= op->name() == "reshard" ? VisitReshard(op) : op->name() == "add" && VisitAdd(op);
      }
      if (!changed) changed = SinkOne();
      changed |= graph_.EraseDead() > 0;
    }
  }

 private:
  bool VisitReshard(Op* op) {
    Value* in = op->operands[0];
    Value* out = op->result();
    if (!graph_.HasUses(out)) return false;
    if (in->type == out->type) {
      graph_.ReplaceAllUses(out, in);
      return true;
    }
    // Merge with an equal one that comes first.
    for (Op* other : in->users) {
      if (other == op || other->name() != "reshard" || other->out() != out->type) continue;
      if (!ComesBefore(other, op)) continue;
      graph_.ReplaceAllUses(out, other->result());
      return true;
    }
    // All users reshard again, alike: go there directly.
    if (!out->users.empty() && !graph_.IsOutput(out)) {
      const TensorType* to = nullptr;
      bool alike = true;
      for (Op* user : out->users) {
        alike = alike && user->name() == "reshard" && (!to || user->out() == *to);
        if (alike) to = &user->out();
      }
      if (alike) {
        out->type = *to;
        return true;
      }
    }
    return false;
  }

  // Moves one reduction behind all its users where less travels then.
  bool SinkOne() {
    for (const auto& op : graph_.ops()) {
      if (op->name() != "reshard") continue;
      if (IsReduction(op->result()) && Sinks(op->result())) {
        Sink(op.get());
        return true;
      }
    }
    return false;
  }

  double Bytes(const Value* reduction) const {
    const TensorType& from = reduction->producer->in(0);
    return ReshardBytes(from, reduction->type.sharding, graph_.mesh) * LocalShare(from);
  }

  // What of the tensor the axes that cut it leave to a rank.
  double LocalShare(const TensorType& type) const {
    return static_cast<double>(LocalBytes(type, graph_.mesh)) / static_cast<double>(type.bytes());
  }

  bool Sinks(const Value* out) const {
    if (out->users.empty() || graph_.IsOutput(out)) return false;
    AxisList axes = Reduced(out);
    double change = -Bytes(out);
    for (const Op* user : out->users) {
      if (!PassesPartial(*user, out, axes)) return false;
      change += SunkBytes(user->result(), axes);
    }
    return change < 0;
  }

  // Bytes that a reduction of the value would add. In a sum with another reduction over the same
  // axes one serves both; where that sum is reduced again, over more axes, it goes away when all
  // that is added passes it on.
  double SunkBytes(const Value* v, const AxisList& axes) const {
    const Value *sum = v, *joint = nullptr;
    while (const Value* other = AddedTo(sum)) {
      if (Reduced(other) == axes && OnlyUse(graph_, other) && other->type == v->type) joint = other;
      sum = sum->users[0]->result();
    }
    if (joint) {
      bool again = OnlyUse(graph_, sum) && sum->users[0]->name() == "reshard" &&
                   IsReduction(sum->users[0]->result());
      return again ? -Bytes(joint) : 0;
    }
    TensorType partial = v->type;
    for (int a : axes) partial.sharding.partial_sum.push_back(a);
    return ReshardBytes(partial, v->type.sharding, graph_.mesh) * LocalShare(v->type);
  }

  // What the value is added to, and nothing else done with it; or null.
  const Value* AddedTo(const Value* v) const {
    if (!OnlyUse(graph_, v) || v->users[0]->name() != "add") return nullptr;
    const Op* add = v->users[0];
    return add->operands[add->operands[0] == v];
  }

  void Sink(Op* reduction) {
    Value *out = reduction->result(), *in = reduction->operands[0];
    for (Op* user : std::vector<Op*>(out->users)) {
      Value* v = user->result();
      Op* after = graph_.AddOp(*reduction->def, {}, {v->type}, reduction->attrs, graph_.Next(user));
      after->phase = user->phase;
      after->site = user->site;
      Strings why = reduction->attrs.StringList("why");
      why.push_back("partial through " + Describe(*user));
      after->attrs.Set("why", std::move(why));
      after->attrs.Set("for", std::string(user->name()));
      after->result()->provenance = out->provenance;
      graph_.ReplaceAllUses(v, after->result());
      graph_.AppendOperand(after, v);
      for (size_t i = 0; i < user->operands.size(); ++i) {
        if (user->operands[i] == out) graph_.SetOperand(user, static_cast<int>(i), in);
      }
      for (int a : Reduced(out)) v->type.sharding.partial_sum.push_back(a);
      v->type.sharding = Canonical(v->type, graph_.mesh);
    }
  }

  bool ComesBefore(const Op* a, const Op* b) const {
    for (const Op* o = b; o; o = graph_.Previous(o)) {
      if (o == a) return true;
    }
    return false;
  }

  // Reductions over the same axes that nothing else reads.
  bool Combine(const Value* a, const Value* b) const {
    return a != b && IsReduction(a) && IsReduction(b) && OnlyUse(graph_, a) && OnlyUse(graph_, b) &&
           a->type == b->type && a->producer->in(0) == b->producer->in(0);
  }

  // reshard(a + b) for reshard(a) and reshard(b), before `op`.
  Value* SumFirst(Value* a, Value* b, Op* op) {
    Value *pa = a->producer->operands[0], *pb = b->producer->operands[0];
    Op* sum = graph_.AddOp(*op->def, {pa, pb}, {pa->type}, {}, op);
    Op* reshard =
        graph_.AddOp(*a->producer->def, {sum->result()}, {a->type}, a->producer->attrs, op);
    for (Op* made : {sum, reshard}) {
      made->phase = op->phase;
      made->site = op->site;
    }
    reshard->site = a->producer->site;
    Strings why = a->producer->attrs.StringList("why");
    for (const std::string& w : b->producer->attrs.StringList("why")) {
      if (std::find(why.begin(), why.end(), w) == why.end()) why.push_back(w);
    }
    reshard->attrs.Set("why", std::move(why));
    return reshard->result();
  }

  bool VisitAdd(Op* op) {
    for (int i : {0, 1}) {
      Value *a = op->operands[i], *b = op->operands[1 - i];
      if (i == 0 && Combine(a, b)) {
        graph_.ReplaceAllUses(op->result(), SumFirst(a, b, op));
        return true;
      }
      // (x + reshard(a)) + reshard(b) = x + reshard(a + b)
      Op* inner = a->producer;
      if (!inner || inner->name() != "add" || !OnlyUse(graph_, a)) continue;
      for (int j : {0, 1}) {
        Value *x = inner->operands[j], *r = inner->operands[1 - j];
        if (!Combine(r, b) || x->type != op->out()) continue;
        Value* sum = SumFirst(r, b, op);
        Op* outer = graph_.AddOp(*op->def, {x, sum}, {op->out()}, {}, op);
        outer->phase = op->phase;
        outer->site = op->site;
        graph_.ReplaceAllUses(op->result(), outer->result());
        return true;
      }
    }
    return CombineTerms(op);
  }

  // The terms of a sum of op's type, through the adds that nothing else reads.
  void CollectTerms(Op* op, std::vector<Value*>& terms) const {
    for (Value* v : op->operands) {
      Op* inner = v->producer;
      bool nested = inner && inner->name() == "add" && v->type == op->out() && OnlyUse(graph_, v);
      if (nested) {
        CollectTerms(inner, terms);
      } else {
        terms.push_back(v);
      }
    }
  }

  // Branches that run side by side end in such sums, with a bias each:
  // (reshard(a) + u) + (reshard(b) + v) = reshard(a + b) + u + v
  bool CombineTerms(Op* op) {
    std::vector<Value*> terms;
    CollectTerms(op, terms);
    for (size_t i = 0; i < terms.size(); ++i) {
      if (terms[i]->type != op->out()) continue;
      for (size_t j = i + 1; j < terms.size(); ++j) {
        if (!Combine(terms[i], terms[j])) continue;
        Value* sum = SumFirst(terms[i], terms[j], op);
        for (size_t k = 0; k < terms.size(); ++k) {
          if (k == i || k == j) continue;
          Op* add = graph_.AddOp(*op->def, {sum, terms[k]}, {op->out()}, {}, op);
          add->phase = op->phase;
          add->site = op->site;
          sum = add->result();
        }
        graph_.ReplaceAllUses(op->result(), sum);
        return true;
      }
    }
    return false;
  }

  Graph& graph_;
};

}  // namespace

void OptimizeReshards(Graph& graph) { Optimizer(graph).Run(); }

}  // namespace shardc
