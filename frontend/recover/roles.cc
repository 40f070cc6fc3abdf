// What each parameter is for, from structure alone: names differ between exporters.
#include <algorithm>
#include <map>
#include <set>

#include "frontend/recover/patterns.h"
#include "ir/op_def.h"

namespace shardc::recover {
namespace {

Op* ParamBehind(const Value* v) {
  if (Op* cast = ProducedBy(v, "cast")) v = cast->operands[0];
  return ProducedBy(v, "param");
}

// The parameter that the vector v is, or is a piece of: biases of q, k and v may be stored as one.
Op* BiasBehind(const Value* v) {
  if (Op* param = ParamBehind(v)) return param;
  if (v->type.rank() != 1) return nullptr;
  Op* split = ProducedBy(v, "split");
  return split ? ParamBehind(split->operands[0]) : nullptr;
}

// The dim of operand 0 that is dim `d` of the result and nothing else; -1: there is none.
int SameDim(const Value* v, int d) {
  const Op& op = *v->producer;
  const ShardingRule rule = op.def->rule(op);
  const DimFactors& of_result = rule.results[static_cast<size_t>(v->index)][static_cast<size_t>(d)];
  if (of_result.factors.size() != 1) return -1;
  for (size_t i = 0; i < rule.operands[0].size(); ++i) {
    if (rule.operands[0][i].factors == of_result.factors) return static_cast<int>(i);
  }
  return -1;
}

// A parameter [experts, ., .] behind v, and which of its dims is dim `d` of v.
struct ExpertsWeight {
  Op* param = nullptr;
  int dim = -1;
};
ExpertsWeight ExpertsBehind(const Value* v, int d) {
  while (d >= 0 && Arranges(v->producer)) {
    d = SameDim(v, d);
    v = v->producer->operands[0];
  }
  Op* param = ProducedBy(v, "param");
  if (!param || d < 1 || param->out().rank() != 3) return {};
  // Else it is one matrix, as a kernel of size 1 is.
  const Shape& shape = param->out().shape;
  const bool several = std::all_of(shape.begin(), shape.end(), [](int64_t n) { return n > 1; });
  return several ? ExpertsWeight{param, d} : ExpertsWeight();
}

// A parameter with a vector of n elements for each expert, from which v comes.
Op* ExpertsBias(const Value* v, int64_t experts, int64_t n) {
  Op* param = ProducedBy(ArrangedFrom(v), "param");
  const bool fits = param && param->out().rank() >= 2 && param->out().shape[0] == experts &&
                    param->out().shape.back() == n && param->out().num_elements() == experts * n;
  return fits ? param : nullptr;
}

// x @ weight (+ bias), or that of experts, all at once or each by itself, of a weight [experts, in,
// out] (or [experts, out, in]) and a bias [experts, out].
struct Linear {
  bool experts = false, transposed = false;
  Op* matmul = nullptr;
  Op* weight = nullptr;
  Op* bias = nullptr;
  Value* out = nullptr;  // with the bias
};

class RoleFinder {
 public:
  explicit RoleFinder(Graph& graph) : graph_(graph) { FindLinears(); }

  void Run() {
    SetNorms();
    SetEmbeddings();
    for (const auto& op : graph_.ops()) {
      if (op->name() == "attention") SetAttention(op.get());
      if (op->name() == "softmax") SetWrittenOutAttention(op.get());
    }
    for (auto& [value, linear] : InOrder()) SetMlp(linear);
    for (auto& [value, linear] : InOrder()) SetHead(linear);
  }

