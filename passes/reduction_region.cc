#include "passes/reduction_region.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <ranges>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "ir/builder.h"
#include "passes/provenance.h"
#include "passes/reshard_cost.h"
#include "passes/sink_reductions.h"
#include "passes/weights.h"

namespace shardc {
namespace {

constexpr size_t kMaxOps = 64;  // that one reduction moves behind, on average

// Reductions over the same axes, and the ops behind them that could work on their operands instead.
class Region {
 public:
  Region(SinkTables& tables, std::vector<Op*> reductions)
      : tables_(tables),
        graph_(tables.graph),
        reductions_(std::move(reductions)),
        is_reduction_(reductions_.begin(), reductions_.end()),
        axes_(ReducedAxes(reductions_[0]->result())),
        chains_(tables.ChainsFor(axes_)) {
    for (const Op* r : reductions_) reduced_.emplace(r->out().dtype, r->out().num_elements());
  }

  // Finds the ops behind which the least is reduced: the first ones in order, or all of them, less
  // those that do not help. Whether that is less than now.
  bool Grow() {
    for (const Op* r : reductions_) Add(r->result());
    const int64_t now = frontier_;
    int64_t best = now;
    size_t best_size = 0;
    // In order: all that makes an op's operands has been decided on before the op.
    while (!waiting_.empty() && ops_.size() < kMaxOps * reductions_.size()) {
      Op* op = waiting_.begin()->second;
      waiting_.erase(waiting_.begin());
      if (!Passes(*op)) continue;
      ops_.push_back(op);
      Take(*op);
      for (const Value* r : op->results) Add(r);
      if (frontier_ < best) {
        best = frontier_;
        best_size = ops_.size();
      }
    }
    std::vector<Op*> first(ops_.begin(), ops_.begin() + static_cast<std::ptrdiff_t>(best_size));
    if (ops_.size() > best_size) {
      Trim();
      if (frontier_ < best) return true;
    }
    ops_ = std::move(first);
    if (best < now) Trim();
    return best < now;
  }

  void Apply() {
    const std::set<const Op*> inside(ops_.begin(), ops_.end());
    for (Op* op : ops_) Divide(op);
    for (Op* op : ops_) {
      for (size_t i = 0; i < op->operands.size(); ++i) {
        const Op* producer = op->operands[i]->producer;
        if (!IsReduction(producer)) continue;
        graph_.SetOperand(op, static_cast<int>(i), producer->operands[0]);
      }
      for (Value* r : op->results) {
        const TensorType whole = std::exchange(r->type, Partial(r->type));
        Reduce(op, r, whole, inside);
      }
    }
  }

  // Behind which the reductions move; what Apply makes is beside them.
  const std::vector<Op*>& ops() const { return ops_; }

 private:
  // The result of a reduction or of an op of ops_: partial, once the region is applied. As long as
  // uses of it are left outside, it is reduced for them.
  struct Edge {
    size_t left;    // uses by others than ops_
    int64_t bytes;  // that its reduction would move, scaled
    size_t sum;     // that it is a term of: one reduction serves all terms of a type
  };

  // Leaves out the ops at the end without which no more is reduced.
  void Trim() {
    const std::set<const Op*> inside(ops_.begin(), ops_.end());
    for (auto& [v, at] : places_) {
      const bool from_here = inside.contains(v->producer) || IsReduction(v->producer);
      SetLeft(edges_[at], from_here ? Uses(v) : 0);
    }
    for (const Op* op : ops_) Take(*op);
    std::vector<Op*> kept;
    for (Op* op : std::views::reverse(ops_)) {
      const bool last = std::ranges::all_of(
          op->results, [&](const Value* r) { return Find(r)->left == Uses(r); });
      const int64_t before = frontier_;
      if (last) Leave(*op);
      if (last && frontier_ <= before) continue;
      if (last) {
        Take(*op);
        for (const Value* r : op->results) SetLeft(*Find(r), Uses(r));
      }
      kept.push_back(op);
    }
    ops_.assign(kept.rbegin(), kept.rend());
  }

  size_t Uses(const Value* v) const { return v->users.size() + (graph_.IsOutput(v) ? 1 : 0); }

  void Take(const Op& op) {
    for (const Value* v : op.operands) {
      if (Edge* edge = Find(v)) SetLeft(*edge, edge->left - 1);
    }
  }

  void Leave(const Op& op) {
    for (const Value* v : op.operands) {
      if (Edge* edge = Find(v)) SetLeft(*edge, edge->left + 1);
    }
    for (const Value* r : op.results) SetLeft(*Find(r), 0);
  }

