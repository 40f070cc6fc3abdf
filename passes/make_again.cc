#include "passes/make_again.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "ir/op_def.h"
#include "passes/live_bytes.h"
#include "passes/numbering.h"
#include "passes/reorder.h"

namespace shardc {
namespace {

class Again {
 public:
  explicit Again(Graph& graph)
      : graph_(graph),
        memory_(graph),
        live_(memory_.Profile([](const auto&) { return true; })),
        ops_(OpsOf(graph)) {
    for (size_t i = 0; i < ops_.size(); ++i) places_.push_back(kPlaces * static_cast<int64_t>(i));
    const std::vector<int> microbatches = MicrobatchesUnderWay(graph);
    for (size_t i = 0; i < microbatches.size(); ++i) {
      auto [it, first] = spans_.try_emplace(microbatches[i], i, i);
      it->second.second = i;
    }
  }

  void Run() {
    for (size_t i = 0; i < live_.size(); ++i) {
      const Op& op = *ops_[i];
      const bool moved = places_[i] % kPlaces != 0;
      if (!op.def->makes_again || op.phase != Phase::kBackward || moved) continue;
      if (auto again = op.def->makes_again(op)) Consider(*ops_[i], *again);
    }
    Reorder(graph_, ops_, [&](int id) { return places_[id]; });
    graph_.EraseDead();
  }

 private:
  // Behind an op, before the next one: copies of views, then readers that were before it.
  static constexpr int64_t kPlaces = 4, kCopies = 1, kReaders = 2;

  // What is made again, and what lives until the backward of it: a cast of it, views of these.
  struct Kept {
    std::vector<Value*> values;  // each behind what it is made of
    std::vector<Op*> readers;    // those of the backward
    DType dtype = DType::kF32;   // what they read
    int slot = -1;               // the memory of what they read
    int until = 0;               // its last reader of the forward
  };

  bool Before(const Op* op, const Op* other) const { return places_[op->id] < places_[other->id]; }

  // Null readers: nothing is kept, or not only for them.
  Kept KeptOf(Value* y) const {
    Kept kept;
    kept.values = {y};
    const Value* cast = nullptr;
    for (size_t i = 0; i < kept.values.size(); ++i) {
      Value* v = kept.values[i];
      if (graph_.IsOutput(v)) return {};
      for (Op* user : v->users) {
        if (user->phase != Phase::kForward) {
          if (kept.readers.empty()) {
            kept.dtype = v->type.dtype;
            kept.slot = v->id;
          }
          if (v->type.dtype != kept.dtype || v->id != kept.slot) return {};
          kept.readers.push_back(user);
          continue;
        }
        kept.until = std::max(kept.until, user->id);
        const bool narrows = user->name() == "cast" && !cast && v->type.dtype == DType::kF32 &&
                             IsHalf(user->out().dtype);
        if (narrows) cast = user->result();
        if (narrows || IsView(*user, graph_.mesh)) kept.values.push_back(user->result());
      }
    }
    return kept;
  }

  // The readers, and what reads their results, before `gradient`; none where that is one of them.
  std::vector<Op*> MovedBehind(const Op& gradient, const std::vector<Op*>& readers) const {
    std::vector<Op*> moved;
    std::set<const Op*> seen;
    auto add = [&](Op* op) {
      if ((op == &gradient || Before(op, &gradient)) && seen.insert(op).second) moved.push_back(op);
    };
    for (Op* reader : readers) add(reader);
    for (size_t i = 0; i < moved.size(); ++i) {
      const bool copy = moved[i]->id >= static_cast<int>(live_.size());
      // Those that go together keep their order, and what this one makes is read by earlier ones.
      if (copy || moved[i] == &gradient || applied_.contains(moved[i])) return {};
      for (const Value* r : moved[i]->results) {
        for (Op* user : r->users) add(user);
      }
    }
    return moved;
  }

  // Whether `gradient` waits for a collective that a reader need not wait for.
  bool WaitsForTravel(const Op& gradient, const std::vector<Op*>& readers,
                      const std::vector<Value*>& values) const {
    int ready = gradient.id;
    for (const Op* reader : readers) {
      int at = 0;
      for (const Value* v : reader->operands) {
        if (v->producer && std::ranges::find(values, v) == values.end()) {
          at = std::max(at, v->producer->id);
        }
      }
      ready = std::min(ready, at);
    }
    std::vector<const Op*> open = {&gradient};
    std::set<const Op*> seen;
    while (!open.empty()) {
      const Op* op = open.back();
      open.pop_back();
      if (op->def->communicates) return true;
      for (const Value* v : op->operands) {
        if (v->producer && v->producer->id > ready && seen.insert(v->producer).second) {
          open.push_back(v->producer);
        }
      }
    }
    return false;
  }