 private:
  void FindLinears() {
    for (const auto& op : graph_.ops()) {
      if (!OneOf(op->name(), {"matmul", "matmul_nt"})) continue;
      const bool nt = op->name() == "matmul_nt";
      Linear linear{false, nt, op.get(), ParamBehind(op->operands[1]), nullptr, op->result()};
      if (linear.weight == nullptr || linear.weight->out().rank() != 2) {
        const int summed = op->in(1).rank() - (nt ? 1 : 2);
        const auto [weight, dim] = ExpertsBehind(op->operands[1], summed);
        if (weight == nullptr) continue;
        linear.experts = true;
        linear.weight = weight;
        linear.transposed = dim == 2;
      }
      const Shape& shape = linear.weight->out().shape;
      const Value* out = op->result();
      auto only_user = [&] {
        return CountUses(graph_, out) == 1 && !out->users.empty() ? out->users[0] : nullptr;
      };
      Op* user = only_user();
      while (linear.experts && user && OneOf(user->name(), {"reshape", "transpose"})) {
        out = user->result();
        user = only_user();
      }
      if (user) {
        for (int i = 0; user->name() == "add" && i < 2; ++i) {
          const Value* v = user->operands[i];
          Op* bias = linear.experts ? ExpertsBias(v, shape[0], shape[linear.transposed ? 1 : 2])
                                    : BiasBehind(v);
          if (bias && (linear.experts || v->type.num_elements() == op->out().shape.back())) {
            linear.bias = bias;
            linear.out = user->result();
          }
        }
      }
      order_.push_back(op->result());
      linears_[op->result()] = linear;
    }
  }

  std::vector<std::pair<Value*, Linear*>> InOrder() {
    std::vector<std::pair<Value*, Linear*>> out;
    for (Value* v : order_) out.emplace_back(v, &linears_.at(v));
    return out;
  }

  Linear* LinearAt(const Value* v) {
    auto it = linears_.find(v);
    return it == linears_.end() ? nullptr : &it->second;
  }

  static bool HasRole(const Op* param) { return param->attrs.Has("role"); }
  static std::string RoleOf(const Linear& l) { return l.weight->attrs.String("role", ""); }
  static void Set(Op* param, const std::string& role, const std::string& part) {
    if (param == nullptr || HasRole(param)) return;
    param->attrs.Set("role", role);
    param->attrs.Set("part", part);
  }
  void Set(Linear* linear, const std::string& role) {
    if (!HasRole(linear->weight)) {
      Set(linear->weight, role, "weight");
      if (linear->transposed) linear->weight->attrs.Set("transposed", true);
    }
    Set(linear->bias, role, "bias");
  }

  void SetNorms() {
    for (const auto& op : graph_.ops()) {
      if (!OneOf(op->name(), {"layer_norm", "rms_norm"})) continue;
      for (size_t i = 1; i < op->operands.size(); ++i) {
        Set(ParamBehind(op->operands[i]), "NORM", i == 1 ? "weight" : "bias");
      }
    }
  }

  // Whether v holds numbers that come from an input unchanged, or by elements: an index that counts
  // from the end where it is negative.
  static bool IsInput(const Value* v, int depth = 0) {
    const Op* op = v->producer;
    if (op == nullptr) return true;
    if (depth > 8) return false;
    if (OneOf(op->name(), {"cast", "reshape", "slice", "transpose", "broadcast_to"}))
      return IsInput(op->operands[0], depth + 1);
    bool any = false;
    return op->def->elementwise &&
           std::all_of(op->operands.begin(), op->operands.end(),
                       [&](const Value* operand) {
                         if (ProducedBy(operand, "constant")) return true;
                         any = true;
                         return IsInput(operand, depth + 1);
                       }) &&
           any;
  }

  void SetEmbeddings() {
    // Of several tables that inputs look up, the largest is the vocabulary's: segment and position
    // tables are smaller.
    Op* token = nullptr;
    std::vector<std::pair<Op*, const Op*>> lookups;
    for (const auto& op : graph_.ops()) {
      bool gather = op->name() == "gather" && op->attrs.Int("axis", 0) == 0;
      Op* table = op->name() == "embedding" || gather ? ParamBehind(op->operands[0]) : nullptr;
      if (table == nullptr || table->out().rank() != 2) continue;
      lookups.emplace_back(table, op.get());
      bool larger = token == nullptr || table->out().shape[0] > token->out().shape[0];
      if (IsInput(op->operands[1]) && larger) token = table;
    }
    if (token == nullptr) return;
    Set(token, "TOKEN_EMBEDDING", "weight");
    vocabulary_ = token->out().shape[0];
    std::set<const Value*> stream;  // sums that the token embedding is part of
    for (const auto& [table, op] : lookups) {
      if (table == token) stream.insert(op->result());
    }
    for (const auto& op : graph_.ops()) {
      bool from_stream = std::any_of(op->operands.begin(), op->operands.end(),
                                     [&](const Value* v) { return stream.contains(v); });
      if (!from_stream || !OneOf(op->name(), {"add", "mul", "cast", "reshape"})) continue;
      stream.insert(op->result());
      for (Value* v : op->operands) {
        if (op->name() == "add" && !stream.contains(v)) SetPosition(v);
      }
    }
  }

