#include "passes/overlap.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/op_def.h"
#include "passes/reorder.h"
#include "passes/travel.h"

namespace shardc {
namespace {

int64_t BytesOf(const std::vector<Value*>& values, const Mesh& mesh) {
  int64_t bytes = 0;
  for (const Value* v : values) bytes += LocalBytes(v->type, mesh);
  return bytes;
}

// What a link carries for a collective, about.
int64_t Travels(const Op& op, const Mesh& mesh) {
  const int64_t bytes = std::max(BytesOf(op.operands, mesh), BytesOf(op.results, mesh));
  return op.name() == "all_reduce" ? 2 * bytes : bytes;
}

bool Gathers(const Op& op, const Mesh& mesh) {
  return op.def->communicates && BytesOf(op.results, mesh) > BytesOf(op.operands, mesh);
}

// Gathers over the same axes that have begun before another does, and are not read yet, at most.
constexpr size_t kMostAhead = 2;

// Bytes that travel while an op runs, found once for each.
class Costs {
 public:
  explicit Costs(const Mesh& mesh) : mesh_(mesh) {}

  int64_t Meanwhile(const Op& op) {
    if (op.def->communicates || op.operands.empty()) return 0;
    auto [it, fresh] = of_.try_emplace(&op, 0);
    if (fresh) {
      const LocalCost cost = CostOnRank(op, mesh_);
      it->second = BytesMeanwhile(cost.flops, cost.bytes);
    }
    return it->second;
  }

 private:
  const Mesh& mesh_;
  std::unordered_map<const Op*, int64_t> of_;
};

// Which ops go along with the collectives of one kind: these, and cheap ops that only such ops
// read.
template <typename Kind>
std::vector<bool> WithFeeders(const Graph& graph, const std::vector<Op*>& ops, Kind kind) {
  std::vector<bool> marked(ops.size());
  for (size_t i = ops.size(); i-- > 0;) {
    const Op& op = *ops[i];
    if (op.def->communicates) {
      marked[i] = kind(op);
      continue;
    }
    if (!IsCheap(*op.def) && !op.def->view) continue;
    bool read = false, only = true;
    for (const Value* r : op.results) {
      only = only && !graph.IsOutput(r);
      for (const Op* user : r->users) {
        read = true;
        only = only && marked[user->id];
      }
    }
    marked[i] = read && only;
  }
  return marked;
}

// Sums, right behind what they sum.
class Sums {
 public:
  explicit Sums(Graph& graph)
      : graph_(graph),
        ops_(NumberedOps(graph)),
        early_(WithFeeders(graph, ops_, [&](const Op& op) { return !Gathers(op, graph.mesh); })),
        missing_(ops_.size()),
        done_(ops_.size()) {}

  void Run() {
    for (const Op* op : ops_) {
      for (const Value* v : op->operands) missing_[op->id] += v->producer != nullptr;
    }
    for (Op* op : ops_) Emit(op);
  }

 private:
  // With what can begin after it, in the order that it had.
  void Emit(Op* op) {
    std::vector<Op*> ready = {op};
    for (size_t i = 0; i < ready.size(); ++i) {
      Op* next = ready[i];
      if (done_[next->id]) continue;
      done_[next->id] = true;
      graph_.MoveBefore(next, nullptr);
      const size_t first = ready.size();
      for (const Value* r : next->results) {
        for (Op* user : r->users) {
          const bool last = --missing_[user->id] == 0;
          if (last && early_[user->id] && MayFollow(*user, *op)) ready.push_back(user);
        }
      }
      std::sort(ready.begin() + static_cast<std::ptrdiff_t>(first), ready.end(),
                [](const Op* a, const Op* b) { return a->id < b->id; });
    }
  }

  // What a microbatch or the backward needs only of what was before is made when it begins.
  static bool MayFollow(const Op& op, const Op& before) {
    return op.phase <= before.phase && (op.microbatch < 0 || op.RunsWith(before));
  }

  Graph& graph_;
  std::vector<Op*> ops_;
  std::vector<bool> early_;  // by Op::id, as the following
  std::vector<int> missing_;
  std::vector<bool> done_;
};

// Gathers, some time before what reads them.
class Prefetch {
 public:
  Prefetch(Graph& graph, Costs& costs)
      : graph_(graph),
        costs_(costs),
        ops_(NumberedOps(graph)),
        moves_(WithFeeders(graph, ops_, [&](const Op& op) { return Gathers(op, graph.mesh); })),
        target_(ops_.size()),
        given_(ops_.size()) {
    for (size_t i = 0; i < ops_.size(); ++i) target_[i] = i;
  }

  void Run() {
    for (size_t i = 0; i < ops_.size(); ++i) {
      if (moves_[i] && ops_[i]->def->communicates) SetTarget(i);
    }
    // Those that were given a place come before the op that has it.
    Reorder(graph_, ops_, [&](size_t i) { return std::pair(target_[i], !given_[i]); });
  }

 private:
  // Of the gathers so far.
  struct Begun {
    size_t last = 0;              // where the last one begins
    std::vector<size_t> readers;  // their first
  };

  // Its feeders go with it.
  void SetTarget(size_t gather) {
    std::vector<size_t> group = {gather};
    size_t earliest = 0;
    for (size_t i = 0; i < group.size(); ++i) {
      for (const Value* v : ops_[group[i]]->operands) {
        if (!v->producer) continue;
        const auto p = static_cast<size_t>(v->producer->id);
        if (Feeds(p) && !given_[p]) {
          group.push_back(p);
        } else {
          earliest = std::max(earliest, given_[p] ? target_[p] : p + 1);
        }
      }
    }
    const Strings& axes = ops_[gather]->attrs.StringList("axes");
    const size_t reader = FirstReader(gather);
    Begun& begun = begun_[axes];
    const size_t unread = begun.readers.size() - std::min(kMostAhead, begun.readers.size());
    if (unread > 0) earliest = std::max(earliest, begun.readers[unread - 1] + 1);
    earliest = std::min(std::max(earliest, begun.last), gather);
    const size_t target = Place(gather, reader, axes, earliest);
    begun.last = target;
    begun.readers.push_back(reader);
    for (size_t i : group) {
      target_[i] = std::min(target, i);
      given_[i] = true;
    }
  }

