#include "passes/optimize_reshards.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "ir/builder.h"
#include "ir/op_def.h"
#include "passes/provenance.h"
#include "passes/sink_reductions.h"
#include "passes/weights.h"

namespace shardc {
namespace {

class Optimizer {
 public:
  Optimizer(Graph& graph, bool by_microbatch)
      : graph_(graph), by_microbatch_(by_microbatch), moves_(graph.ops().size()) {}

  // Returns how many ops and values were looked at.
  int64_t Run() {
    bool changed = true;
    while (changed) {
      changed = false;
      visits_ += graph_.NumberOps();
      reductions_.clear();
      for (auto it = graph_.ops().begin(); it != graph_.ops().end();) {
        Op* op = (it++)->get();
        changed |=
            op->name() == "reshard" ? VisitReshard(op) : op->name() == "add" && CombineTerms(op);
      }
      if (!changed) changed = SinkReductions(graph_, moves_, visits_);
      changed |= graph_.EraseDead() > 0;
    }
    return visits_;
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
      ++visits_;
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

  // Op::id is the place in the order; what was made since has that of the op before which it is.
  bool ComesBefore(const Op* a, const Op* b) const {
    if (a->id != b->id) return a->id < b->id;
    for (const Op* o = b; o && o->id == a->id; o = graph_.Previous(o)) {
      if (o == a) return true;
    }
    return false;
  }

  // The reduction that a term of a sum is, or of which it is a wider copy that alone reads it.
  const Value* ReductionOf(const Value* term) const {
    const Value* reduced = term;
    const Op* cast = term->producer;
    if (cast && cast->name() == "cast" && IsFloat(cast->in(0).dtype) &&
        DTypeSize(cast->in(0).dtype) < DTypeSize(term->type.dtype)) {
      reduced = cast->operands[0];
    }
    const bool is =
        !SummedAxes(reduced).empty() && graph_.OnlyUser(reduced) && graph_.OnlyUser(term);
    return is ? reduced : nullptr;
  }

  struct Reduction {
    Value* term;  // of a sum: the reduction, or its wider copy
    const Value* value;
    bool waits;  // for those of other microbatches
  };
  using Reductions = std::vector<Reduction>;

  bool MayWait(const Value& reduction) const {
    return !by_microbatch_ || LocalBytes(reduction.type, graph_.mesh) >=
                                  LocalBytes(reduction.producer->in(0), graph_.mesh);
  }

  // An equal one may have been merged with it, which others read.
  bool StillIs(const Reduction& r) const { return ReductionOf(r.term) == r.value; }

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
    Op* op =
        graph_.AddOp(*like.def, std::move(operands), {type}, std::move(attrs), before, *before);
    op->id = before->id;
    return op->result();
  }

  Value* Cast(Value* v, DType to, const Op& like, Op* before) {
    if (v->type.dtype == to) return v;
    // What was narrowed to travel is as it was.
    const Op* cast = v->producer;
    if (cast && cast->name() == "cast" && cast->in(0).dtype == to) return cast->operands[0];
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
    AddReasons(why, WhyOf(rb));
    if (!why.empty()) whole->producer->attrs.Set("why", std::move(why));
    return Cast(whole, wide, cast, op);
  }

  // The add that makes the value, if it is a part of a sum of this type that nothing else reads.
  Op* PartOf(const TensorType& sum, const Value* v) const {
    Op* add = v->producer;
    const bool part = add && add->name() == "add" && v->type == sum && graph_.OnlyUser(v);
    return part ? add : nullptr;
  }

  std::vector<Value*> TermsOf(const Op& sum) const {
    std::vector<Value*> terms, waiting = {sum.operands[1], sum.operands[0]};
    while (!waiting.empty()) {
      Value* v = waiting.back();
      waiting.pop_back();
      if (const Op* part = PartOf(sum.out(), v)) {
        waiting.insert(waiting.end(), {part->operands[1], part->operands[0]});
      } else {
        terms.push_back(v);
      }
    }
    return terms;
  }

  // Those among the terms of a value that is added up to `sum`. Few are: the norm of all gradients
  // is a sum of thousands of other terms, each of which is looked at once. What is known of a part
  // goes to the sum, which alone reads it.
  Reductions ReductionsIn(Value* value, const TensorType& sum) {
    Reductions all;
    std::vector<Value*> waiting = {value};
    while (!waiting.empty()) {
      Value* v = waiting.back();
      waiting.pop_back();
      ++visits_;
      const Op* part = PartOf(sum, v);
      if (!part) {
        if (const Value* r = ReductionOf(v)) all.push_back({v, r, MayWait(*r)});
      } else if (auto known = reductions_.extract(part); known.empty()) {
        waiting.insert(waiting.end(), {part->operands[1], part->operands[0]});
      } else if (all.empty()) {
        all = std::move(known.mapped());
      } else {
        std::ranges::copy(known.mapped(), std::back_inserter(all));
      }
    }
    return all;
  }

  // Branches that run side by side end in such sums, maybe with a bias each:
  // (reshard(a) + u) + (reshard(b) + v) = reshard(a + b) + u + v
  bool CombineTerms(Op* op) {
    Reductions left = ReductionsIn(op->operands[0], op->out());
    Reductions right = ReductionsIn(op->operands[1], op->out());
    // Two on one side had their turn at the op that makes it.
    for (const Reduction& a : left) {
      if (a.term->type != op->out()) continue;
      auto b = std::ranges::find_if(right, [&](const Reduction& other) {
        return Alike(a, other) && StillIs(a) && StillIs(other);
      });
      if (b == right.end()) continue;
      if (!CombineTwo(a.term, b->term)) SumAll(op, a.term, b->term);
      return true;
    }
    std::ranges::copy(right, std::back_inserter(left));
    reductions_[op] = std::move(left);
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
  void SumAll(Op* op, Value* a, Value* b) {
    const std::vector<Value*> terms = TermsOf(*op);
    Value* sum = SumFirst(a, b, op);
    for (Value* term : terms) {
      if (term != a && term != b) sum = Make(*op, {term, sum}, op->out(), {}, op);
    }
    graph_.ReplaceAllUses(op->result(), sum);
  }

  Graph& graph_;
  bool by_microbatch_;
  size_t moves_;  // that reductions may still make
  int64_t visits_ = 0;
  // By the add that makes a sum, of which no other is a part yet.
  std::unordered_map<const Op*, Reductions> reductions_;
};

}  // namespace

int64_t OptimizeReshards(Graph& graph, bool by_microbatch) {
  return Optimizer(graph, by_microbatch).Run();
}

}  // namespace shardc