  // v is added to the token embedding.
  static void SetPosition(const Value* v) {
    while (v->producer &&
           OneOf(v->producer->name(), {"reshape", "slice", "broadcast_to", "cast"})) {
      v = v->producer->operands[0];
    }
    if (Op* param = ProducedBy(v, "param"); param && param->out().rank() >= 2) {
      // One row for all positions is no table of them.
      bool rows = param->out().num_elements() > param->out().shape.back();
      return rows ? Set(param, "POSITION_EMBEDDING", "weight") : void();
    }
    Op* lookup = v->producer;
    if (lookup == nullptr || !OneOf(lookup->name(), {"embedding", "gather"})) return;
    Op* table = ParamBehind(lookup->operands[0]);
    const Shape& ids = lookup->in(1).shape;
    if (table == nullptr || ids.empty()) return;
    // A table too short for the sequence numbers something else (segments).
    bool long_enough = table->out().shape[0] >= ids.back();
    if (!IsInput(lookup->operands[1]) || long_enough) Set(table, "POSITION_EMBEDDING", "weight");
  }

  void SetAttention(Op* attention) {
    for (int i = 0; i < 3; ++i) SetQkv(attention->operands[i], 0);
    SetAttentionOut(attention->result(), 0);
  }

  // matmul(softmax(a function of matmul(q, k)), v), where scores have more than a mask and a scale.
  void SetWrittenOutAttention(Op* softmax) {
    std::vector<Op*> scores;
    std::set<const Op*> seen;
    FindScores(softmax->operands[0], 0, seen, scores);
    std::vector<Op*> products;
    FindProducts(softmax->result(), 0, products);
    if (scores.empty() || products.empty()) return;
    for (Op* score : scores) {
      for (Value* v : score->operands) SetQkv(v, 0);
    }
    for (Op* product : products) {
      SetQkv(product->operands[1], 0);
      SetAttentionOut(product->result(), 0);
    }
  }
  // The batched matmuls with the probabilities p, maybe dropped, in other dims, without those of a
  // key that has no value (a sink), or masked and scaled after the softmax.
  static void FindProducts(const Value* p, int depth, std::vector<Op*>& products) {
    for (Op* user : p->users) {
      if (user->name() == "matmul" && user->operands[0] == p && user->in(1).rank() >= 3) {
        products.push_back(user);
      } else if (depth < 6 &&
                 (OneOf(user->name(), {"dropout", "cast", "reshape", "slice", "split"}) ||
                  (user->def->elementwise &&
                   user->out().num_elements() == p->type.num_elements()))) {
        for (const Value* result : user->results) FindProducts(result, depth + 1, products);
      }
    }
  }
  // The batched matmuls that v is an elementwise function of: of q and k, and of either and what
  // stands for distances, whose products are read at the distance of query and key.
  static void FindScores(const Value* v, int depth, std::set<const Op*>& seen,
                         std::vector<Op*>& scores) {
    Op* op = v->producer;
    if (op == nullptr || depth > 16 || !seen.insert(op).second) return;
    if (OneOf(op->name(), {"matmul", "matmul_nt"})) {
      if (op->in(1).rank() >= 3) scores.push_back(op);
      return;
    }
    if (OneOf(op->name(), {"gather", "gather_nd"}))
      return FindScores(op->operands[0], depth + 1, seen, scores);
    // A concat adds the scores of sinks.
    const bool more = op->name() == "concat";
    if (!op->def->elementwise && !more &&
        !OneOf(op->name(), {"reshape", "cast", "transpose", "slice"}))
      return;
    for (const Value* operand : op->operands) {
      bool as_many = operand->type.num_elements() == v->type.num_elements();
      if (as_many || more || op->name() == "slice") FindScores(operand, depth + 1, seen, scores);
    }
  }

