// What each parameter is for, from structure alone: names differ between exporters.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "frontend/recover/linears.h"
#include "frontend/recover/patterns.h"
#include "ir/op_def.h"

namespace shardc::recover {
namespace {

class RoleFinder {
 public:
  explicit RoleFinder(Graph& graph) : graph_(graph), linears_(FindLinears(graph)) {
    for (Linear& linear : linears_) {
      at_[linear.matmul->result()] = &linear;
      outs_.insert(linear.out);
    }
  }

  void Run() {
    SetNorms();
    FindNumbersOfInputs();
    SetEmbeddings();
    for (const auto& op : graph_.ops()) {
      if (op->name() == "attention") SetAttention(op.get());
      if (op->name() == "softmax") SetWrittenOutAttention(op.get());
      if (IsProduct(op.get())) SetAttentionWithoutSoftmax(op.get());
    }
    for (Linear& linear : linears_) SetMlp(&linear);
    for (Linear& linear : linears_) SetHead(&linear);
    for (Linear& linear : linears_) {
      if (torn_.contains(linear.weight)) ClearRoles(linear);
    }
  }

 private:
  Linear* LinearAt(const Value* v) {
    auto it = at_.find(v);
    return it == at_.end() ? nullptr : it->second;
  }

  static bool HasRole(const Op* param) { return param->attrs.Has("role"); }
  static std::string RoleOf(const Linear& l) { return l.weight->attrs.String("role", ""); }
  static void Set(Op* param, const std::string& role, const std::string& part) {
    if (param == nullptr || HasRole(param)) return;
    param->attrs.Set("role", role);
    param->attrs.Set("part", part);
  }
  void Set(Linear* linear, const std::string& role) {
    const bool by_rows = OneOf(role, {"ATTENTION_OUT", "MLP_DOWN"});
    const Ints& wanted = by_rows ? linear->rows : linear->columns;
    auto [cut, first] = cuts_.try_emplace(linear->weight, wanted);
    const bool piece = linear->matmul->in(1).num_elements() < linear->weight->out().num_elements();
    if (!first && piece && cut->second != wanted) torn_.insert(linear->weight);
    if (!HasRole(linear->weight)) {
      Set(linear->weight, role, "weight");
      const int64_t rank = linear->weight->out().rank();
      if (linear->rows != Ints{rank - 2} || linear->columns != Ints{rank - 1}) {
        linear->weight->attrs.Set("rows", linear->rows);
        linear->weight->attrs.Set("columns", linear->columns);
      }
    }
    auto& [bias, columns] = linear->bias;
    if (bias == nullptr || HasRole(bias)) return;
    Set(bias, role, "bias");
    if (columns != Ints{bias->out().rank() - 1}) bias->attrs.Set("columns", columns);
  }

  static void ClearRoles(const Linear& linear) {
    for (Op* param : {linear.weight, linear.bias.param}) {
      for (const char* attr : {"role", "part", "rows", "columns"}) {
        if (param) param->attrs.Erase(attr);
      }
    }
  }

  void SetNorms() {
    for (const auto& op : graph_.ops()) {
      if (!IsNorm(op.get())) continue;
      for (size_t i = 1; i < op->operands.size(); ++i) {
        Set(ParamBehind(op->operands[i]), "NORM", i == 1 ? "weight" : "bias");
      }
    }
  }

  void FindNumbersOfInputs() {
    for (const auto& input : graph_.inputs()) inputs_.insert(input.get());
    auto is_found = [&](const Value* v) { return inputs_.contains(v); };
    auto fits = [&](const Value* v) { return is_found(v) || ProducedBy(v, "constant"); };
    for (const auto& op : graph_.ops()) {
      const bool keeps =
          op->def->elementwise || OneOf(op->name(), {"cast", "reshape", "slice", "split",
                                                     "transpose", "broadcast_to", "concat", "pad"});
      if (keeps && std::ranges::any_of(op->operands, is_found) &&
          std::ranges::all_of(op->operands, fits)) {
        inputs_.insert(op->results.begin(), op->results.end());
      }
    }
  }

