#include "passes/optimize_reshards.h"

#include <algorithm>
#include <vector>

#include "ir/builder.h"
#include "ir/op_def.h"
#include "passes/sink_reductions.h"
#include "passes/weights.h"

namespace shardc {
namespace {

// Whether the value is a sum over ranks, whole or cut.
bool IsReduction(const Value* v) {
  if (!v->producer || v->producer->name() != "reshard") return false;
  const Sharding &from = v->producer->in(0).sharding, &to = v->type.sharding;
  return from.partial_max == to.partial_max &&
         std::any_of(from.partial_sum.begin(), from.partial_sum.end(),
                     [&](int a) { return !to.partial_sum.contains(a); });
}

class Optimizer {
 public:
  Optimizer(Graph& graph, bool by_microbatch) : graph_(graph), by_microbatch_(by_microbatch) {}

  void Run() {
    bool changed = true;
    while (changed) {
      changed = false;
      for (auto it = graph_.ops().begin(); it != graph_.ops().end();) {
        Op* op = (it++)->get();
        changed |=
            op->name() == "reshard" ? VisitReshard(op) : op->name() == "add" && CombineTerms(op);
      }
      if (!changed) changed = SinkReductions(graph_);
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
      // A weight that the backward has its own version of is not kept for it from the forward.
      const bool together = other->phase == op->phase && other->microbatch == op->microbatch;
      if (!together && IsWeight(in)) continue;
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

  bool ComesBefore(const Op* a, const Op* b) const {
    for (const Op* o = b; o; o = graph_.Previous(o)) {
      if (o == a) return true;
    }
    return false;
  }

  // The reduction that a term of a sum is, or of which it is a wider copy that alone reads it.
  const Value* ReductionOf(const Value* term) const {
    if (!graph_.OnlyUser(term)) return nullptr;
    const Op* cast = term->producer;
    if (cast && cast->name() == "cast" && IsFloat(cast->in(0).dtype) &&
        DTypeSize(cast->in(0).dtype) < DTypeSize(term->type.dtype)) {
      term = cast->operands[0];
      if (!graph_.OnlyUser(term)) return nullptr;
    }
    return IsReduction(term) ? term : nullptr;
  }

  struct Reduction {
    size_t term;  // of a sum: the reduction, or its wider copy
    const Value* value;
    bool waits;  // for those of other microbatches
  };

  bool MayWait(const Value& reduction) const {
    return !by_microbatch_ || LocalBytes(reduction.type, graph_.mesh) >=
                                  LocalBytes(reduction.producer->in(0), graph_.mesh);
  }

  // From and to the same shardings.
  static bool Alike(const Reduction& a, const Reduction& b) {
    const Op &ra = *a.value->producer, &rb = *b.value->producer;
    auto alike = [](const TensorType& x, const TensorType& y) {
      return x.shape == y.shape && x.sharding == y.sharding;
    };
    return (a.waits || ra.microbatch == rb.microbatch) && alike(ra.out(), rb.out()) &&
           alike(ra.in(0), rb.in(0));
  }

  Value* Make(const Op& like, std::vector<Value*> operands, const TensorType& type,
              Attributes attrs, Op* before) {
    return graph_.AddOp(*like.def, std::move(operands), {type}, std::move(attrs), before, *before)
        ->result();
  }

  Value* Cast(Value* v, DType to, const Op& like, Op* before) {
    if (v->type.dtype == to) return v;
    TensorType type = v->type;
    type.dtype = to;
    return Make(like, {v}, type, {{"to", std::string(DTypeName(to))}}, before);
  }

  // reshard(a + b) for reshard(a) and reshard(b), before `op`. What was widened to be added still
  // is, but travels in its own type, or the wider one of the two.
  Value* SumFirst(Value* a, Value* b, Op* op) {
    const Op &ra = *ReductionOf(a)->producer, &rb = *ReductionOf(b)->producer;
    const Op& cast = a->producer == &ra ? *b->producer : *a->producer;  // where types differ
    TensorType type = ra.out();
    if (DTypeSize(rb.out().dtype) > DTypeSize(type.dtype)) type.dtype = rb.out().dtype;
    const DType wide = a->type.dtype, own = type.dtype;
    Value* pa = Cast(ra.operands[0], wide, cast, op);
    Value* pb = Cast(rb.operands[0], wide, cast, op);
    Value* sum = Cast(Make(*op, {pa, pb}, pa->type, {}, op), own, cast, op);
    Value* whole = Make(ra, {sum}, type, ra.attrs, op);
    whole->producer->site = ra.site;
    Strings why = WhyOf(ra);
    for (const std::string& w : WhyOf(rb)) {
      if (std::find(why.begin(), why.end(), w) == why.end()) why.push_back(w);
    }
    if (!why.empty()) whole->producer->attrs.Set("why", std::move(why));
    return Cast(whole, wide, cast, op);
  }

  // The terms of a sum of op's type, through the adds that nothing else reads.
  void CollectTerms(Op* op, std::vector<Value*>& terms) const {
    for (Value* v : op->operands) {
      Op* inner = v->producer;
      bool nested = inner && inner->name() == "add" && v->type == op->out() && graph_.OnlyUser(v);
      if (nested) {
        CollectTerms(inner, terms);
      } else {
        terms.push_back(v);
      }
    }
  }

  // Branches that run side by side end in such sums, maybe with a bias each:
  // (reshard(a) + u) + (reshard(b) + v) = reshard(a + b) + u + v
  bool CombineTerms(Op* op) {
    std::vector<Value*> terms;
    CollectTerms(op, terms);
    // Few are: the norm of all gradients is a sum of thousands of other terms.
    std::vector<Reduction> reductions;
    for (size_t i = 0; i < terms.size(); ++i) {
      const Value* reduction = ReductionOf(terms[i]);
      if (reduction) reductions.push_back({i, reduction, MayWait(*reduction)});
    }
    for (auto a = reductions.begin(); a != reductions.end(); ++a) {
      if (terms[a->term]->type != op->out()) continue;
      auto b = std::find_if(a + 1, reductions.end(), [&](auto& other) { return Alike(*a, other); });
      if (b == reductions.end()) continue;
      if (!CombineTwo(terms[a->term], terms[b->term])) SumAll(op, terms, a->term, b->term);
      return true;
    }
    return false;
  }

  // The sum of the two is added where the later one was, and nothing where the other was. Not if
  // what is left there is broadcast.
  bool CombineTwo(Value* a, Value* b) {
    Op *early = a->users[0], *late = b->users[0];
    if (early == late) {
      graph_.ReplaceAllUses(late->result(), SumFirst(a, b, late));
      return true;
    }
    const bool in_order = ComesBefore(early, late);
    if (!in_order) std::swap(early, late);
    const Value *first = in_order ? a : b, *last = in_order ? b : a;
    Value* left = early->operands[early->operands[0] == first ? 1 : 0];
    if (left->type != early->out()) return false;
    graph_.SetOperand(late, late->operands[0] == last ? 0 : 1, SumFirst(a, b, late));
    graph_.ReplaceAllUses(early->result(), left);
    return true;
  }

  // The sum of two of the terms, and then all others one after the other, in the place of `op`.
  void SumAll(Op* op, const std::vector<Value*>& terms, size_t i, size_t j) {
    Value* sum = SumFirst(terms[i], terms[j], op);
    for (size_t k = 0; k < terms.size(); ++k) {
      if (k == i || k == j) continue;
      sum = Make(*op, {terms[k], sum}, op->out(), {}, op);
    }
    graph_.ReplaceAllUses(op->result(), sum);
  }

  Graph& graph_;
  bool by_microbatch_;
};

}  // namespace

void OptimizeReshards(Graph& graph, bool by_microbatch) { Optimizer(graph, by_microbatch).Run(); }

}  // namespace shardc
