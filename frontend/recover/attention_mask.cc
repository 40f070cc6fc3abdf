#include "frontend/recover/attention_mask.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "ir/op_def.h"
#include "ir/row_major.h"
#include "ir/run_reference.h"

namespace shardc::recover {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// exp of a score this far below the row's maximum is zero in every float type (exp(-746) is zero in
// f64).
constexpr double kNever = -1e4;
// A value this large absorbs any score that is added to it, in f64 too.
constexpr double kAbsorbing = -1e30;
constexpr double kLowestHalf = -65504;

double LowestOf(DType type) {
  if (type == DType::kF16) return kLowestHalf;
  return type == DType::kBF16 ? -0x1.fep127 : -0x1.fffffep127;
}

using Evaluated = std::unordered_map<const Value*, HostTensor>;

// The data of v where it follows from constants alone; kept in `evaluated` if it is none itself.
const HostTensor* Evaluate(const Value* v, int depth, Evaluated& evaluated) {
  constexpr int64_t kMaxElements = int64_t{1} << 26;
  if (const HostTensor* data = ConstantOf(v)) return data;
  if (auto known = evaluated.find(v); known != evaluated.end()) return &known->second;
  const Op* op = v->producer;
  if (op == nullptr || depth == 0 || !op->def->reference || op->operands.empty() ||
      op->results.size() != 1 || v->type.num_elements() > kMaxElements) {
    return nullptr;
  }
  std::vector<const HostTensor*> operands;
  for (const Value* operand : op->operands) {
    operands.push_back(Evaluate(operand, depth - 1, evaluated));
    if (operands.back() == nullptr) return nullptr;
  }
  HostTensor data = std::move(RunReference(*op->def, op->attrs, operands, {&v->type, 1})[0]);
  return &evaluated.emplace(v, std::move(data)).first->second;
}

// Exporters fold the batch into masks: leading dims along which nothing changes become 1.
HostTensor Compact(const HostTensor& data) {
  Shape shape = data.shape();
  int64_t bytes = data.bytes();
  for (int64_t& dim : shape) {
    if (dim == 0) break;
    int64_t slice = bytes / dim;
    bool same = true;
    for (int64_t i = 1; i < dim && same; ++i) {
      same = std::equal(data.raw(), data.raw() + slice, data.raw() + i * slice);
    }
    if (!same) break;
    dim = 1;
    bytes = slice;
  }
  HostTensor out(data.dtype(), shape);
  std::copy_n(data.raw(), bytes, out.raw());
  return out;
}

// Masks broadcast by themselves, so that a large broadcast need not be evaluated.
Value* WithoutBroadcast(Value* v) {
  while (Op* broadcast = ProducedBy(v, "broadcast_to")) v = broadcast->operands[0];
  return v;
}

// Which keys each query may see, [b, h, s, t] with dims of 1 where it does not vary.
struct Keep {
  Shape shape = {1, 1, 1, 1};
  std::vector<char> bits = {1};