  struct Lookup {
    Op* table;
    const Op* op;
  };

  void SetEmbeddings() {
    std::vector<Lookup> lookups;
    std::vector<Op*> tables;  // that inputs look up
    for (const auto& op : graph_.ops()) {
      bool gather = op->name() == "gather" && op->attrs.Int("axis", 0) == 0;
      Op* table = op->name() == "embedding" || gather ? ParamBehind(op->operands[0]) : nullptr;
      if (table == nullptr || table->out().rank() != 2) continue;
      lookups.push_back({table, op.get()});
      const bool known = std::find(tables.begin(), tables.end(), table) != tables.end();
      if (inputs_.contains(op->operands[1]) && !known) tables.push_back(table);
    }
    // The largest is a vocabulary: segment, position and feature tables are smaller, and become
    // part of what is looked up in it. A table of which that is not so is another one, as a
    // decoder's, if it has a row for each token and not for each example, as those of labels and
    // domains have.
    std::stable_sort(tables.begin(), tables.end(), [](const Op* a, const Op* b) {
      return a->out().shape[0] > b->out().shape[0];
    });
    std::set<const Value*> of_tokens;  // what depends on tokens that were looked up
    int rank = 0;                      // of the largest table's indices
    for (Op* table : tables) {
      if (HasRole(table)) continue;
      const std::set<const Value*> looked_up = ResultsOf(table, lookups);
      std::set<const Value*> own = DependentsOf(looked_up);
      if (IndexRank(table, lookups) < rank || IsJoinedTo(of_tokens, looked_up, own)) continue;
      if (of_tokens.empty()) rank = IndexRank(table, lookups);
      of_tokens.merge(own);
      Set(table, "TOKEN_EMBEDDING", "weight");
      vocabularies_.insert(table->out().shape[0]);
      SetPositions(looked_up);
    }
  }

  static std::set<const Value*> ResultsOf(const Op* table, const std::vector<Lookup>& lookups) {
    std::set<const Value*> results;
    for (const Lookup& lookup : lookups) {
      if (lookup.table == table) results.insert(lookup.op->result());
    }
    return results;
  }

  static int IndexRank(const Op* table, const std::vector<Lookup>& lookups) {
    int rank = 0;
    for (const Lookup& lookup : lookups) {
      if (lookup.table == table) rank = std::max(rank, lookup.op->in(1).rank());
    }
    return rank;
  }

  std::set<const Value*> DependentsOf(std::set<const Value*> values) const {
    for (const auto& op : graph_.ops()) {
      if (std::any_of(op->operands.begin(), op->operands.end(),
                      [&](const Value* v) { return values.contains(v); })) {
        values.insert(op->results.begin(), op->results.end());
      }
    }
    return values;
  }

  // Whether what was looked up becomes part of a sum, a product or the features of one of `others`,
  // before any with what is computed of it (`own`), as residuals are.
  bool IsJoinedTo(const std::set<const Value*>& others, std::set<const Value*> looked_up,
                  const std::set<const Value*>& own) const {
    for (const auto& op : graph_.ops()) {
      auto count_in = [&](const std::set<const Value*>& values) {
        return std::count_if(op->operands.begin(), op->operands.end(),
                             [&](const Value* v) { return values.contains(v); });
      };
      const auto n = count_in(looked_up);
      const bool features =
          op->name() == "concat" && IsLastAxis(op->attrs.Int("axis"), op->out().rank());
      const bool joins = features || OneOf(op->name(), {"add", "mul"});
      if (n == 0 || !(joins || OneOf(op->name(), {"cast", "reshape", "transpose", "dropout"})))
        continue;
      if (count_in(own) > n) continue;
      if (joins && count_in(others) > 0) return true;
      looked_up.insert(op->result());
    }
    return false;
  }