  void Consider(Op& gradient, const MadeAgain& again) {
    const Kept kept = KeptOf(again.value);
    if (kept.readers.empty() || kept.slot < 0) return;
    for (const Op* reader : kept.readers) {
      if (reader->def->communicates || !reader->RunsWith(gradient)) return;
    }
    const std::vector<Op*> moved = MovedBehind(gradient, kept.readers);
    const bool behind = std::ranges::all_of(
        kept.readers, [&](const Op* reader) { return Before(&gradient, reader); });
    if (moved.empty() && !behind) return;
    if (WaitsForTravel(gradient, kept.readers, kept.values)) return;
    if (!LowersPeak(gradient, kept, moved)) return;
    for (const Op* op : moved) places_[op->id] = places_[gradient.id] + kReaders;
    Apply(gradient, again, kept);
  }

  // Notes in live_ what changes then.
  bool LowersPeak(const Op& gradient, const Kept& kept, const std::vector<Op*>& moved) {
    const LiveBytes::Slot& value = memory_.slots()[kept.slot];
    int last = 0;
    for (const Op* reader : kept.readers) last = std::max(last, reader->id);
    if (value.last > last) return false;  // something else is made in its place
    struct Change {
      int from, to;  // both included
      int64_t bytes;
    };
    std::vector<Change> changes = {{kept.until + 1, value.last, -value.bytes},
                                   {gradient.id, std::max(gradient.id, value.last), value.bytes}};
    std::set<int> later;
    for (const Op* op : moved) {
      for (const Value* v : op->operands) later.insert(v->id);
      for (const Value* r : op->results) later.insert(r->id);
    }
    later.erase(-1);
    later.erase(kept.slot);
    for (int id : later) {
      const LiveBytes::Slot& slot = memory_.slots()[id];
      if (std::ranges::find(moved, ops_[slot.first]) != moved.end()) {
        changes.push_back({slot.first, std::min(slot.last, gradient.id - 1), -slot.bytes});
      }
      changes.push_back({slot.last + 1, gradient.id, slot.bytes});
    }
    const auto [first, end] = SpanOf(gradient);
    auto peak = [&] { return *std::max_element(live_.begin() + first, live_.begin() + end); };
    auto apply = [&](int64_t sign) {
      for (const Change& c : changes) {
        for (int i = c.from; i <= c.to; ++i) live_[i] += sign * c.bytes;
      }
    };
    const int64_t before = peak();
    apply(1);
    if (peak() < before) return true;
    apply(-1);
    return false;
  }

  // The places of what runs for the op's microbatch.
  std::pair<int, int> SpanOf(const Op& op) const {
    if (op.microbatch < 0) return {0, static_cast<int>(live_.size())};
    const auto [first, last] = spans_.at(op.microbatch);
    return {static_cast<int>(first), static_cast<int>(last) + 1};
  }

  void Apply(Op& gradient, const MadeAgain& again, const Kept& kept) {
    Attributes attrs = gradient.attrs;
    attrs.Set(gradient.def->again, std::string(DTypeName(kept.dtype)));
    std::vector<TensorType> types;
    for (const Value* r : gradient.results) types.push_back(r->type);
    types.push_back(again.value->type);
    types.back().dtype = kept.dtype;
    Op* more = graph_.AddOp(*gradient.def, again.operands, std::move(types), std::move(attrs),
                            &gradient, gradient);
    for (Value* r : gradient.results) {
      Value* other = more->result(r->index);
      other->name = r->name;
      other->provenance = r->provenance;
      other->id = r->id;
      graph_.ReplaceAllUses(r, other);
    }
    more->id = gradient.id;
    ops_[more->id] = more;
    applied_.insert(more);
    std::map<const Value*, Value*> made = {{again.value, more->results.back()}};
    for (Value* v : kept.values) CopyTo(v, *more, kept, made);
    graph_.Erase(&gradient);
  }

  // v of what is made again, for its readers of the backward.
  void CopyTo(Value* v, const Op& gradient, const Kept& kept,
              std::map<const Value*, Value*>& made) {
    auto [it, fresh] = made.try_emplace(v, nullptr);
    if (fresh) {
      const Op& op = *v->producer;
      Value* from = made.at(op.operands[0]);
      if (op.name() == "cast") {
        it->second = from;
      } else {
        TensorType type = v->type;
        type.dtype = kept.dtype;
        Op* copy = graph_.AddOp(*op.def, {from}, {type}, op.attrs, nullptr, op);
        copy->phase = gradient.phase;
        copy->id = static_cast<int>(ops_.size());
        ops_.push_back(copy);
        places_.push_back(places_[gradient.id] + kCopies);
        it->second = copy->result();
      }
    }
    it->second->id = kept.slot;
    for (Op* reader : kept.readers) graph_.ReplaceUses(reader, v, it->second);
  }

  Graph& graph_;
  LiveBytes memory_;
  std::vector<int64_t> live_;                       // by Op::id, of those that were there
  std::vector<Op*> ops_;                            // by Op::id
  std::vector<int64_t> places_;                     // by Op::id
  std::set<const Op*> applied_;                     // gradients that make their value again
  std::map<int, std::pair<size_t, size_t>> spans_;  // by microbatch: the first and the last op
};

}  // namespace

void MakeAgain(Graph& graph) { Again(graph).Run(); }

}  // namespace shardc