  char At(int64_t b, int64_t h, int64_t s, int64_t t) const {
    auto index = [&](int d, int64_t i) { return shape[d] == 1 ? 0 : i; };
    return bits[((index(0, b) * shape[1] + index(1, h)) * shape[2] + index(2, s)) * shape[3] +
                index(3, t)];
  }
  template <typename F>
  bool AllRows(int64_t s, F holds) const {  // holds(b, h, s) for every row that differs
    for (int64_t b = 0; b < shape[0]; ++b) {
      for (int64_t h = 0; h < shape[1]; ++h) {
        for (int64_t i = 0; i < s; ++i) {
          if (!holds(b, h, i)) return false;
        }
      }
    }
    return true;
  }
  bool EveryRowSees(int64_t s, int64_t t) const {
    return AllRows(s, [&](int64_t b, int64_t h, int64_t i) {
      for (int64_t j = 0; j < t; ++j) {
        if (At(b, h, i, j)) return true;
      }
      return false;
    });
  }
  bool IsCausal(int64_t s, int64_t t) const {
    return AllRows(s, [&](int64_t b, int64_t h, int64_t i) {
      for (int64_t j = 0; j < t; ++j) {
        if (At(b, h, i, j) != (j <= i + t - s)) return false;
      }
      return true;
    });
  }
  bool All() const {
    return std::all_of(bits.begin(), bits.end(), [](char c) { return c != 0; });
  }
  void And(const Shape& other_shape, const std::vector<char>& other_bits) {
    Keep other{Shape(4 - other_shape.size(), 1), other_bits},
        out{*Broadcast(shape, other_shape), {}};
    other.shape.insert(other.shape.end(), other_shape.begin(), other_shape.end());
    for (int64_t b = 0; b < out.shape[0]; ++b) {
      for (int64_t h = 0; h < out.shape[1]; ++h) {
        for (int64_t i = 0; i < out.shape[2]; ++i) {
          for (int64_t j = 0; j < out.shape[3]; ++j) {
            out.bits.push_back(At(b, h, i, j) && other.At(b, h, i, j));
          }
        }
      }
    }
    *this = std::move(out);
  }
};

// A condition that depends on the model's inputs.
struct Condition {
  Value* value;
  bool negated;
};

class MaskRecovery {
 public:
  MaskRecovery(Builder& builder, const TensorType& scores, bool nan_guard, bool sink)
      : b_(builder),
        scores_(scores.shape),
        dtype_(scores.dtype),
        nan_guard_(nan_guard || sink),
        sink_(sink) {}

  std::optional<RecoveredMask> Run(const std::vector<MaskStep>& steps) {
    RecoveredMask out;
    for (const MaskStep& step : steps) {
      if (step.kind == MaskStep::kScale) out.scale *= step.number;
    }
    if (!Collect(steps)) return std::nullopt;
    int64_t s = scores_[2], t = scores_[3];
    // Rows that see no key give zero here and in the model: both minus infinity and the guard.
    bool guarded = nan_guard_ && (all_infinite_ || sink_);
    bool exact = plain_ && (guarded || (computed_.empty() && keep_.EveryRowSees(s, t)));
    if (!exact) {
      out.mask = Additive(steps);
      if (out.mask && !sink_) out.replaced = Replaced(steps);
      if (out.mask && may_see_nothing_) out.unseeing = Unseeing(out.mask);
      if (out.mask && out.replaced && absorbs_little_) out.mask = FromZero(out.mask, out.replaced);
      return out.mask || steps.empty() ? std::optional(out) : std::nullopt;
    }
    out.causal = has_constant_ && keep_.IsCausal(s, t);
    if (!out.causal && !keep_.All()) out.mask = KeepConstant();
    for (const Condition& c : computed_) {
      Value* condition = c.negated ? b_.Make("not", {c.value}) : c.value;
      out.mask = out.mask ? b_.Make("and", {out.mask, condition}) : condition;
    }
    return out;
  }

 private:
  // What it is, but for a broadcast, where that follows from constants alone; else null.
  const HostTensor* Known(Value* v) {
    constexpr int kDepth = 16;
    return Evaluate(WithoutBroadcast(v), kDepth, evaluated_);
  }

  // Sorts the steps into constant and computed conditions. `plain_` stays true while every step
  // only decides which keys are seen. False: a shape does not fit.
  bool Collect(const std::vector<MaskStep>& steps) {
    for (size_t i = 0; i < steps.size(); ++i) {
      const MaskStep& step = steps[i];
      if (step.kind == MaskStep::kScale) continue;
      if (step.kind == MaskStep::kFloor) {
        if (!(ScaleAfter(steps, i) > 0 && step.number * ScaleAfter(steps, i) <= kNever))
          return false;
        all_infinite_ = false;
        continue;
      }
      std::optional<Shape> joint = Broadcast(step.value->type.shape, scores_);
      if (!joint || *joint != scores_) return false;
      double after = ScaleAfter(steps, i);
      if (!(after > 0)) return false;
      if (step.kind == MaskStep::kKeep) {
        AddCondition(step.value, step.negated, step.number * after);
      } else {
        AddBias(step.value, after);
      }
    }
    return true;
  }

