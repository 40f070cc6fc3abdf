#include "passes/center_masks.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "ir/attention_mask.h"
#include "ir/attention_part.h"
#include "ir/op_def.h"

namespace shardc {
namespace {

constexpr int kMaxSteps = 12;  // from a mask to its constants

const HostTensor* ConstantOf(const Value* v) {
  const bool constant = v->producer && v->producer->name() == "constant";
  return constant ? &v->producer->attrs.Tensor("value") : nullptr;
}

bool IsBetween(double x, const TopLimits& limits) {
  return std::fabs(x) >= limits.rounds && std::fabs(x) < limits.absorbs;
}

bool HasBetween(const HostTensor& data, const TopLimits& limits) {
  for (int64_t i = 0; i < data.num_elements(); ++i) {
    if (IsBetween(data.AsDouble(i), limits)) return true;
  }
  return false;
}

// Whether by the constants in it the value may have elements between the limits.
bool MayLieBetween(const Value* v, const TopLimits& limits, int steps = kMaxSteps) {
  if (!IsFloat(v->type.dtype)) return false;
  if (const HostTensor* data = ConstantOf(v)) return HasBetween(*data, limits);
  const Op* op = v->producer;
  if (op == nullptr || steps == 0) return false;
  constexpr std::string_view kPassOn[] = {"add",   "sub",          "mul",    "neg",     "max",
                                          "min",   "where",        "cast",   "reshape", "transpose",
                                          "slice", "broadcast_to", "concat", "pad"};
  if (std::ranges::find(kPassOn, op->name()) == std::end(kPassOn)) return false;
  return std::ranges::any_of(op->operands, [&](const Value* operand) {
    return MayLieBetween(operand, limits, steps - 1);
  });
}

class Centering {
 public:
  explicit Centering(Graph& graph) : graph_(graph) {}

  void Run(Op* op) {
    Value* mask = MaskOf(*op);
    if (mask == nullptr || mask->type.dtype == DType::kBool) return;
    const TopLimits limits = TopLimitsOf(op->out(1).dtype);
    if (!MayLieBetween(mask, limits)) return;
    const std::optional<std::vector<double>> tops = KnownTops(*op);
    if (tops && std::ranges::none_of(*tops, [&](double t) { return IsBetween(t, limits); })) return;
    const Centered centered = Center(op, mask, limits);
    graph_.SetOperand(op, 3, centered.mask);
    Value* lse = op->results[1];
    if (lse->users.empty() && !graph_.IsOutput(lse)) return;
    Builder b(graph_, graph_.Next(op), *op);
    Shape rows = lse->type.shape;
    rows.push_back(1);
    Value* taken = b.Reshape(b.BroadcastTo(centered.taken, rows), lse->type.shape);
    const std::vector<Op*> users(lse->users.begin(), lse->users.end());
    Value* whole = b.Add(lse, taken);
    for (Op* user : users) graph_.ReplaceUses(user, lse, whole);
    graph_.outputs.Replace(lse, whole);
  }

 private:
  struct Centered {
    Value* mask;
    Value* taken;  // from each row
  };

  Centered Center(Op* op, Value* mask, const TopLimits& limits) {
    const int rows = op->attrs.String("layout", "bhsd") == "bhsd" ? 2 : 1;
    const int64_t s = op->in(0).shape[rows], t = op->in(1).shape[rows];
    std::optional<int64_t> diagonal;
    if (op->attrs.Bool("causal")) diagonal = CausalDiagonal(op->attrs, s, t);
    auto [it, added] = centered_.try_emplace({mask, op->out(1).dtype, s, t, diagonal});
    if (!added) return it->second;
    Builder b(graph_, op, *op);
    const DType type = op->out(1).dtype;
    Value* top = b.ReduceMax(AddedToScores(b, *op), {3}, true);
    Value* size = b.Make("abs", {top});
    Value* between = b.Make("and", {b.Make("less_equal", {b.Scalar(type, limits.rounds), size}),
                                    b.Make("less", {size, b.Scalar(type, limits.absorbs)})});
    Value* taken = b.Make("where", {between, top, b.Scalar(type, 0)});
    return it->second = {b.Sub(b.Cast(mask, type), taken), taken};
  }

  Graph& graph_;
  std::map<std::tuple<Value*, DType, int64_t, int64_t, std::optional<int64_t>>, Centered> centered_;
};

}  // namespace

void CenterMasks(Graph& graph) {
  Centering centering(graph);
  for (auto it = graph.ops().begin(); it != graph.ops().end(); ++it) {
    if ((*it)->name() == "attention") centering.Run(it->get());
  }
}

}  // namespace shardc