  bool IsReduction(const Op* op) const { return is_reduction_.contains(op); }

  void Add(const Value* v) {
    places_.emplace(v, edges_.size());
    const size_t sum = sums_.emplace(SumOf(v), sums_.size()).first->second;
    left_of_sum_.resize(sums_.size());
    edges_.push_back({0, static_cast<int64_t>(std::llround(kScale * ReducedBytes(v))), sum});
    SetLeft(edges_.back(), Uses(v));
    for (Op* user : v->users) {
      SHARDC_CHECK(user->id >= 0, Describe(*user));
      waiting_.emplace(user->id, user);
    }
  }

  // What a sum moves is what the first of its terms does that is left.
  int64_t BytesOf(size_t sum) const {
    const std::set<size_t>& left = left_of_sum_[sum];
    return left.empty() ? 0 : edges_[*left.begin()].bytes;
  }

  void SetLeft(Edge& edge, size_t left) {
    ++tables_.visits;
    if ((edge.left == 0) != (left == 0)) {
      const auto at = static_cast<size_t>(&edge - edges_.data());
      frontier_ -= BytesOf(edge.sum);
      if (left == 0) {
        left_of_sum_[edge.sum].erase(at);
      } else {
        left_of_sum_[edge.sum].insert(at);
      }
      frontier_ += BytesOf(edge.sum);
    }
    edge.left = left;
  }

  Edge* Find(const Value* v) {
    auto it = places_.find(v);
    return it == places_.end() ? nullptr : &edges_[it->second];
  }

  // Whether the op gives partial results when those of its operands that are edges are partial.
  bool Passes(const Op& op) {
    if (!op.def->rule) return false;
    std::vector<int> partial;
    for (size_t i = 0; i < op.operands.size(); ++i) {
      if (Find(op.operands[i])) partial.push_back(static_cast<int>(i));
      if (IsOver(op.operands[i]->type.sharding, axes_)) return false;
    }
    for (const Value* r : op.results) {
      if (IsOver(r->type.sharding, axes_)) return false;
    }
    return PassingGroup(op, partial).has_value();
  }

  // The operands, among which are the partial ones, in which the op is linear together. The others
  // of them are divided among the ranks: parameters, as the biases of experts.
  std::optional<std::vector<int>> PassingGroup(const Op& op,
                                               const std::vector<int>& partial) const {
    std::optional<std::vector<int>> found;
    for (std::vector<int> group : tables_.rules.Of(op).linear) {
      std::sort(group.begin(), group.end());
      if (!std::includes(group.begin(), group.end(), partial.begin(), partial.end())) continue;
      if (group == partial) return group;
      // Not what masks: shares of the largest number need not add up to it.
      const bool small = std::all_of(group.begin(), group.end(), [&](int i) {
        if (std::binary_search(partial.begin(), partial.end(), i)) return true;
        const Value* v = op.operands[i];
        if (IsLookup(v)) v = v->producer->operands[0];
        return 2 * v->type.num_elements() <= op.out().num_elements() && IsWeight(v);
      });
      if (small && IsFloat(op.out().dtype)) found = group;
    }
    return found;
  }

  TensorType Partial(TensorType type) const {
    for (int a : axes_) type.sharding.partial_sum.push_back(a);
    type.sharding = Canonical(type, graph_.mesh);
    return type;
  }

  // Whether v is rows of a weight, as the biases of the experts that each token goes to.
  static bool IsLookup(const Value* v) {
    const Op* op = v->producer;
    return op && op->def->picks && op->operands.size() == 2 && IsWeight(op->operands[0]) &&
           op->in(0).sharding.replicated();
  }

  // What is whole beside a partial operand becomes partial: each rank has its share.
  void Divide(Op* op) {
    std::vector<int> partial;
    for (size_t i = 0; i < op->operands.size(); ++i) {
      if (Find(op->operands[i])) partial.push_back(static_cast<int>(i));
    }
    const std::vector<int> group = *PassingGroup(*op, partial);
    for (int i : group) {
      if (std::binary_search(partial.begin(), partial.end(), i)) continue;
      graph_.SetOperand(op, i, Share(op, op->operands[i]));
    }
  }