  // What multiplies the scores after step i.
  static double ScaleAfter(const std::vector<MaskStep>& steps, size_t i) {
    double after = 1;
    for (size_t j = i + 1; j < steps.size(); ++j) {
      if (steps[j].kind == MaskStep::kScale) after *= steps[j].number;
    }
    return after;
  }

  void AddFill(double fill) {
    plain_ &= fill <= kNever;
    all_infinite_ &= fill == -kInfinity;
  }

  void AddCondition(Value* value, bool negated, double fill) {
    AddFill(fill);
    std::vector<Condition> open = {{value, negated}};  // the last is next
    while (!open.empty()) {
      Condition c = open.back();
      open.pop_back();
      c.value = WithoutBroadcast(c.value);
      Op* both = ProducedBy(c.value, "and");
      if (Op* inverse = ProducedBy(c.value, "not")) {
        open.push_back({inverse->operands[0], !c.negated});
      } else if (both && !c.negated && !Known(c.value)) {
        // Both parts of a conjunction, so that a triangle within it is found.
        open.push_back({both->operands[1], false});
        open.push_back({both->operands[0], false});
      } else {
        AddTerm(c.value, c.negated);
      }
    }
  }

  void AddTerm(Value* value, bool negated) {
    const HostTensor* known = Known(value);
    if (!known) return computed_.push_back({value, negated});
    const HostTensor data = Compact(*known);
    std::vector<char> bits;
    for (int64_t i = 0; i < data.num_elements(); ++i) {
      bits.push_back((data.AsDouble(i) != 0) != negated);
    }
    keep_.And(data.shape(), bits);
    visible_.And(data.shape(), bits);
    near_.And(data.shape(), bits);
    has_constant_ = true;
  }

  void AddBias(Value* value, double after) {
    value = WithoutBroadcast(value);
    if (const HostTensor* known = Known(value)) {
      const HostTensor data = Compact(*known);
      std::vector<char> zero, visible, near;
      for (int64_t i = 0; i < data.num_elements(); ++i) {
        double v = data.AsDouble(i) * after;
        zero.push_back(v == 0);
        visible.push_back(v > kAbsorbing);
        near.push_back(v > kNever / 2);
        raises_ |= v >= -kAbsorbing;
        if (v != 0) AddFill(v);
      }
      keep_.And(data.shape(), zero);
      visible_.And(data.shape(), visible);
      near_.And(data.shape(), near);
      has_constant_ = true;
      return;
    }
    const Op* neg = ProducedBy(value, "neg");
    Op* where = ProducedBy(neg ? neg->operands[0] : value, "where");
    for (int i = 1; where != nullptr && i <= 2; ++i) {
      std::optional<double> fill = SplatOf(where->operands[3 - i]);
      if (fill) raises_ |= (neg ? -*fill : *fill) * after >= -kAbsorbing;
      if (neg || !fill || !IsSplat(where->operands[i], 0)) continue;
      return AddCondition(where->operands[0], i == 2, *fill * after);
    }
    plain_ = false;
  }

  Value* KeepConstant() {
    HostTensor data(DType::kBool, keep_.shape);
    for (int64_t i = 0; i < data.num_elements(); ++i) data.SetDouble(i, keep_.bits[i]);
    return b_.Constant(std::move(data));
  }

