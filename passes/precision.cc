#include "passes/precision.h"

#include <algorithm>
#include <array>
#include <limits>
#include <unordered_map>

#include "ir/builder.h"
#include "ir/constant.h"
#include "ir/contains.h"
#include "ir/diagnostic.h"
#include "ir/op_def.h"
#include "passes/infers.h"

namespace shardc {
namespace {

constexpr int kMaxSteps = 8;  // from a bias to its parameters

DType ComputeType(const PrecisionOptions& options) {
  if (!options.reduce_in.empty() && options.reduce_in != "f32") {
    throw Diagnostic("E6108", ExitCode::kUsage, "--reduce-in",
                     StrCat("'", options.reduce_in, "' is no type to add in"),
                     "use f32, or leave it out");
  }
  for (DType t : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (options.compute == DTypeName(t)) return t;
  }
  throw Diagnostic("E6108", ExitCode::kUsage, "--precision",
                   StrCat("unknown precision '", options.compute, "'"), "use f32, bf16 or f16");
}

[[noreturn]] void Refuse(DType compute, const std::string& what) {
  throw Diagnostic("E1602", ExitCode::kBadModel, StrCat("--precision ", DTypeName(compute)), what,
                   "compile it without --precision, or export the model in f32");
}

// The largest finite value: a mask made of the lowest f32 must not become an infinity, of which
// whole rows give NaN.
double Largest(DType type) { return type == DType::kF16 ? 65504.0 : 3.3895313892515355e38; }

class Lowering {
 public:
  Lowering(Graph& graph, DType compute) : graph_(graph), compute_(compute) {}

  void Run() {
    Check();
    RememberOutputs();
    FindWishes();
    for (auto it = graph_.ops().begin(); it != graph_.ops().end();) {
      Op* op = it->get();
      ++it;  // casts go before op, replacements are made in place
      Visit(op);
    }
    RestoreOutputs();
    graph_.EraseDead();
  }

 private:
  void Check() const {
    bool any = false;
    for (const auto& op : graph_.ops()) {
      for (const Value* v : op->results) {
        DType type = v->type.dtype;
        any = any || type == DType::kF32;
        if (!IsFloat(type) || type == DType::kF32) continue;
        std::string who = op->name() == "param" ? "parameter " + op->attrs.String("name")
                                                : StrCat("op '", op->name(), "' at ", op->site);
        Refuse(compute_,
               StrCat("the model does not compute in f32 alone: ", who, " is ", DTypeName(type)));
      }
    }
    if (!any) Refuse(compute_, "the model has no f32 values, so there is nothing to make smaller");
  }

  void RememberOutputs() {
    for (const Output& o : graph_.outputs) output_types_.push_back(o.value->type.dtype);
  }

  void RestoreOutputs() {
    for (size_t i = 0; i < graph_.outputs.size(); ++i) {
      Value* v = graph_.outputs[i].value;
      if (v->type.dtype == output_types_[i]) continue;
      Value* as_before = As(v, output_types_[i], graph_.Next(v->producer));
      graph_.outputs.Set(graph_.outputs.begin() + static_cast<std::ptrdiff_t>(i), as_before);
    }
  }

  // For every value the bytes of it that are read in f32 less those read in the compute type, what
  // only moves or follows it seen through. A gradient is given in f32, as an optimizer would read
  // it.
  void FindWishes() {
    for (const Output& o : graph_.outputs) {
      if (!ParamOfGradient(o.name).empty()) wishes_[o.value] += o.value->type.bytes();
    }
    for (auto it = graph_.ops().rbegin(); it != graph_.ops().rend(); ++it) {
      const Op& op = **it;
      if (op.def->is_state || op.name() == "cast" || op.def->precision == Precision::kWiden) {
        continue;
      }
      Precision policy = op.def->precision;
      int64_t results = 0;
      for (const Value* r : op.results) results += Wish(r);
      for (size_t i = 0; i < op.operands.size(); ++i) {
        const Value* v = op.operands[i];
        if (!IsFloat(v->type.dtype)) continue;
        int64_t bytes = v->type.bytes();
        bool narrow =
            policy == Precision::kCompute && !Contains(op.def->full_operands, static_cast<int>(i));
        if (policy == Precision::kFollow && !HasTable(op)) {
          if (results == 0) continue;
          narrow = results < 0;
        }
        wishes_[v] += narrow ? -bytes : bytes;
      }
    }
  }

