// An MLP: products of which an elementwise function is the operand of the one that ends it.
#include <algorithm>
#include <tuple>

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
      // One number for a whole row, as the weight of an expert, is no part of the MLP.
      const bool number = mul && operand->type.rank() > 0 && operand->type.shape.back() == 1 &&
                          v->type.shape.back() > 1;
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

// The MLP that the linear ends, if it ends one, with v: what the linear reads, or a part of that.
void SetMlp(const Value* v, const Values& computed, Linear down, LinearRoles& roles) {
  const bool sums = SumsExperts(down);
  BranchFinder branches(roles, computed, down.experts || sums);
  if (!branches.Find(v)) return;
  if (sums &&
      std::ranges::all_of(branches.found(), [](const Branch& b) { return b.linear->experts; })) {
    down.experts = true;
    down.rows.erase(down.rows.begin());
  }
  // silu written out reads its operand twice, once as it is: one activated path is enough.
  std::map<const Linear*, bool> activated;
  bool any = false;
  for (const Branch& b : branches.found()) {
    activated[b.linear] |= b.activated;
    any |= b.activated || b.multiplied;
    // In a parallel block the first of the MLP may be columns of the one that makes q, k and v.
    const std::string role = LinearRoles::Of(*b.linear);
    if (!role.empty() && !OneOf(role, {"MLP_UP", "MLP_GATE", "QKV"})) return;
    if (b.linear->experts != down.experts) return;
    // A norm stands in an MLP, which goes back to the width that it came from, and in the head of a
    // model, which goes to the vocabulary's.
    const bool back = b.linear->matmul->in(0).shape.back() == down.matmul->out().shape.back();
    if (b.normed && !back) return;
  }
  if (!any) return;
  const bool gated = std::ranges::any_of(activated, [](const auto& a) { return !a.second; });
  for (const auto& [linear, active] : activated) {
    roles.Set(*linear, gated && active ? "MLP_GATE" : "MLP_UP");
  }
  roles.Set(down, "MLP_DOWN");
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
