// Tables: of a vocabulary, and of positions.
#include <algorithm>
#include <map>

#include "frontend/recover/match.h"
#include "frontend/recover/roles.h"
#include "ir/op_def.h"

namespace shardc::recover {
namespace {

using Values = std::set<const Value*>;

// Whether the op reads one of the values.
bool Reads(const Op& op, const Values& values) {
  return std::ranges::any_of(op.operands, [&](const Value* v) { return values.contains(v); });
}

// What holds numbers that come from inputs unchanged, or by elements: an index that counts from the
// end where it is negative, labels moved on by one place.
Values NumbersOfInputs(const Graph& graph) {
  Values found;
  for (const auto& input : graph.inputs()) found.insert(input.get());
  auto fits = [&](const Value* v) { return found.contains(v) || ProducedBy(v, "constant"); };
  for (const auto& op : graph.ops()) {
    const bool keeps =
        op->def->elementwise || OneOf(op->name(), {"cast", "reshape", "slice", "split", "transpose",
                                                   "broadcast_to", "concat", "pad"});
    if (keeps && Reads(*op, found) && std::ranges::all_of(op->operands, fits)) {
      found.insert(op->results.begin(), op->results.end());
    }
  }
  return found;
}

class TableRoles {
 public:
  explicit TableRoles(const Graph& graph) : graph_(graph), inputs_(NumbersOfInputs(graph)) {
    for (const auto& op : graph.ops()) {
      Op* table = IsLookup(op.get()) ? ParamBehind(op->operands[0]) : nullptr;
      if (table == nullptr || table->out().rank() != 2) continue;
      lookups_.push_back({table, op.get()});
      const bool known = std::find(tables_.begin(), tables_.end(), table) != tables_.end();
      if (inputs_.contains(op->operands[1]) && !known) tables_.push_back(table);
    }
  }

  // Returns the sizes of the vocabularies.
  std::set<int64_t> Run() {
    // The largest is a vocabulary: segment, position and feature tables are smaller, and become
    // part of what is looked up in it. A table of which that is not so is another one, as a
    // decoder's, if it has a row for each token and not for each example, as those of labels and
    // domains have.
    std::stable_sort(tables_.begin(), tables_.end(), [](const Op* a, const Op* b) {
      return a->out().shape[0] > b->out().shape[0];
    });
    TrunksFirst();
    std::set<int64_t> vocabularies;
    Values of_tokens;  // what depends on tokens that were looked up
    int rank = 0;      // of the largest table's indices
    for (Op* table : tables_) {
      if (table->attrs.Has("role")) continue;
      const Values looked_up = ResultsOf(table);
      Values own = DependentsOf(looked_up);
      if (IndexRank(table) < rank || IsJoinedTo(of_tokens, looked_up, own)) continue;
      if (of_tokens.empty()) rank = IndexRank(table);
      of_tokens.merge(own);
      SetRole(table, "TOKEN_EMBEDDING", "weight");
      vocabularies.insert(table->out().shape[0]);
      SetPositions(looked_up);
    }
    return vocabularies;
  }

 private:
  struct Lookup {
    Op* table;
    const Op* op;
  };

  // Of tables of one size the order in which the graph looks up says nothing: what becomes part of
  // what is computed of another one (value embeddings) comes behind it.
  void TrunksFirst() {
    std::map<const Op*, int> joined;  // to how many of its size
    for (const Op* table : tables_) {
      const Values looked_up = ResultsOf(table), own = DependentsOf(looked_up);
      joined[table] = static_cast<int>(std::ranges::count_if(tables_, [&](const Op* other) {
        return other != table && other->out().shape[0] == table->out().shape[0] &&
               IsJoinedTo(DependentsOf(ResultsOf(other)), looked_up, own);
      }));
    }
    std::ranges::stable_sort(tables_, [&](const Op* a, const Op* b) {
      const int64_t rows = a->out().shape[0], others = b->out().shape[0];
      return rows != others ? rows > others : joined[a] < joined[b];
    });
  }

  Values ResultsOf(const Op* table) const {
    Values results;
    for (const Lookup& lookup : lookups_) {
      if (lookup.table == table) results.insert(lookup.op->result());
    }
    return results;
  }

  int IndexRank(const Op* table) const {
    int rank = 0;
    for (const Lookup& lookup : lookups_) {
      if (lookup.table == table) rank = std::max(rank, lookup.op->in(1).rank());
    }
    return rank;
  }

  Values DependentsOf(Values values) const {
    for (const auto& op : graph_.ops()) {
      if (Reads(*op, values)) values.insert(op->results.begin(), op->results.end());
    }
    return values;
  }

  // Whether what was looked up becomes part of a sum, a product or the features of one of `others`,
  // before any with what is computed of it (`own`), as residuals are.
  bool IsJoinedTo(const Values& others, Values looked_up, const Values& own) const {
    for (const auto& op : graph_.ops()) {
      auto count_in = [&](const Values& values) {
        return std::ranges::count_if(op->operands,
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

  // Of what is added to tokens that were looked up.
  void SetPositions(Values stream) const {
    for (const auto& op : graph_.ops()) {
      if (!Reads(*op, stream) || !OneOf(op->name(), {"add", "mul", "cast", "reshape"})) continue;
      stream.insert(op->result());
      for (const Value* v : op->operands) {
        if (op->name() == "add" && !stream.contains(v)) SetPosition(v);
      }
    }
  }

  // v is added to the token embedding.
  void SetPosition(const Value* v) const {
    for (;;) {
      if (auto scaled = ScaledBy(v)) {
        v = scaled->first;
      } else if (v->producer &&
                 OneOf(v->producer->name(), {"reshape", "slice", "broadcast_to", "cast"})) {
        v = v->producer->operands[0];
      } else {
        break;
      }
    }
    if (Op* param = ProducedBy(v, "param"); param && param->out().rank() >= 2) {
      // One row for all positions is no table of them.
      const bool rows = param->out().num_elements() > param->out().shape.back();
      if (rows) SetRole(param, "POSITION_EMBEDDING", "weight");
      return;
    }
    const Op* lookup = v->producer;
    if (lookup == nullptr || !OneOf(lookup->name(), {"embedding", "gather"})) return;
    Op* table = ParamBehind(lookup->operands[0]);
    const Shape& ids = lookup->in(1).shape;
    if (table == nullptr || ids.empty()) return;
    // A table too short for the sequence numbers something else (segments).
    const bool long_enough = table->out().shape[0] >= ids.back();
    if (!inputs_.contains(lookup->operands[1]) || long_enough)
      SetRole(table, "POSITION_EMBEDDING", "weight");
  }

  const Graph& graph_;
  const Values inputs_;
  std::vector<Lookup> lookups_;  // in tables of rows
  std::vector<Op*> tables_;      // that inputs look up
};

}  // namespace

std::set<int64_t> SetEmbeddingRoles(Graph& graph) { return TableRoles(graph).Run(); }

}  // namespace shardc::recover