  int64_t Wish(const Value* v) const {
    auto it = wishes_.find(v);
    return it == wishes_.end() ? 0 : it->second;
  }

  // Tables (angles of rotary positions, additive masks) are worth their digits.
  static bool HasTable(const Op& op) {
    return std::any_of(op.operands.begin(), op.operands.end(), [](const Value* v) {
      return IsFloat(v->type.dtype) && ConstantOf(v) && v->type.num_elements() > 1;
    });
  }

  // Whether an op that may follow stays in f32: its results are read so, and its operands come in
  // f32 without a cast of their own, which the ops that make them save too. Then nothing on the way
  // is rounded.
  bool WidensForFree(const Op& op) const {
    int64_t results = 0;
    for (const Value* r : op.results) results += Wish(r);
    return results > 0 && std::all_of(op.operands.begin(), op.operands.end(), [&](const Value* v) {
             if (!IsFloat(v->type.dtype) || v->type.dtype == DType::kF32) return true;
             const Op* producer = v->producer;
             return producer && producer->def->typed_result == v->index && graph_.OnlyUser(v);
           });
  }

  void Visit(Op* op) {
    if (op->def->is_state || op->operands.empty()) return;
    Precision policy = op->def->precision;
    if (op->name() == "cast") return;
    switch (policy) {
      case Precision::kFull:
        SetOperands(op, DType::kF32, {});
        return;
      case Precision::kWiden:
        if (Narrow(op)) Retype(op, /*widen=*/true);
        return;
      case Precision::kCompute:
        SetOperands(op, compute_, op->def->full_operands);
        for (int i : op->def->full_operands) SetOperand(op, i, DType::kF32);
        Retype(op, false);
        return;
      case Precision::kAccumulate:
      case Precision::kFollow:
        if (!HasFloats(op)) return;
        SetOperands(op, Narrow(op) && !WidensForFree(*op) ? compute_ : DType::kF32, {});
        Retype(op, false);
        return;
    }
  }

  static bool HasFloats(const Op* op) {
    return std::any_of(op->operands.begin(), op->operands.end(),
                       [](const Value* v) { return IsFloat(v->type.dtype); });
  }

  // Made of parameters alone, as a bias is.
  static bool IsOfParams(const Value* v, int steps = kMaxSteps) {
    const Op* op = v->producer;
    if (op == nullptr || steps == 0) return false;
    return op->def->is_state ||
           (!op->operands.empty() && std::ranges::all_of(op->operands, [&](const Value* operand) {
             return ConstantOf(operand) || IsOfParams(operand, steps - 1);
           }));
  }

  // Whether a broadcast operand in f32 may hold numbers that are infinite, or all the same, in the
  // compute type: masks that are added to scores. What is taken from whole rows is their mean.
  bool AddsMask(const Op& op) const {
    if (op.name() != "add" && op.name() != "sub") return false;
    return std::ranges::any_of(op.operands, [&](const Value* v) {
      if (v->type.dtype != DType::kF32 || ConstantOf(v) || IsOfParams(v)) return false;
      const int64_t elements = v->type.num_elements();
      if (elements == 1 || elements == op.out().num_elements()) return false;
      return op.name() == "add" || v->type.shape.back() > 1;
    });
  }

  // Whether the operands that are not broadcast have the compute type: a bias follows what it is
  // added to. Scalars have no say.
  bool Narrow(const Op* op) const {
    bool sum = op->def->precision == Precision::kAccumulate;
    if (sum && op->in(0).num_elements() == op->in(1).num_elements()) return false;
    if (HasTable(*op) || AddsMask(*op)) return false;
    int64_t most = 0;
    for (const Value* v : op->operands) {
      if (IsFloat(v->type.dtype)) most = std::max(most, v->type.num_elements());
    }
    bool any = false;
    for (const Value* v : op->operands) {
      if (!IsFloat(v->type.dtype)) continue;
      if (ConstantOf(v)) continue;
      // Pieces of a concat are of any size.
      bool whole = v->type.num_elements() == most || !op->def->elementwise;
      if (!whole) continue;
      if (v->type.dtype != compute_) return false;
      any = true;
    }
    return any;
  }