  // Back from q, k or v, through splitting heads, rotary positions and norms of q and k.
  void SetQkv(Value* v, int depth) {
    if (Linear* linear = LinearAt(v)) {
      if (linear->experts) return;
      // Of keys of low rank (as DeepSeek's), what is common to all heads comes from the projection
      // that makes them: no head is a part of its columns.
      return FeedsLinear(linear->out, 0) ? void() : Set(linear, "QKV");
    }
    Op* op = v->producer;
    if (op == nullptr || depth > 40) return;
    if (op->name() == "dropout") return SetQkv(op->operands[0], depth + 1);
    bool layout =
        OneOf(op->name(), {"reshape", "transpose", "split", "slice", "cast", "broadcast_to", "neg",
                           "concat", "mul", "div", "where", "max", "min"});
    // A sum of two computed tensors over the whole width is the residual stream, over heads a
    // rotation, and of two linears one linear with another of low rank beside it.
    bool sum =
        OneOf(op->name(), {"add", "sub"}) &&
        (op->out().rank() >= 4 || BiasBehind(op->operands[0]) || BiasBehind(op->operands[1]) ||
         (IsScaledLinear(op->operands[0]) && IsScaledLinear(op->operands[1])));
    bool norm = OneOf(op->name(), {"layer_norm", "rms_norm"}) &&
                (op->out().rank() >= 4 || IsLinearOut(op->operands[0]));
    if (norm) return SetQkv(op->operands[0], depth + 1);
    if (!layout && !sum) return;
    for (Value* operand : op->operands) SetQkv(operand, depth + 1);
  }
  bool FeedsLinear(const Value* v, int depth) {
    return depth < 6 && std::any_of(v->users.begin(), v->users.end(), [&](const Op* user) {
             if (!user->results.empty() && user->operands[0] == v && LinearAt(user->result()))
               return true;
             return OneOf(user->name(),
                          {"split", "slice", "reshape", "cast", "layer_norm", "rms_norm"}) &&
                    std::any_of(user->results.begin(), user->results.end(),
                                [&](const Value* r) { return FeedsLinear(r, depth + 1); });
           });
  }
  bool IsLinearOut(const Value* v) {
    return LinearAt(v) || std::any_of(linears_.begin(), linears_.end(),
                                      [&](const auto& l) { return l.second.out == v; });
  }

  bool IsScaledLinear(const Value* v) {
    const Op* op = v->producer;
    if (op && OneOf(op->name(), {"mul", "div"}) && ProducedBy(op->operands[1], "constant"))
      return IsLinearOut(op->operands[0]);
    return IsLinearOut(v);
  }

  // Back from what a result of heads is multiplied with, to the linear that makes this gate: one
  // for each head, or one for each element. What a linear makes beside a gate may want to be whole.
  void SetGate(const Value* v, int depth) {
    if (Linear* linear = LinearAt(v)) {
      // One number for all heads cannot be cut with them.
      if (!linear->experts && linear->out->type.shape.back() > 1) Set(linear, "QKV");
      return;
    }
    const Op* op = v->producer;
    if (op == nullptr || depth > 12) return;
    // A sum without a parameter is the residual stream.
    if (OneOf(op->name(), {"add", "sub"}) && !BiasBehind(op->operands[0]) &&
        !BiasBehind(op->operands[1]) && !ProducedBy(op->operands[0], "constant") &&
        !ProducedBy(op->operands[1], "constant"))
      return;
    if (!op->def->elementwise &&
        !OneOf(op->name(), {"reshape", "transpose", "broadcast_to", "cast"}))
      return;
    for (const Value* operand : op->operands) SetGate(operand, depth + 1);
  }

  void SetAttentionOut(const Value* v, int depth) {
    for (Op* user : v->users) {
      if (Linear* linear = user->results.empty() ? nullptr : LinearAt(user->result())) {
        if (user->operands[0] == v && !linear->experts) Set(linear, "ATTENTION_OUT");
      } else if (depth < 12 && KeepsHeads(user)) {
        for (const Value* operand : user->operands) {
          if (user->name() == "mul" && operand != v) SetGate(operand, 0);
        }
        for (const Value* result : user->results) SetAttentionOut(result, depth + 1);
      }
    }
  }
  // What a model does with each head's result before the projection: also norms, and sums and
  // differences of what two attentions give. Over the whole width a sum is the residual stream.
  static bool KeepsHeads(const Op* op) {
    const bool heads = !op->results.empty() && op->out().rank() >= 4;
    return OneOf(op->name(), {"dropout", "reshape", "transpose", "cast", "mul", "div", "rms_norm",
                              "layer_norm"}) ||
           (heads && OneOf(op->name(), {"add", "sub", "concat", "split", "slice"}));
  }