  // The value as a partial one, of which each rank has an equal share: the sum along a new dim of
  // as many shares as there are ranks, which is cut between them. For rows that were looked up: the
  // same rows of a share of the table.
  Value* Share(Op* user, Value* whole) {
    if (IsLookup(whole)) {
      const Op& lookup = *whole->producer;
      Value* share = Share(user, lookup.operands[0]);
      Op* again = graph_.AddOp(*lookup.def, {share, lookup.operands[1]}, {Partial(whole->type)},
                               lookup.attrs, user, *user);
      return again->result();
    }
    Builder builder(graph_, user, *user);
    auto place = [&](Value* v, Sharding sharding) {
      v->type.sharding =
          Canonical({v->type.dtype, v->type.shape, std::move(sharding)}, graph_.mesh);
      return v;
    };
    const Sharding own = whole->type.sharding;
    Sharding cut = own;
    cut.dims.insert(cut.dims.begin(), DimSharding{axes_, 1, {}});
    const int64_t parts = NumParts(axes_, graph_.mesh);
    Shape shares = whole->type.shape;
    shares.insert(shares.begin(), parts);
    Value* share = builder.Scalar(whole->type.dtype, 1 / static_cast<double>(parts));
    share = place(builder.Mul(whole, share), own);
    share = place(builder.BroadcastTo(share, std::move(shares)), std::move(cut));
    return place(builder.ReduceSum(share, {0}), Partial(whole->type).sharding);
  }

  // The value, or the wider copy of it that alone reads it, as it is added.
  const Value* Term(const Value* v) const {
    const Op* user = graph_.OnlyUser(v);
    return user && user->name() == "cast" ? user->result() : v;
  }

  // What a term is a copy of in another type, or itself.
  static const Value* Narrow(const Value* term) {
    const Op* op = term->producer;
    return op && op->name() == "cast" ? op->operands[0] : term;
  }

  // The sum of the value, or of its wider copy, and others of the type; itself where it is in none.
  const Value* SumOf(const Value* v) const {
    const Value* term = Term(v);
    const Value* sum = chains_.Of(term).own;
    return sum == term ? v : sum;
  }

  // Bytes that the reduction of a value at the edge moves. In a sum with another reduction over the
  // same axes one serves both; where that sum is reduced again, over more axes, it goes away when
  // all that is added passes it on. A reduction right behind it takes the axes on.
  double ReducedBytes(const Value* v) const {
    const SumChains::Chain sum = chains_.Of(Term(v));
    if (sum.joint) return NextReduction(sum.all).empty() ? 0 : -Bytes(sum.joint);
    if (const Value* next = ReducedWithMore(v)) return -Bytes(next);
    TensorType sent = v->type;
    sent.dtype = TravelType(*v);
    // A ring over g ranks and one over g * n differ by this much.
    return Bytes(Partial(sent), sent) /
           static_cast<double>(NumParts(ReductionBehind(v), graph_.mesh));
  }

  // Where halves travel now, what is as large and wider travels in halves.
  DType TravelType(const Value& v) const {
    const DType own = v.type.dtype;
    const bool narrower = IsFloat(own) && std::ranges::all_of(reduced_, [&](const auto& r) {
                            const auto& [dtype, elements] = r;
                            return IsFloat(dtype) && DTypeSize(dtype) < DTypeSize(own) &&
                                   elements == v.type.num_elements();
                          });
    return narrower ? reductions_[0]->out().dtype : own;
  }

  // The reduction right behind the value that would be one with another, which it is added to, if
  // it were over the axes too; or null.
  const Value* ReducedWithMore(const Value* v) const {
    const AxisList next = ReductionBehind(v);
    if (next.empty()) return nullptr;
    const Value* reduced = v->users[0]->result();
    for (const Value* sum = Term(reduced); const Value* term = AddedTo(graph_, sum);
         sum = sum->users[0]->result()) {
      const Value* other = Narrow(term);
      const AxisList all = SummedAxes(other);
      const bool both =
          all.size() == axes_.size() + next.size() && graph_.OnlyUser(other) &&
          graph_.OnlyUser(term) && other->type == reduced->type &&
          std::ranges::all_of(all, [&](int a) { return axes_.contains(a) || next.contains(a); });
      if (both) return reduced;
    }
    return nullptr;
  }

  // That of the reduction right behind one of the value; none where the value would be widened in
  // between.
  AxisList ReductionBehind(const Value* v) const {
    return TravelType(*v) == v->type.dtype ? NextReduction(v) : AxisList();
  }

  // The axes of the reduction that is all that is done with the value; none where it is not.
  AxisList NextReduction(const Value* v) const {
    const Op* reader = graph_.OnlyUser(v);
    return reader && reader->name() == "reshard" ? SummedAxes(reader->result()) : AxisList();
  }

  double Bytes(const Value* reduction) const {
    return Bytes(reduction->producer->in(0), reduction->type);
  }