  void SetOperands(Op* op, DType type, const std::vector<int>& except) {
    for (size_t i = 0; i < op->operands.size(); ++i) {
      if (!Contains(except, static_cast<int>(i))) SetOperand(op, i, type);
    }
  }

  void SetOperand(Op* op, size_t i, DType type) {
    if (i >= op->operands.size()) return;
    Value* v = op->operands[i];
    if (!IsFloat(v->type.dtype) || v->type.dtype == type) return;
    graph_.SetOperand(op, static_cast<int>(i), As(v, type, op));
  }

  // `v` in another type: made once, before the first op that asks.
  Value* As(Value* v, DType type, Op* before) {
    Value*& made = casts_[v][type == compute_];
    if (made) return made;
    const Op* maker = v->producer;
    Builder b = maker ? Builder(graph_, before, *maker) : Builder(graph_, before);
    if (const HostTensor* data = ConstantOf(v)) return made = b.Constant(Clamped(*data, type));
    // A weight's copy belongs to no layer's forward or backward alone; it is made where it is first
    // used.
    if (maker && maker->def->is_state && before) b.phase = before->phase;
    made = b.Cast(v, type);
    made->type.sharding = v->type.sharding;
    return made;
  }

  static HostTensor Clamped(const HostTensor& from, DType type) {
    HostTensor to(type, from.shape());
    double largest = Largest(type);
    for (int64_t i = 0; i < to.num_elements(); ++i) {
      double x = from.AsDouble(i);
      bool finite = std::abs(x) <= std::numeric_limits<double>::max();
      to.SetDouble(i, finite ? std::clamp(x, -largest, largest) : x);
    }
    return to;
  }

  // The result types that follow from the operands' new types; shardings from the spec stay.
  void Retype(Op* op, bool widen) {
    if (widen) op->attrs.Set("out", std::string(DTypeName(DType::kF32)));
    if (!op->def->infer) {
      for (Value* r : op->results) r->type.dtype = op->in(0).dtype;
      return;
    }
    std::vector<TensorType> results = InferResults(*op->def, op->operands, op->attrs);
    for (size_t i = 0; i < results.size(); ++i) op->results[i]->type.dtype = results[i].dtype;
  }

