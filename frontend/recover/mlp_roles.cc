// An MLP: products of which an elementwise function is the operand of the one that ends it.
#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "frontend/recover/match.h"
#include "frontend/recover/roles.h"
#include "ir/op_def.h"

namespace shardc::recover {
namespace {

// A way back to a linear: whether an activation, a product with another value and a norm are on it.
struct Branch {
  const Linear* linear = nullptr;
  bool activated = false, multiplied = false, normed = false;
  auto operator<=>(const Branch&) const = default;
};

bool IsOfWeights(const Value* v) {
  const Value* from = ArrangedFrom(v);
  return IsParam(from) || ConstantOf(from);
}

using Values = std::set<const Value*>;

// All that is computed of inputs.
Values Computed(const Graph& graph) {
  Values found;
  for (const auto& input : graph.inputs()) found.insert(input.get());
  for (const auto& op : graph.ops()) {
    if (std::ranges::any_of(op->operands, [&](const Value* v) { return found.contains(v); }))
      found.insert(op->results.begin(), op->results.end());
  }
  return found;
}

class BranchFinder {
 public:
  // `experts`: products of all experts at once may be met, with what is arranged by experts.
  BranchFinder(const LinearRoles& roles, const Values& computed, bool experts)
      : roles_(roles), computed_(computed), experts_(experts) {}

  // The ways back to linears of which v is an elementwise function, or a norm of one. False where
  // it depends on anything else.
  bool Find(const Value* v) { return Walk(v, {}, 0); }
  const std::vector<Branch>& found() const { return found_; }

 private:
  // `at`: what is on the way to v so far. Each way is gone once.
  bool Walk(const Value* v, Branch at, int depth) {
    // Weights, and what is made of them, as DoRA's scales, depend on nothing else.
    if (!computed_.contains(v) || !gone_.emplace(v, depth, at).second) return true;
    if (const Linear* linear = roles_.At(v)) {
      at.linear = linear;
      found_.push_back(at);
      return true;
    }
    const Op* op = v->producer;
    if (op == nullptr || depth > 24) return false;
    if (const Value* x = Unrounded(v)) return Walk(x, at, depth + 1);
    if (op->name() == "dropout" || IsNorm(op)) {
      at.normed |= IsNorm(op);
      return Walk(op->operands[0], at, depth + 1);
    }
    bool linear_op = OneOf(op->name(), {"add", "sub", "mul", "div", "neg", "cast", "reshape",
                                        "split", "slice", "broadcast_to"});
    // By tokens or by experts; without experts the features of each token stay together.
    if (op->name() == "transpose") {
      const auto last = static_cast<int64_t>(v->type.rank()) - 1;
      linear_op = experts_ || op->attrs.IntList("perm").back() == last;
    }
    if (!linear_op && !op->def->elementwise) return false;
    at.activated |= !linear_op;
    const bool mul = OneOf(op->name(), {"mul", "div"});
    at.multiplied |= mul && std::ranges::none_of(op->operands, IsOfWeights);
    return std::ranges::all_of(op->operands, [&](const Value* operand) {
      // One number for a whole row, as the weight of an expert, or for all, as the scale of what
      // was rounded, is no part of the MLP.
      const bool number = mul && v->type.shape.back() > 1 &&
                          (operand->type.rank() == 0 || operand->type.shape.back() == 1);
      return number || Walk(operand, at, depth + 1);
    });
  }

  const LinearRoles& roles_;
  const Values& computed_;
  const bool experts_;
  std::set<std::tuple<const Value*, int, Branch>> gone_;
  std::vector<Branch> found_;
};

// A product that also adds up the results of all experts: each one's rows are one behind the
// other's.
bool SumsExperts(const Linear& l) {
  return l.weight->out().rank() == 3 && l.rows.size() == 2 && l.rows[0] == 0;
}

// Whether the last dim of a tensor of the op has n parts, which a dim of the other one counts.
bool HasParts(const std::vector<DimFactors>& dims, const ShardingRule& rule, int64_t n) {
  const auto& factors = dims.back().factors;
  return factors.size() == 2 && rule.factors[factors[0]].size == n;
}

// Whether rows of what the linear makes, or of a function of that, are taken apart in n.
bool IsTakenApart(const Linear& linear, int64_t n) {
  constexpr size_t kMaxValues = 32;
  std::vector<const Value*> made = {linear.matmul->result()};
  for (size_t i = 0; i < made.size() && i < kMaxValues; ++i) {
    for (const Op* user : made[i]->users) {
      if (user->name() == "reshape") {
        const ShardingRule rule = user->def->rule(*user);
        if (HasParts(rule.operands[0], rule, n)) return true;
      } else if (user->def->elementwise && user->out().shape == made[i]->type.shape) {
        made.push_back(user->result());
      }
    }
  }
  return false;
}

// A linear whose columns, or rows, are those of n experts, one behind the other, as one of experts.
std::optional<Linear> AsStack(const Linear& linear, int64_t n, bool by_rows) {
  const Ints& dims = by_rows ? linear.rows : linear.columns;
  if (linear.experts || linear.weight->out().rank() != 2 || dims.size() != 1) return std::nullopt;
  if (!linear.stacked.empty() || linear.matmul->in(1).rank() != 2) return std::nullopt;
  if (by_rows) {
    const Op* joined = ProducedBy(linear.matmul->operands[0], "reshape");
    if (joined == nullptr) return std::nullopt;
    const ShardingRule rule = joined->def->rule(*joined);
    if (!HasParts(rule.results[0], rule, n)) return std::nullopt;
  } else if (!IsTakenApart(linear, n)) {
    return std::nullopt;
  }
  Linear stack = linear;
  stack.experts = true;
  stack.stacked = {dims[0], n};
  if (by_rows || stack.bias.param == nullptr) return stack;
  if (stack.bias.dims == Ints{0, 1}) stack.bias.dims = {1};
  if (stack.bias.param->out().rank() == 1) stack.bias.parts = n;
  return stack;
}

// Whether an elementwise function of v scales another computed value as wide.
bool Modulates(const Value* v, const Values& computed) {
  constexpr size_t kMaxValues = 64;
  std::vector<const Value*> made = {v};
  for (size_t i = 0; i < made.size() && i < kMaxValues; ++i) {
    for (const Op* user : made[i]->users) {
      if (!user->def->elementwise && !Arranges(user)) continue;
      const bool scales =
          user->name() == "mul" && std::ranges::all_of(user->operands, [&](const Value* x) {
            return computed.contains(x) && x->type.rank() > 0 &&
                   x->type.shape.back() == user->out().shape.back();
          });
      if (scales && user->out().shape.back() > 1) return true;
      for (const Value* result : user->results) {
        if (std::ranges::find(made, result) == made.end()) made.push_back(result);
      }
    }
  }
  return false;
}

// The MLP that ends with `down`, and the ways from it to the other linears of it.
class Mlp {
 public:
  Mlp(Linear down, const std::vector<Branch>& branches, const Values& computed)
      : down_(std::move(down)), branches_(branches), computed_(computed) {
    for (const Branch& b : branches_) linears_.emplace(b.linear, *b.linear);
  }