  // The mask that is added to the scaled scores to give exactly what the model computes: it may
  // hold any values. A fill that replaces a score must absorb it, or the score must be nothing.
  // Null where neither is so.
  Value* Additive(const std::vector<MaskStep>& steps) {
    // Infinities are harmless in constants that leave every row a key; NaN must not come from
    // elsewhere.
    if (raises_) return nullptr;  // a score that was replaced would be seen again
    bool rows_see = visible_.EveryRowSees(scores_[2], scores_[3]);
    auto last_floor = std::find_if(steps.rbegin(), steps.rend(), [](const MaskStep& step) {
      return step.kind == MaskStep::kFloor;
    });
    const size_t floored = static_cast<size_t>(steps.rend() - last_floor);  // steps up to it
    auto safe = [&](const MaskStep& step) {
      bool below_floor = static_cast<size_t>(&step - steps.data()) < floored;
      return nan_guard_ || below_floor || (rows_see && Known(step.value));
    };
    bool adds_computed = false, adds_infinite = false;
    for (const MaskStep& step : steps) {
      if (step.kind != MaskStep::kAdd || Known(step.value)) continue;
      adds_computed = true;
      adds_infinite |= MayBeInfinite(step.value);
    }
    Value* mask = nullptr;
    for (size_t i = 0; i < steps.size(); ++i) {
      const MaskStep& step = steps[i];
      if (step.kind == MaskStep::kScale) {
        if (mask) mask = b_.Mul(mask, b_.Scalar(mask->type.dtype, step.number));
      } else if (step.kind == MaskStep::kFloor) {
        // A floor that absorbs any score may bound the mask instead of their sum.
        if (step.number > kAbsorbing) return nullptr;
        if (mask) mask = b_.Make("max", {mask, b_.Scalar(mask->type.dtype, step.number)});
      } else if (step.kind == MaskStep::kAdd) {
        may_see_nothing_ |= !safe(step) && MayBeInfinite(step.value);
        if (DependsOnParam(step.value)) return nullptr;  // a mask has no gradient
        Value* added = b_.Cast(step.value, dtype_);
        mask = mask ? b_.Add(mask, added) : added;
      } else {
        double number = step.number;
        if (number > kAbsorbing) {
          // A fill that absorbs nothing is never seen where a row sees a key, and a row of which
          // every score is replaced asks for nothing. Where other rows may see none, something
          // computed brings all that they see down to the fill. With the lowest of half precision
          // that happens to padded queries alone, of which models in half precision make nothing.
          if (number * ScaleAfter(steps, i) > kNever) return nullptr;
          if (sink_) {
            number = -kInfinity;
          } else if (!OnlyReplaces(steps)) {
            const bool near = near_.EveryRowSees(scores_[2], scores_[3]) && Known(step.value) &&
                              (number == kLowestHalf ? !adds_infinite : !adds_computed);
            if (!near) return nullptr;
            number = -kInfinity;
          }
          absorbs_little_ |= number != -kInfinity;
        }
        may_see_nothing_ |= number == -kInfinity && !safe(step);
        Value* fill = b_.Scalar(dtype_, number);
        Value* otherwise = mask ? mask : b_.Scalar(dtype_, 0);
        mask = b_.Make("where", {step.value, step.negated ? fill : otherwise,
                                 step.negated ? otherwise : fill});
      }
    }
    // With the guard, a row of finite fills is uniform in the model and here; one of infinities is
    // zero in both. Rows that mix them see a key.
    return mask;
  }

  // Whether a row sees a key unless all its scores are replaced: what is added hides none.
  bool OnlyReplaces(const std::vector<MaskStep>& steps) {
    for (size_t i = 0; i < steps.size(); ++i) {
      if (steps[i].kind == MaskStep::kFloor) return false;
      if (steps[i].kind != MaskStep::kAdd) continue;
      const HostTensor* data = Known(steps[i].value);
      if (!data) return false;
      const double after = ScaleAfter(steps, i);
      for (int64_t k = 0; k < data->num_elements(); ++k) {
        if (std::fabs(data->AsDouble(k) * after) > -kNever / 4) return false;
      }
    }
    return true;
  }

  // Which queries see no key, as the mask says.
  Value* Unseeing(Value* mask) {
    Value* most = b_.ReduceMax(InFourDims(mask), {3}, true);
    return b_.Make("equal", {most, b_.Scalar(dtype_, -kInfinity)});
  }

  // The mask, of whose rows in `rows` the largest are 0: beside a fill like -1e6 the logarithm of
  // how many keys have it would be rounded.
  Value* FromZero(Value* mask, Value* rows) {
    Value* most = b_.ReduceMax(InFourDims(mask), {3}, true);
    most = b_.Make("max", {most, b_.Scalar(dtype_, LowestOf(dtype_))});
    return b_.Sub(mask, b_.Make("where", {rows, most, b_.Scalar(dtype_, 0)}));
  }