  Graph& graph_;
  DType compute_;
  std::vector<DType> output_types_;
  std::unordered_map<const Value*, int64_t> wishes_;
  std::unordered_map<const Value*, std::array<Value*, 2>> casts_;
};

// cast(cast(x: T)): T, one of them to a half: x itself is as good; rounded once less where that is
// the inner one, and the same where it is the outer one.
bool DropPair(Graph& graph, Op* outer) {
  Op* inner = outer->operands[0]->producer;
  if (!inner || inner->name() != "cast" || inner->in(0) != outer->out()) return false;
  if (!IsFloat(inner->out().dtype) || !IsFloat(outer->out().dtype)) return false;
  if (!IsHalf(inner->out().dtype) && !IsHalf(outer->out().dtype)) return false;
  graph.ReplaceAllUses(outer->result(), inner->operands[0]);
  return true;
}

bool MayGive(const Op& op, DType type) {
  if (op.in(0).dtype == DType::kF64 || type == DType::kF64) return false;
  if (!IsHalf(type)) return true;
  if (HasOtherHalf(op, type)) return false;
  return op.def->precision != Precision::kCompute || IsHalf(op.in(0).dtype);
}

bool FoldIntoProducer(Graph& graph, Op* cast) {
  Value* v = cast->operands[0];
  // Behind views that nothing else reads: they are of any type.
  std::vector<Value*> views;
  while (v->producer && v->producer->def->view && IsFloat(v->type.dtype) && graph.OnlyUser(v)) {
    views.push_back(v);
    v = v->producer->operands[0];
  }
  Op* op = v->producer;
  if (!op || op->def->typed_result != v->index || !graph.OnlyUser(v)) return false;
  // What the result is added to has its type.
  if (op->def->adds_to >= 0 && op->def->adds_to < static_cast<int>(op->operands.size())) {
    return false;
  }
  if (!IsFloat(v->type.dtype) || !IsFloat(cast->out().dtype)) return false;
  if (cast->out().sharding != cast->in(0).sharding || !MayGive(*op, cast->out().dtype)) {
    return false;
  }
  Attributes attrs = op->attrs;
  attrs.Set("out", std::string(DTypeName(cast->out().dtype)));
  std::vector<TensorType> operands, results;
  for (const Value* o : op->operands) operands.push_back(o->type);
  for (const Value* r : op->results) results.push_back(r->type);
  results[v->index].dtype = cast->out().dtype;
  // A bias in the type that the result had stays with it.
  if (!Infers(*op->def, operands, attrs, results)) return false;
  op->attrs = std::move(attrs);
  v->type.dtype = cast->out().dtype;
  for (Value* view : views) view->type.dtype = cast->out().dtype;
  graph.ReplaceAllUses(cast->result(), cast->operands[0]);
  return true;
}

void Fold(Graph& graph, Op* cast);

// f32 pieces that are put together to be rounded: each by itself, so that halves are moved, by what
// gives it where that can.
bool RoundPieces(Graph& graph, Op* cast) {
  Value* whole = cast->operands[0];
  Op* concat = whole->producer;
  if (!concat || concat->name() != "concat" || !graph.OnlyUser(whole)) return false;
  const DType half = cast->out().dtype;
  if (!IsHalf(half) || whole->type.dtype != DType::kF32) return false;
  if (cast->out().sharding != cast->in(0).sharding) return false;
  for (size_t i = 0; i < concat->operands.size(); ++i) {
    Value* piece = CastBefore(graph, concat->operands[i], half, *concat, concat);
    graph.SetOperand(concat, static_cast<int>(i), piece);
    Fold(graph, piece->producer);
  }
  whole->type.dtype = half;
  graph.ReplaceAllUses(cast->result(), whole);
  return true;
}

void Fold(Graph& graph, Op* cast) {
  const bool folds =
      DropPair(graph, cast) || FoldIntoProducer(graph, cast) || RoundPieces(graph, cast);
  if (folds) graph.Erase(cast);
}

}  // namespace

bool HasOtherHalf(const Op& op, DType half) {
  auto other = [&](const Value* v) { return IsHalf(v->type.dtype) && v->type.dtype != half; };
  return std::any_of(op.operands.begin(), op.operands.end(), other) ||
         std::any_of(op.results.begin(), op.results.end(), other);
}

void LowerPrecision(Graph& graph, const PrecisionOptions& options) {
  DType compute = ComputeType(options);
  if (compute != DType::kF32) Lowering(graph, compute).Run();
}

Value* CastBefore(Graph& graph, Value* v, DType to, const Op& like, Op* before) {
  Op* op = graph.AddOp(GetOpDef("cast"), {v}, {v->type}, {{"to", std::string(DTypeName(to))}},
                       before, like);
  op->result()->type.dtype = to;
  return op->result();
}

void ReduceInF32(Graph& graph) {
  for (auto it = graph.ops().begin(); it != graph.ops().end();) {
    Op* op = it->get();
    ++it;
    bool sums = (op->name() == "all_reduce" && op->attrs.String("reduce", "sum") == "sum") ||
                op->name() == "reduce_scatter";
    if (!sums || !IsHalf(op->in(0).dtype)) continue;
    DType narrow = op->in(0).dtype;
    Op* after = graph.Next(op);
    for (size_t i = 0; i < op->operands.size(); ++i) {
      graph.SetOperand(op, static_cast<int>(i),
                       CastBefore(graph, op->operands[i], DType::kF32, *op, op));
      Value* r = op->results[i];
      r->type.dtype = DType::kF32;
      Value* back = CastBefore(graph, r, narrow, *op, after);
      graph.ReplaceAllUses(r, back);
      graph.SetOperand(back->producer, 0, r);
    }
  }
}

void FoldCasts(Graph& graph) {
  for (auto it = graph.ops().begin(); it != graph.ops().end();) {
    Op* op = it->get();
    ++it;
    if (op->name() != "cast") continue;
    Fold(graph, op);
  }
  graph.EraseDead();
}

}  // namespace shardc
