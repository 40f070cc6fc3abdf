#include "passes/sink_reductions.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "ir/op_def.h"
#include "passes/reduction_region.h"

namespace shardc {
namespace {

constexpr int kMaxSteps = 4;    // from a reduction to the sum that it is part of
constexpr int kMaxCopies = 16;  // of copies in other types, one of the other
constexpr size_t kMaxValues = 2048;
constexpr int kMaxTries = 16;  // of sums that a reduction is in

// The reductions over the same axes of the values that the operand's producer makes, this one and
// later ones: what was taken apart is put together again behind them, as halves that are rotated.
std::vector<Op*> Siblings(Op* reduction) {
  std::vector<Op*> all = {reduction};
  const Op* producer = reduction->operands[0]->producer;
  if (!producer) return all;
  for (const Value* r : producer->results) {
    for (Op* user : r->users) {
      if (user->id > reduction->id && !user->results.empty() &&
          ReducedAxes(user->result()) == ReducedAxes(reduction->result())) {
        all.push_back(user);
      }
    }
  }
  return all;
}

// Whether the op can have partial results over the axes, of which something is made from them, and
// is linear in the value; and the operands in which it is so together with it.
bool LinearIn(SinkTables& tables, const Op& op, const Value* v, const AxisList& axes,
              std::vector<Value*>* together, int copies = kMaxCopies) {
  auto over = [&](const Value* r) { return IsOver(r->type.sharding, axes); };
  if (!op.def->rule || std::ranges::any_of(op.results, over)) return false;
  bool linear = false;
  ++tables.visits;
  for (const std::vector<int>& group : tables.rules.Of(op).linear) {
    const bool has =
        std::any_of(group.begin(), group.end(), [&](int i) { return op.operands[i] == v; });
    linear |= has;
    for (int i : group) {
      Value* other = op.operands[i];
      if (has && other != v) together->push_back(other);
    }
  }
  // A copy in another type is read as it is.
  if (linear && op.name() == "cast") {
    std::vector<Value*> unused;
    return copies > 0 && std::ranges::any_of(op.result()->users, [&](const Op* user) {
             return LinearIn(tables, *user, op.result(), axes, &unused, copies - 1);
           });
  }
  return linear;
}

// Adds to `found` what is reduced over the axes and passed to v by a few linear ops.
void FindReductions(SinkTables& tables, const Value* v, const AxisList& axes, int steps,
                    std::set<Op*>& found) {
  ++tables.visits;
  if (!v->producer) return;
  if (ReducedAxes(v) == axes) {
    found.insert(v->producer);
    return;
  }
  const Op& op = *v->producer;
  if (steps == 0 || !op.def->rule) return;
  for (const std::vector<int>& group : tables.rules.Of(op).linear) {
    for (int i : group) {
      FindReductions(tables, op.operands[i], axes, steps - 1, found);
    }
  }
}

// This reduction and later ones over the same axes that end in one sum with it, as the outputs of
// all experts do, each scaled by the weight that a token gives it: those of a phase, as far as
// nothing else reads what is summed.
std::vector<Op*> SummedWith(SinkTables& tables, Op* reduction) {
  const AxisList axes = ReducedAxes(reduction->result());
  std::set<Op*> found;
  std::vector<const Value*> waiting = {reduction->result()};
  for (size_t at = 0; at < waiting.size() && at < kMaxValues; ++at) {
    std::vector<const Value*> next;
    std::vector<Value*> together;
    bool only_linear = true;
    for (const Op* user : waiting[at]->users) {
      if (user->phase != reduction->phase) continue;
      only_linear &= LinearIn(tables, *user, waiting[at], axes, &together);
      if (only_linear) next.insert(next.end(), user->results.begin(), user->results.end());
    }
    if (!only_linear) continue;
    for (const Value* other : together) FindReductions(tables, other, axes, kMaxSteps, found);
    waiting.insert(waiting.end(), next.begin(), next.end());
  }
  std::vector<Op*> all = {reduction};
  for (Op* op : found) {
    if (op->id > reduction->id) all.push_back(op);
  }
  std::sort(all.begin(), all.end(), [](const Op* a, const Op* b) { return a->id < b->id; });
  return all;
}

// Whether the other is what the reduction is, in another microbatch.
bool SameInAnother(const Op& op, const Op& other) {
  return op.microbatch != other.microbatch && op.site == other.site && op.phase == other.phase &&
         op.in(0) == other.in(0) && op.out() == other.out();
}

}  // namespace

AxisList SummedAxes(const Value* value) {
  AxisList axes;
  if (!value->producer || value->producer->name() != "reshard") return axes;
  const Sharding &from = value->producer->in(0).sharding, &to = value->type.sharding;
  if (from.partial_max != to.partial_max) return axes;
  for (int a : from.partial_sum) {
    if (!to.partial_sum.contains(a)) axes.push_back(a);
  }
  return axes;
}

AxisList ReducedAxes(const Value* value) {
  const AxisList summed = SummedAxes(value);
  if (summed.empty()) return summed;
  const Sharding &from = value->producer->in(0).sharding, &to = value->type.sharding;
  const bool alone = from.dims == to.dims && std::ranges::all_of(to.partial_sum, [&](int a) {
                       return from.partial_sum.contains(a);
                     });
  return alone ? summed : AxisList();
}

bool SinkReductions(Graph& graph, size_t& most, int64_t& visits) {
  SinkTables tables(graph);
  bool any = false;
  auto sink = [&](const std::vector<Op*>& together) {
    if (most == 0 || !SinkTogether(tables, together)) return false;
    --most;
    return any = true;
  };
  // What does not pay for a whole sum may pay for a part of it. Of a sum of very many, not all
  // parts are tried; and not again what is the same but for the first microbatches.
  std::unordered_map<const Op*, int> tries;
  for (auto it = graph.ops().begin(); it != graph.ops().end(); ++it) {
    Op* op = it->get();
    if (op->name() != "reshard" || ReducedAxes(op->result()).empty()) continue;
    if (op->result()->users.empty()) continue;
    if (sink(Siblings(op))) continue;
    if (tries[op] < kMaxTries) {
      const std::vector<Op*> summed = SummedWith(tables, op);
      if (sink(summed)) continue;
      for (const Op* other : summed) tries[other] += SameInAnother(*op, *other) ? kMaxTries : 1;
    }
    sink({op});
  }
  visits += tables.Visits();
  return any;
}

}  // namespace shardc