  Value* InFourDims(Value* v) {
    Shape shape(4 - v->type.rank(), 1);
    shape.insert(shape.end(), v->type.shape.begin(), v->type.shape.end());
    return b_.Reshape(v, std::move(shape));
  }

  // Which queries see no key because every score is replaced; null where there can be none, or
  // where what is added may hide keys too.
  Value* Replaced(const std::vector<MaskStep>& steps) {
    if (computed_.empty() && keep_.EveryRowSees(scores_[2], scores_[3])) return nullptr;
    if (!OnlyReplaces(steps)) return nullptr;
    Value* seen = nullptr;
    for (const MaskStep& step : steps) {
      if (step.kind != MaskStep::kKeep) continue;
      Value* keep = step.negated ? b_.Make("not", {step.value}) : step.value;
      seen = seen ? b_.Make("and", {seen, keep}) : keep;
    }
    if (seen == nullptr) return nullptr;
    Value* any = b_.ReduceMax(b_.Cast(InFourDims(seen), DType::kI32), {3}, true);
    return b_.Make("equal", {any, b_.Scalar(DType::kI32, 0)});
  }

  // No element is larger in magnitude; infinity where nothing is known.
  static double Largest(const Value* v, int depth = 12) {
    if (v->type.dtype == DType::kBool) return 1;
    if (!IsFloat(v->type.dtype)) return 0x1p63;
    double largest = 0;
    if (const HostTensor* data = ConstantOf(v)) {
      for (int64_t i = 0; i < data->num_elements(); ++i) {
        largest = std::max(largest, std::fabs(data->AsDouble(i)));
      }
      return largest;
    }
    const Op* op = v->producer;
    const bool where = op && op->name() == "where", sum = op && OneOf(op->name(), {"add", "sub"});
    const bool product = op && op->name() == "mul";
    if (op == nullptr || depth == 0 ||
        (!where && !sum && !product && op->name() != "cast" && op->name() != "neg" &&
         !Arranges(op) && op->name() != "broadcast_to")) {
      return kInfinity;
    }
    if (product) largest = 1;
    for (size_t i = where ? 1 : 0; i < op->operands.size(); ++i) {
      const double each = Largest(op->operands[i], depth - 1);
      largest = product ? largest * each : sum ? largest + each : std::max(largest, each);
    }
    return largest;
  }

  // Whether minus infinity can be among the elements.
  static bool MayBeInfinite(const Value* v, int depth = 12) {
    if (!IsFloat(v->type.dtype)) return false;
    if (const HostTensor* data = ConstantOf(v)) {
      for (int64_t i = 0; i < data->num_elements(); ++i) {
        if (!std::isfinite(data->AsDouble(i))) return true;
      }
      return false;
    }
    const Op* op = v->producer;
    if (op == nullptr || depth == 0) return true;
    if (op->name() == "add") return Largest(v) > -LowestOf(v->type.dtype);
    const bool finite = OneOf(op->name(), {"where", "cast", "sub", "mul", "neg", "reshape", "slice",
                                           "transpose", "broadcast_to", "concat"});
    return !finite ||
           std::any_of(op->operands.begin(), op->operands.end(),
                       [&](const Value* operand) { return MayBeInfinite(operand, depth - 1); });
  }

  Builder& b_;
  Shape scores_;
  DType dtype_;
  bool nan_guard_, sink_;
  bool plain_ = true, all_infinite_ = true, has_constant_ = false, may_see_nothing_ = false;
  bool absorbs_little_ = false;  // a fill that replaces scores
  bool raises_ = false;          // what is added may undo a fill
  Keep keep_;                    // by the constants, as far as they only decide which keys are seen
  Keep visible_;                 // where the constants add nothing infinite, or nearly so
  Keep near_;                    // where they leave a score far above a fill that is never seen
  std::vector<Condition> computed_;
  Evaluated evaluated_;
};

}  // namespace

std::optional<RecoveredMask> RecoverMask(Builder& builder, const TensorType& scores,
                                         const std::vector<MaskStep>& steps, bool nan_guard,
                                         bool sink) {
  return MaskRecovery(builder, scores, nan_guard, sink).Run(steps);
}

}  // namespace shardc::recover