  struct Branch {
    Linear* linear = nullptr;
    bool activated = false, normed = false;
  };
  // The linears that v, of experts or not, is an elementwise function of, or a norm of one, by way
  // of what `at` says; false when it depends on anything else.
  bool Branches(const Value* v, Branch at, bool experts, int depth, std::vector<Branch>& out) {
    if (Linear* linear = LinearAt(v)) {
      at.linear = linear;
      out.push_back(at);
      return true;
    }
    Op* op = v->producer;
    if (op == nullptr || depth > 24) return false;
    if (OneOf(op->name(), {"param", "constant"})) return true;
    if (experts && IsParam(ArrangedFrom(v))) return true;
    if (op->name() == "dropout") return Branches(op->operands[0], at, experts, depth + 1, out);
    if (OneOf(op->name(), {"rms_norm", "layer_norm"})) {
      at.normed = true;
      return Branches(op->operands[0], at, experts, depth + 1, out);
    }
    bool linear_op = OneOf(op->name(), {"add", "sub", "mul", "div", "neg", "cast", "reshape",
                                        "split", "slice", "broadcast_to"});
    // By tokens or by experts.
    linear_op |= experts && op->name() == "transpose";
    if (!linear_op && !op->def->elementwise) return false;
    at.activated |= !linear_op;
    return std::all_of(op->operands.begin(), op->operands.end(), [&](const Value* operand) {
      return Branches(operand, at, experts, depth + 1, out);
    });
  }

  void SetMlp(Linear* down) {
    if (HasRole(down->weight)) return;
    std::vector<Branch> branches;
    if (!Branches(down->matmul->operands[0], {}, down->experts, 0, branches)) return;
    // silu written out reads its operand twice, once as it is: one activated path is enough.
    std::map<Linear*, bool> activated;
    bool any = false;
    for (const Branch& b : branches) {
      activated[b.linear] |= b.activated;
      any |= b.activated;
      std::string role = RoleOf(*b.linear);
      // In a parallel block the first of the MLP may be columns of the one that makes q, k and v.
      if (!role.empty() && role != "MLP_UP" && role != "MLP_GATE" && role != "QKV") return;
      if (b.linear->experts != down->experts) return;
      // A norm stands in an MLP, which goes back to the width that it came from, and in the head of
      // a model, which goes to the vocabulary's.
      const bool back = b.linear->matmul->in(0).shape.back() == down->matmul->out().shape.back();
      if (b.normed && !back) return;
    }
    if (!any) return;
    bool gated =
        std::any_of(activated.begin(), activated.end(), [](const auto& a) { return !a.second; });
    for (const auto& [linear, active] : activated)
      Set(linear, gated && active ? "MLP_GATE" : "MLP_UP");
    Set(down, "MLP_DOWN");
  }

  void SetHead(Linear* linear) {
    if (linear->experts) return;
    if (HasRole(linear->weight) && RoleOf(*linear) != "TOKEN_EMBEDDING") return;
    if (linear->matmul->out().shape.back() != vocabulary_) return;
    if (ReachesOutput(linear->out, 0)) Set(linear, "LM_HEAD");
  }
  bool ReachesOutput(const Value* v, int depth) {
    if (graph_.IsOutput(v)) return true;
    if (depth > 8) return false;
    return std::any_of(v->users.begin(), v->users.end(), [&](const Op* user) {
      if (OneOf(user->name(), {"cross_entropy", "softmax"})) return true;
      return (user->def->elementwise ||
              OneOf(user->name(), {"reshape", "cast", "slice", "transpose"})) &&
             ReachesOutput(user->result(), depth + 1);
    });
  }

  Graph& graph_;
  std::map<const Value*, Linear> linears_;
  std::vector<Value*> order_;
  int64_t vocabulary_ = -1;
};

}  // namespace

void SetRoles(Graph& graph) { RoleFinder(graph).Run(); }

}  // namespace shardc::recover