  double Bytes(const TensorType& from, const TensorType& to) const {
    const double share = static_cast<double>(LocalBytes(from, graph_.mesh)) /
                         static_cast<double>(std::max<int64_t>(from.bytes(), 1));
    return ReshardBytes(from, to.sharding, graph_.mesh) * share;
  }

  // A reduction for the users of the value that do not work on the partial one.
  void Reduce(Op* op, Value* v, const TensorType& whole, const std::set<const Op*>& inside) {
    std::vector<Op*> outside;
    for (Op* user : v->users) {
      if (!inside.contains(user)) outside.push_back(user);
    }
    if (outside.empty() && !graph_.IsOutput(v)) return;
    const Op& first = *reductions_[0];
    Builder builder(graph_, graph_.Next(op), *op);
    const DType travels = TravelType(*v);
    Value* partial = builder.Cast(v, travels);
    partial->type.sharding = v->type.sharding;
    TensorType reduced = whole;
    reduced.dtype = travels;
    Op* after = graph_.AddOp(*first.def, {partial}, {reduced}, first.attrs,
                             graph_.Next(partial->producer), *op);
    Strings why = WhyOf(first);
    why.push_back("partial through " + Describe(*op));
    after->attrs.Set("why", std::move(why));
    after->attrs.Set("for", std::string(op->name()));
    after->result()->provenance = first.result()->provenance;
    Value* result = builder.Cast(after->result(), whole.dtype);
    result->type.sharding = whole.sharding;
    for (Op* user : outside) graph_.ReplaceUses(user, v, result);
    graph_.outputs.Replace(v, result);
  }

  // Of bytes: what is left is the same in whatever order it was counted.
  static constexpr double kScale = 1024;

  SinkTables& tables_;
  Graph& graph_;
  std::vector<Op*> reductions_;
  std::unordered_set<const Op*> is_reduction_;
  std::set<std::pair<DType, int64_t>> reduced_;  // the types and numbers of elements of reductions_
  AxisList axes_;
  SumChains& chains_;
  std::vector<Op*> ops_;
  std::vector<Edge> edges_;
  std::unordered_map<const Value*, size_t> places_;  // in edges_
  std::unordered_map<const Value*, size_t> sums_;    // what edges are terms of, numbered
  std::vector<std::set<size_t>> left_of_sum_;        // those of its edges that are left
  int64_t frontier_ = 0;                             // bytes that all edges that are left move
  std::map<int, Op*> waiting_;                       // users, by their place in the graph
};

}  // namespace

SumChains& SinkTables::ChainsFor(const AxisList& axes) {
  for (SumChains& of : chains) {
    if (of.axes() == axes) return of;
  }
  return chains.emplace_back(graph, axes);
}

int64_t SinkTables::Visits() const {
  int64_t all = visits;
  for (const SumChains& of : chains) all += of.visits();
  return all;
}

void SinkTables::Number() {
  const auto n = static_cast<int64_t>(graph.num_ops());
  const int64_t room = std::numeric_limits<int>::max() / (n + 1);
  int64_t id = 0;
  for (const auto& op : graph.ops()) op->id = static_cast<int>(id += room);
  visits += n;
}

bool SinkTables::NumberBehind(const Op* op) {
  std::vector<Op*> made;
  Op* next = op ? graph.Next(op) : graph.ops().front().get();
  for (; next && next->id < 0; next = graph.Next(next)) made.push_back(next);
  const int64_t first = op ? op->id : 0;
  const int64_t end = next ? next->id : std::numeric_limits<int>::max();
  const int64_t room = (end - first) / (std::ssize(made) + 1);
  int64_t id = first;
  for (Op* o : made) o->id = static_cast<int>(id += room);
  visits += std::ssize(made);
  return made.empty() || room > 0;
}

void SinkTables::Changed(const std::vector<Op*>& beside) {
  visits = Visits();
  chains.clear();
  for (const Op* op : beside) {
    const Op* before = op;
    do {
      before = graph.Previous(before);
    } while (before && before->id < 0);
    if (NumberBehind(before) && NumberBehind(op)) continue;
    Number();
    return;
  }
}

bool IsOver(const Sharding& s, const AxisList& axes) {
  return std::any_of(axes.begin(), axes.end(), [&](int a) { return s.Uses(a); });
}

bool SinkTogether(SinkTables& tables, const std::vector<Op*>& reductions) {
  Region region(tables, reductions);
  if (!region.Grow()) return false;
  region.Apply();
  tables.Changed(region.ops());
  return true;
}

}  // namespace shardc