  // False where only some of the linears are of experts.
  bool UniteExperts() {
    const auto all = [&](bool experts) {
      return std::ranges::all_of(linears_,
                                 [&](const auto& l) { return l.second.experts == experts; });
    };
    if (SumsExperts(down_) && all(true)) {
      down_.experts = true;
      down_.rows.erase(down_.rows.begin());
    }
    if (!down_.experts && all(true) && !linears_.empty()) {
      const auto stack = AsStack(down_, NumExperts(linears_.begin()->second), true);
      if (stack) down_ = *stack;
    }
    for (auto& [own, linear] : linears_) {
      if (linear.experts == down_.experts) continue;
      const auto stack = down_.experts ? AsStack(linear, NumExperts(down_), false) : std::nullopt;
      if (!stack) return false;
      linear = *stack;
    }
    return true;
  }

  // `by_experts`: rows may be arranged by these on the way.
  bool IsOne(bool by_experts) const {
    if (by_experts && !down_.experts && !SumsExperts(down_)) return false;
    if (ModulatesByFew()) return false;
    bool any = false;
    for (const Branch& b : branches_) {
      any |= b.activated || b.multiplied;
      // In a parallel block the first of the MLP may be columns of the one that makes q, k and v.
      const std::string role = LinearRoles::Of(*b.linear);
      if (!role.empty() && !OneOf(role, {"MLP_UP", "MLP_GATE", "QKV"})) return false;
      // A norm stands in an MLP, which goes back to the width that it came from, and in the head of
      // a model, which goes to the vocabulary's.
      const bool back = b.linear->matmul->in(0).shape.back() == down_.matmul->out().shape.back();
      if (b.normed && !back) return false;
    }
    return any;
  }

  void SetRoles(LinearRoles& roles) const {
    // silu written out reads its operand twice, once as it is: one activated path is enough.
    std::map<const Linear*, bool> activated;
    for (const Branch& b : branches_) activated[b.linear] |= b.activated;
    const bool gated = std::ranges::any_of(activated, [](const auto& a) { return !a.second; });
    for (const auto& [linear, active] : activated) {
      roles.Set(linears_.at(linear), gated && active ? "MLP_GATE" : "MLP_UP");
    }
    roles.Set(down_, "MLP_DOWN");
  }

 private:
  // What modulates others and is of low rank, as the rates by which RWKV-6 mixes tokens, is less to
  // compute for each rank than its result is to be added up.
  bool ModulatesByFew() const {
    const int64_t few = 2 * down_.matmul->in(0).shape.back();
    const auto is_wide = [&](const auto& l) { return l.second.matmul->in(0).shape.back() > few; };
    return down_.matmul->out().shape.back() > few && std::ranges::all_of(linears_, is_wide) &&
           Modulates(down_.out, computed_);
  }

  Linear down_;
  const std::vector<Branch>& branches_;
  const Values& computed_;
  std::map<const Linear*, Linear> linears_;
};

// The MLP that the linear ends, if it ends one, with v: what the linear reads, or a part of that.
void SetMlp(const Value* v, const Values& computed, const Linear& down, LinearRoles& roles) {
  for (const bool experts : {down.experts || SumsExperts(down), true}) {
    BranchFinder branches(roles, computed, experts);
    if (!branches.Find(v)) continue;
    Mlp mlp(down, branches.found(), computed);
    if (mlp.UniteExperts() && mlp.IsOne(experts)) return mlp.SetRoles(roles);
    return;
  }
}

}  // namespace

void SetMlpRoles(const Graph& graph, LinearRoles& roles) {
  const Values computed = Computed(graph);
  for (const Linear& linear : roles.linears()) {
    const Value* v = linear.matmul->operands[0];
    const std::string role = LinearRoles::Of(linear);
    if (role.empty()) {
      SetMlp(v, computed, linear, roles);
    } else if (const Op* beside = ProducedBy(v, "concat"); beside && role == "ATTENTION_OUT") {
      for (const Value* part : beside->operands) SetMlp(part, computed, linear, roles);
    }
  }
}

}  // namespace shardc::recover
