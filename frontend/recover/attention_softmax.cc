#include "frontend/recover/attention_softmax.h"

#include <algorithm>
#include <limits>

namespace shardc::recover {
namespace {

// Whether the condition, or its opposite, is that the row of scores is not all -infinity, as
// PyTorch's _safe_softmax asks.
bool SeesAKey(const Value* condition, bool holds, const Value* scores) {
  auto unless_not = [](const Value* v, bool& positive) {
    for (Op* negation; (negation = ProducedBy(v, "not")) != nullptr; positive = !positive) {
      v = negation->operands[0];
    }
    return v;
  };
  condition = unless_not(condition, holds);
  Op* flag = ProducedBy(condition, "cast");
  Op* reduce = flag ? flag->operands[0]->producer : nullptr;
  // Any score that is not -infinity, or not all of those that are.
  if (reduce == nullptr || reduce->name() != (holds ? "reduce_max" : "reduce_min")) return false;
  const Ints& axes = reduce->attrs.IntList("axes");
  const bool kept = reduce->attrs.Bool("keepdims");
  if (!kept || axes.size() != 1 || !IsLastAxis(axes[0], reduce->in(0).rank())) return false;
  Op* number = ProducedBy(reduce->operands[0], "cast");
  const Value* of_score = number ? unless_not(number->operands[0], holds) : nullptr;
  Op* equal = !holds ? ProducedBy(of_score, "equal") : nullptr;
  return equal && equal->operands[0] == scores &&
         IsSplat(equal->operands[1], -std::numeric_limits<double>::infinity());
}

// The only use of a value, and that of what it was rounded from, is on the way to the softmax.
class Search {
 public:
  // The softmax whose result p is, maybe rounded.
  Op* Run(Value* p) {
    if (!TakeDropout(p) || !TakeZeros(p)) return nullptr;
    Op* softmax = ProducedBy(p, "softmax");
    if (softmax == nullptr) return nullptr;
    return IsLastAxis(softmax->attrs.Int("axis"), p->type.rank()) ? softmax : nullptr;
  }

  Probabilities found;

 private:
  static Value* Unrounded(Value* v) {
    Op* cast = FloatCast(v, false);
    return cast ? cast->operands[0] : v;
  }

  bool TakeDropout(Value*& p) {
    if (CountUses(p) != 1) return false;
    p = Unrounded(p);
    found.dropout = ProducedBy(p, "dropout");
    if (found.dropout != nullptr) {
      if (CountUses(p) != 1 || found.dropout->attrs.Has("whole")) return false;
      p = found.dropout->operands[0];
      if (CountUses(p) != 1) return false;
      p = Unrounded(p);
    }
    return CountUses(p) == 1;
  }

  bool TakeZeros(Value*& p) {
    Op* where = ProducedBy(p, "where");
    if (where == nullptr) return true;
    const int zeros = IsSplat(where->operands[1], 0) ? 1 : 2;
    Value *guarded = where->operands[3 - zeros], *condition = where->operands[0];
    if (!IsSplat(where->operands[zeros], 0)) return false;
    Op* is_nan = zeros == 1 ? ProducedBy(condition, "is_nan") : nullptr;
    const bool of_nan = is_nan && is_nan->operands[0] == guarded;
    if (CountUses(guarded) != (of_nan ? 2 : 1)) return false;
    p = Unrounded(guarded);
    if (p != guarded && CountUses(p) != 1) return false;
    Op* softmax = ProducedBy(p, "softmax");
    found.guard = of_nan || (softmax && SeesAKey(condition, zeros == 2, softmax->operands[0]));
    if (!found.guard) found.again = {MaskStep::kKeep, condition, zeros == 1, 0};
    return true;
  }
};

// Whether the same keys are kept.
bool SameCondition(const MaskStep& a, const MaskStep& b) {
  if (a.negated != b.negated) return false;
  if (a.value == b.value) return true;
  const HostTensor *x = ConstantOf(a.value), *y = ConstantOf(b.value);
  return x && y && x->shape() == y->shape() &&
         std::equal(x->raw(), x->raw() + x->bytes(), y->raw());
}

// The probabilities that p, which leaves out the last of each row, is made of.
Value* BeforeSink(Value* p) {
  Op* op = p->producer;
  if (op == nullptr || p->index != 0 || !OneOf(op->name(), {"slice", "split"})) return p;
  const Shape &whole = op->in(0).shape, &part = p->type.shape;
  if (whole.empty() || part.back() + 1 != whole.back()) return p;
  if (!std::equal(part.begin(), part.end() - 1, whole.begin())) return p;
  auto all = [&](const char* attr, int64_t n) {
    return std::ranges::all_of(op->attrs.IntList(attr), [n](int64_t each) { return each == n; });
  };
  const bool last = op->name() == "split" ? op->results.size() == 2 && op->result(1)->users.empty()
                                          : all("starts", 0) && all("steps", 1);
  return last && CountUses(p) == 1 ? op->operands[0] : p;
}

// Whether `both` are the scores of all keys and, behind them, one more, of which p has no
// probability.
bool HasSink(const Op* both, const Value* p) {
  return both != nullptr && both->operands.size() == 2 && both->out().rank() == 4 &&
         IsLastAxis(both->attrs.Int("axis"), 4) && both->in(1).shape[3] == 1 &&
         p->type.shape == both->in(0).shape;
}

}  // namespace

std::optional<Probabilities> FindProbabilities(Value* p) {
  Search search;
  Value* all = BeforeSink(p);
  Probabilities& found = search.found;
  found.softmax = search.Run(all);
  if (found.softmax == nullptr) return std::nullopt;
  found.scores = found.softmax->operands[0];
  if (all == p) return found;
  const Op* both = ProducedBy(found.scores, "concat");
  if (!HasSink(both, p) || found.dropout || found.again.value) return std::nullopt;
  found.scores = both->operands[0];
  found.sink = both->operands[1];
  return found;
}

bool OnlyMaskedBy(const std::vector<MaskStep>& steps, const MaskStep& again) {
  bool found = false;
  for (const MaskStep& step : steps) {
    if (step.kind == MaskStep::kScale) continue;
    if (step.kind != MaskStep::kKeep || !SameCondition(step, again)) return false;
    found = true;
  }
  return found;
}

}  // namespace shardc::recover