  // What is added to tokens that were looked up.
  void SetPositions(std::set<const Value*> stream) {
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
  void SetPosition(const Value* v) const {
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
    if (!inputs_.contains(lookup->operands[1]) || long_enough)
      Set(table, "POSITION_EMBEDDING", "weight");
  }

  void SetAttention(Op* attention) {
    bool found = false;
    Seen seen;
    for (int i = 0; i < 3; ++i) found |= SetQkv(attention->operands[i], 0, seen);
    if (found) SetAttentionOut(attention->result());
  }

  // matmul(softmax(a function of matmul(q, k)), v), where scores have more than a mask and a scale.
  void SetWrittenOutAttention(Op* softmax) {
    std::vector<Op*> scores;
    std::set<const Op*> seen;
    FindScores(softmax->operands[0], 0, seen, scores);
    std::vector<Op*> products;
    FindProducts(softmax->result(), 0, products);
    if (scores.empty() || products.empty()) return;
    bool found = false;
    Seen tried;
    for (Op* score : scores) {
      for (Value* v : score->operands) found |= SetQkv(v, 0, tried);
    }
    for (Op* product : products) {
      found |= SetQkv(product->operands[1], 0, tried);
      if (found) SetAttentionOut(product->result());
    }
  }

  // Heads' products of products, matmul(a function of matmul(q, k), v) or matmul(q, one of
  // matmul(k, v)): scores that go through a sigmoid, or decay with the distance, and linear
  // attention.
  void SetAttentionWithoutSoftmax(Op* product) {
    if (product->out().rank() < 4 || LinearAt(product->result())) return;
    std::vector<Op*> inner;
    std::set<const Op*> seen;
    for (const Value* v : product->operands) FindScores(v, 0, seen, inner);
    std::erase_if(inner, [&](const Op* op) { return LinearAt(op->result()) != nullptr; });
    if (inner.empty()) return;
    bool found = false;
    Seen tried;
    inner.push_back(product);
    for (Op* op : inner) {
      for (Value* v : op->operands) found |= SetQkv(v, 0, tried);
    }
    if (found) SetAttentionOut(product->result());
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
    if (IsProduct(op)) {
      if (op->in(1).rank() >= 3) scores.push_back(op);
      return;
    }
    if (OneOf(op->name(), {"gather", "gather_nd"}))
      return FindScores(op->operands[0], depth + 1, seen, scores);
    // A concat adds the scores of sinks.
    const bool more = op->name() == "concat";
    if (!op->def->elementwise && !more &&
        !OneOf(op->name(), {"reshape", "cast", "transpose", "slice", "pad"}))
      return;
    for (const Value* operand : op->operands) {
      bool as_many = operand->type.num_elements() == v->type.num_elements();
      if (as_many || more || OneOf(op->name(), {"slice", "pad"}))
        FindScores(operand, depth + 1, seen, scores);
    }
  }

  // Values that a walk has been at, so many steps from where it began: there may be very many ways
  // to one.
  using Seen = std::set<std::pair<const Value*, int>>;

  // Back from q, k or v, through splitting heads, rotary positions and norms of q and k. Whether a
  // projection is there that was not seen: without one the heads of the result are not cut either.
  bool SetQkv(Value* v, int depth, Seen& seen) {
    if (!seen.emplace(v, depth).second) return false;
    if (Linear* linear = LinearAt(v)) {
      if (linear->experts) return false;
      // Of keys of low rank (as DeepSeek's), what is common to all heads comes from the projection
      // that makes them: no head is a part of its columns.
      if (!FeedsLinear(linear->out, 0)) Set(linear, "QKV");
      return RoleOf(*linear) == "QKV";
    }
    Op* op = v->producer;
    if (op == nullptr || depth > 40) return false;
    if (op->name() == "dropout") return SetQkv(op->operands[0], depth + 1, seen);
    bool layout =
        OneOf(op->name(), {"reshape", "transpose", "split", "slice", "cast", "broadcast_to", "neg",
                           "concat", "mul", "div", "where", "max", "min"});
    // A sum of two computed tensors over the whole width is the residual stream, over heads a
    // rotation, and of two linears one linear with another of low rank beside it.
    bool sum =
        OneOf(op->name(), {"add", "sub"}) &&
        (op->out().rank() >= 4 || BiasBehind(op->operands[0]) || BiasBehind(op->operands[1]) ||
         (IsScaledLinear(op->operands[0]) && IsScaledLinear(op->operands[1])));
    bool norm = IsNorm(op) && (op->out().rank() >= 4 || IsLinearOut(op->operands[0]));
    // Of linear attention.
    const bool feature =
        op->def->elementwise && (op->out().rank() >= 4 || IsLinearOut(op->operands[0]));
    // Into a cache, at places that are data.
    const bool written = OneOf(op->name(), {"gather_nd", "gather_nd_grad"});
    if (norm || written || op->name() == "rotary") return SetQkv(op->operands[0], depth + 1, seen);
    if (!layout && !sum && !feature) return false;
    bool found = false;
    for (Value* operand : op->operands) found |= SetQkv(operand, depth + 1, seen);
    return found;
  }
  bool FeedsLinear(const Value* v, int depth) {
    return depth < 6 && std::any_of(v->users.begin(), v->users.end(), [&](const Op* user) {
             if (!user->results.empty() && user->operands[0] == v && LinearAt(user->result()))
               return true;
             return (IsNorm(user) || OneOf(user->name(), {"split", "slice", "reshape", "cast"})) &&
                    std::any_of(user->results.begin(), user->results.end(),
                                [&](const Value* r) { return FeedsLinear(r, depth + 1); });
           });
  }
  bool IsLinearOut(const Value* v) { return LinearAt(v) || outs_.contains(v); }

  bool IsScaledLinear(const Value* v) {
    const Op* op = v->producer;
    if (op && OneOf(op->name(), {"mul", "div"}) && ProducedBy(op->operands[1], "constant"))
      return IsLinearOut(op->operands[0]);
    return IsLinearOut(v);
  }

  // Back from what a result of heads is multiplied with, to the linear that makes this gate: one
  // for each head, or one for each element. What a linear makes beside a gate may want to be whole.
  void SetGate(const Value* v, int depth, Seen& seen) {
    if (!seen.emplace(v, depth).second) return;
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
    for (const Value* operand : op->operands) SetGate(operand, depth + 1, seen);
  }

  void SetAttentionOut(const Value* v) {
    Seen seen, gates;
    SetAttentionOut(v, 0, seen, gates);
  }
  void SetAttentionOut(const Value* v, int depth, Seen& seen, Seen& gates) {
    if (!seen.emplace(v, depth).second) return;
    for (Op* user : v->users) {
      if (Linear* linear = user->results.empty() ? nullptr : LinearAt(user->result())) {
        if (user->operands[0] == v && !linear->experts) Set(linear, "ATTENTION_OUT");
      } else if (depth < 12 && KeepsHeads(user)) {
        for (const Value* operand : user->operands) {
          if (user->name() == "mul" && operand != v) SetGate(operand, 0, gates);
        }
        for (const Value* result : user->results) SetAttentionOut(result, depth + 1, seen, gates);
      }
    }
  }
  // What a model does with each head's result before the projection: also norms, turning back what
  // turned positions gave, and sums and differences of what two attentions give. Over the whole
  // width a sum is the residual stream.
  static bool KeepsHeads(const Op* op) {
    const bool heads = !op->results.empty() && op->out().rank() >= 4;
    return IsNorm(op) ||
           OneOf(op->name(), {"dropout", "reshape", "transpose", "cast", "mul", "div", "rotary"}) ||
           (heads && OneOf(op->name(), {"add", "sub", "concat", "split", "slice"}));
  }

  struct Branch {
    Linear* linear = nullptr;
    bool activated = false, multiplied = false, normed = false;
    auto operator<=>(const Branch&) const = default;
  };
  using Ways = std::set<std::tuple<const Value*, int, Branch>>;
  // The linears that v, of experts or not, is an elementwise function of, or a norm of one, by way
  // of what `at` says; false when it depends on anything else. Each way is gone once.
  bool Branches(const Value* v, Branch at, bool experts, int depth, Ways& gone,
                std::vector<Branch>& out) {
    if (!gone.emplace(v, depth, at).second) return true;
    if (Linear* linear = LinearAt(v)) {
      at.linear = linear;
      out.push_back(at);
      return true;
    }
    Op* op = v->producer;
    if (op == nullptr || depth > 24) return false;
    if (OneOf(op->name(), {"param", "constant"})) return true;
    if (experts && IsParam(ArrangedFrom(v))) return true;
    if (op->name() == "dropout") {
      return Branches(op->operands[0], at, experts, depth + 1, gone, out);
    }
    if (IsNorm(op)) {
      at.normed = true;
      return Branches(op->operands[0], at, experts, depth + 1, gone, out);
    }
    bool linear_op = OneOf(op->name(), {"add", "sub", "mul", "div", "neg", "cast", "reshape",
                                        "split", "slice", "broadcast_to"});
    // By tokens or by experts.
    linear_op |= experts && op->name() == "transpose";
    if (!linear_op && !op->def->elementwise) return false;
    at.activated |= !linear_op;
    const bool mul = OneOf(op->name(), {"mul", "div"});
    at.multiplied |= mul && std::ranges::none_of(op->operands, IsOfWeights);
    return std::all_of(op->operands.begin(), op->operands.end(), [&](const Value* operand) {
      // One number for a whole row, as the weight of an expert, is no part of the MLP.
      const bool number = mul && operand->type.rank() > 0 && operand->type.shape.back() == 1 &&
                          v->type.shape.back() > 1;
      return number || Branches(operand, at, experts, depth + 1, gone, out);
    });
  }

  static bool IsOfWeights(const Value* v) {
    const Value* from = ArrangedFrom(v);
    return IsParam(from) || ConstantOf(from);
  }

  // A product that also adds up the results of all experts: each one's rows are one behind the
  // other's.
  static bool SumsExperts(const Linear& l) {
    return l.weight->out().rank() == 3 && l.rows.size() == 2 && l.rows[0] == 0;
  }

  void SetMlp(Linear* down) {
    if (HasRole(down->weight)) return;
    std::vector<Branch> branches;
    Ways gone;
    const bool sums = SumsExperts(*down);
    if (!Branches(down->matmul->operands[0], {}, down->experts || sums, 0, gone, branches)) return;
    const bool all =
        std::ranges::all_of(branches, [](const Branch& b) { return b.linear->experts; });
    if (sums && all) {
      down->experts = true;
      down->rows.erase(down->rows.begin());
    }
    // silu written out reads its operand twice, once as it is: one activated path is enough.
    std::map<Linear*, bool> activated;
    bool any = false;
    for (const Branch& b : branches) {
      activated[b.linear] |= b.activated;
      any |= b.activated || b.multiplied;
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
    if (!vocabularies_.contains(linear->matmul->out().shape.back())) return;
    if (ReachesOutput(linear->out, 0)) Set(linear, "LM_HEAD");
  }
  bool ReachesOutput(const Value* v, int depth) {
    if (graph_.IsOutput(v)) return true;
    if (depth > 8) return false;
    return std::any_of(v->users.begin(), v->users.end(), [&](const Op* user) {
      if (OneOf(user->name(), {"cross_entropy", "softmax"})) return true;
      return (user->def->elementwise ||
              OneOf(user->name(), {"reshape", "cast", "slice", "transpose", "concat"})) &&
             ReachesOutput(user->result(), depth + 1);
    });
  }

  Graph& graph_;
  std::vector<Linear> linears_;
  std::map<const Value*, Linear*> at_;
  std::set<const Value*> outs_;     // Linear::out
  std::map<const Op*, Ints> cuts_;  // of weights with a role, the dims that Megatron-LM cuts
  // Of these there are pieces for which that is another: no cut serves q, k, v and what is behind.
  std::set<const Op*> torn_;
  std::set<int64_t> vocabularies_;  // their sizes
  // What holds numbers that come from inputs unchanged, or by elements: an index that counts from
  // the end where it is negative, labels moved on by one place.
  std::set<const Value*> inputs_;
};

}  // namespace

void SetRoles(Graph& graph) { RoleFinder(graph).Run(); }

}  // namespace shardc::recover