  // At least `earliest`. Between collectives that ranks wait for, where most of it travels unseen.
  size_t Place(size_t gather, size_t reader, const Strings& axes, size_t earliest) const {
    if (reader == ops_.size()) return gather;
    const int64_t own = kMargin * Travels(*ops_[gather], graph_.mesh);
    size_t best = gather, at = gather;
    int64_t most = -1, unseen = 0, wanted = own;
    auto consider = [&] {
      if (unseen > most) best = at;
      most = std::max(most, unseen);
    };
    for (size_t i = reader; i-- > earliest && unseen < wanted;) {
      const Op& op = *ops_[i];
      if (!MayPass(op, *ops_[reader])) break;
      if (i != gather && op.def->communicates && op.attrs.StringList("axes") == axes) {
        wanted += Travels(op, graph_.mesh);
        if (IsAwaited(i)) {
          consider();
          if (most >= own) break;
          unseen = 0;
          wanted = own;
        }
      }
      at = std::min(at, i);
      if (!Feeds(i)) unseen += costs_.Meanwhile(op);
    }
    consider();
    return best;
  }

  // Whether it goes along with gathers.
  bool Feeds(size_t i) const {
    return moves_[i] && !ops_[i]->def->communicates && !ops_[i]->operands.empty();
  }

  size_t FirstReader(size_t at) const {
    size_t reader = ops_.size();
    for (const Value* r : ops_[at]->results) {
      for (const Op* user : r->users) reader = std::min<size_t>(reader, user->id);
    }
    return reader;
  }

  // Whether ranks wait for the collective where it stands.
  bool IsAwaited(size_t at) const {
    if (given_[at]) return false;
    int64_t left = Travels(*ops_[at], graph_.mesh);
    const size_t reader = FirstReader(at);
    for (size_t i = at + 1; i < reader && left > 0; ++i) left -= costs_.Meanwhile(*ops_[i]);
    return left > 0;
  }

  static bool MayPass(const Op& op, const Op& reader) {
    return op.operands.empty() || (op.phase == reader.phase && op.RunsWith(reader));
  }

  Graph& graph_;
  Costs& costs_;
  std::vector<Op*> ops_;
  std::vector<bool> moves_;         // by Op::id, as the following
  std::vector<size_t> target_;      // the place before which it runs
  std::vector<bool> given_;         // whether it was given that place
  std::map<Strings, Begun> begun_;  // by axes
};

// Cheap readers of what travels, when it has come.
class Readers {
 public:
  Readers(Graph& graph, Costs& costs)
      : graph_(graph),
        costs_(costs),
        ops_(NumberedOps(graph)),
        there_(ops_.size()),
        begin_(ops_.size()),
        at_(ops_.size()) {}

  void Run() {
    FollowTime();
    // Until another microbatch begins: what each holds is not to add up.
    size_t end = ops_.size(), begin = end;
    int microbatch = -1;
    for (size_t i = ops_.size(); i-- > 0;) {
      if (ops_[i]->microbatch >= 0) {
        if (ops_[i]->microbatch != microbatch) end = begin;
        microbatch = ops_[i]->microbatch;
        begin = i;
      }
      at_[i] = PlaceOf(i, end);
    }
    Reorder(graph_, ops_, [&](size_t i) { return std::pair(at_[i], at_[i] == i); });
  }

 private:
  // When each begins, where cheap ones wait for nothing, and when what it makes is there.
  void FollowTime() {
    Timeline<Strings> line;
    for (size_t i = 0; i < ops_.size(); ++i) {
      const Op& op = *ops_[i];
      int64_t arrived = 0;
      for (const Value* v : op.operands) {
        if (v->producer) arrived = std::max(arrived, there_[v->producer->id]);
      }
      const bool waits = !IsCheap(*op.def) && !op.def->view;
      if (waits && !op.def->communicates) line.WaitUntil(arrived);
      begin_[i] = line.now();
      if (op.def->communicates) {
        there_[i] = line.Send(op.attrs.StringList("axes"), Travels(op, graph_.mesh));
      } else {
        line.Compute(costs_.Meanwhile(op));
        there_[i] = waits ? 0 : arrived;
      }
    }
  }

  size_t PlaceOf(size_t i, size_t end) const {
    const Op& op = *ops_[i];
    if (op.def->communicates || there_[i] <= begin_[i]) return i;
    auto at = static_cast<size_t>(std::lower_bound(begin_.begin(), begin_.end(), there_[i]) -
                                  begin_.begin());
    at = std::min(at, end);
    for (const Value* r : op.results) {
      for (const Op* user : r->users) at = std::min(at, at_[user->id]);
    }
    return std::max(at, i);
  }

  Graph& graph_;
  Costs& costs_;
  std::vector<Op*> ops_;
  std::vector<int64_t> there_, begin_;  // by Op::id: times
  std::vector<size_t> at_;              // the place before which it runs
};

}  // namespace

void Overlap(Graph& graph) {
  Costs costs(graph.mesh);
  Sums(graph).Run();
  Prefetch(graph, costs).Run();
  Readers(graph, costs).Run();
}

}  // namespace shardc
