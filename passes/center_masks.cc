#include "passes/center_masks.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include "ir/attention_mask.h"
#include "ir/attention_part.h"
#include "ir/constant.h"
#include "ir/op_def.h"

namespace shardc {
namespace {

constexpr int kMaxSteps = 12;  // from a mask to its constants

bool IsBetween(double x, const TopLimits& limits) {
  return std::fabs(x) >= limits.rounds && std::fabs(x) < limits.absorbs;
}

double LargestOf(const HostTensor& data) {
  double largest = 0;
  for (int64_t i = 0; i < data.num_elements(); ++i) {
    largest = std::max(largest, std::fabs(data.AsDouble(i)));
  }
  return largest;
}

// By what a product or a quotient multiplies the value `index`, if that is a constant.
std::optional<double> FactorOf(const Op& op, size_t index) {
  if (op.name() == "mul") {
    const HostTensor* other = ConstantOf(op.operands[1 - index]);
    return other ? std::optional(LargestOf(*other)) : std::nullopt;
  }
  if (op.name() != "div" || index != 0) return std::nullopt;
  const HostTensor* divisor = ConstantOf(op.operands[1]);
  if (divisor == nullptr || LargestOf(*divisor) == 0) return std::nullopt;
  return 1 / LargestOf(*divisor);
}

bool IsAmong(std::string_view name, std::span<const std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

// Whether a mask may have elements between the limits: by the constants that are added, chosen or
// multiplied to make it, or because it is an input, of which nothing is known. What is multiplied
// is taken to be of the size of 1.
class MayLieBetween {
 public:
  explicit MayLieBetween(const TopLimits& limits) : limits_(limits) {}

  bool operator()(const Value* v, int steps = kMaxSteps) const { return May(v, {}, steps); }

 private:
  // `factor`: what v is multiplied by, where it is.
  bool May(const Value* v, std::optional<double> factor, int steps) const {
    if (!IsFloat(v->type.dtype)) return false;
    if (const HostTensor* data = ConstantOf(v)) return HasBetween(*data, factor.value_or(1));
    const Op* op = v->producer;
    if (op == nullptr) return !factor;
    if (steps == 0) return false;
    constexpr std::string_view kFromFirst[] = {"neg",   "cast",         "reshape",  "transpose",
                                               "slice", "broadcast_to", "pad",      "split",
                                               "round", "gather",       "gather_nd"};
    if (IsAmong(op->name(), kFromFirst)) return May(op->operands[0], factor, steps - 1);
    if (op->name() == "mul" || op->name() == "div") return MayProduct(*op, factor, steps);
    constexpr std::string_view kFromAll[] = {"add", "sub", "max", "min", "where", "concat"};
    return IsAmong(op->name(), kFromAll) && std::ranges::any_of(op->operands, [&](const Value* x) {
             return May(x, factor, steps - 1);
           });
  }

  bool MayProduct(const Op& op, std::optional<double> factor, int steps) const {
    for (size_t i = 0; i < op.operands.size(); ++i) {
      const double by = factor.value_or(1) * FactorOf(op, i).value_or(1);
      if (IsBetween(by, limits_) || May(op.operands[i], by, steps - 1)) return true;
    }
    return false;
  }

  bool HasBetween(const HostTensor& data, double factor) const {
    for (int64_t i = 0; i < data.num_elements(); ++i) {
      if (IsBetween(factor * data.AsDouble(i), limits_)) return true;
    }
    return false;
  }

  TopLimits limits_;
};

class Centering {
 public:
  explicit Centering(Graph& graph) : graph_(graph) {}

  void Run(Op* op) {
    Value* mask = MaskOf(*op);
    if (mask == nullptr || mask->type.dtype == DType::kBool) return;
    const TopLimits limits = TopLimitsOf(op->out(1).dtype);
    if (!MayLieBetween(limits)(mask)) return;
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
