#include "passes/find_layers.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "ir/hash_attributes.h"
#include "ir/op_def.h"
#include "passes/ancestors.h"
#include "passes/numbered_modules.h"
#include "passes/numbering.h"
#include "passes/terms_of_loss.h"

namespace shardc {
namespace {

class Finder {
 public:
  Finder(const Graph& graph, std::span<Op* const> all, const Op* end) : graph_(graph), all_(all) {
    const std::unordered_set<const Op*> aside = TermsAside(graph, all);
    for (const auto& input : graph.inputs()) Number(input.get());
    for (Op* op : all) {
      if (op == end) break;
      if (aside.contains(op)) continue;
      op->id = static_cast<int>(ops_.size());
      ops_.push_back(op);
      for (Value* r : op->results) Number(r);
    }
    stamps_.assign(ops_.size(), 0);
    taken_.assign(ops_.size(), false);
  }

  std::vector<Layer> Run(size_t least) {
    FindPostDominators();
    FindSegments();
    std::vector<Stretch> stretches;
    for (Repeat best = Best(); best.count > 0; best = Best()) Take(best, stretches);
    stretches = ByModules(stretches);
    if (stretches.size() < least) {
      if (std::vector<Stretch> parts = Parts(); parts.size() > stretches.size()) stretches = parts;
    }
    std::vector<Layer> layers;
    for (const Stretch& s : stretches) layers.push_back(LayerOf(s));
    std::sort(layers.begin(), layers.end(),
              [](const Layer& a, const Layer& b) { return a.ops.back()->id < b.ops.back()->id; });
    return layers;
  }

 private:
  static constexpr int kUnreached = -2, kExit = -1;
  enum : size_t { kIn, kShape, kOp, kResult };

  void Number(Value* v) {
    v->id = static_cast<int>(values_.size());
    values_.push_back(v);
  }

  bool Known(const Op* op) const {
    return op->id >= 0 && static_cast<size_t>(op->id) < ops_.size() && ops_[op->id] == op;
  }
  bool Known(const Value* v) const {
    return v->id >= 0 && static_cast<size_t>(v->id) < values_.size() && values_[v->id] == v;
  }

  // The output behind most ops, one after the other: others leave a model on the way, as the keys
  // and values for a cache do. Null where none is known.
  const Value* LastOutput() const {
    std::vector<int> length(values_.size());
    for (const Op* op : ops_) {
      int longest = 0;
      for (const Value* v : op->operands)
        if (Known(v)) longest = std::max(longest, length[v->id]);
      for (const Value* r : op->results) length[r->id] = longest + 1;
    }
    const Value* last = nullptr;
    for (const Output& o : graph_.outputs) {
      auto of = [&](const Value* v) { return length[v->id]; };
      if (Known(o.value) && (!last || of(o.value) > of(last))) last = o.value;
    }
    return last;
  }

  // next_[v]: the first value that every way from v to the loss goes through, or to the last
  // output of a model without one.
  void FindPostDominators() {
    next_.assign(values_.size(), kUnreached);
    Ancestors nexts(values_.size());
    const Value* loss = graph_.FindOutput("loss");
    // A loss that is made in pieces (Chunk) comes after the first op of the backward: the forward
    // ends at what it is made of.
    std::vector<const Value*> open = {loss ? loss : LastOutput()};
    std::unordered_set<const Value*> seen;
    while (!open.empty()) {
      const Value* v = open.back();
      open.pop_back();
      if (!v || !seen.insert(v).second) continue;
      if (Known(v)) {
        next_[v->id] = nexts.root();
      } else if (v->producer) {
        open.insert(open.end(), v->producer->operands.begin(), v->producer->operands.end());
      }
    }
    for (const Op* op : ops_ | std::views::reverse) {
      for (const Value* r : op->results) {
        if (next_[r->id] == kUnreached) continue;
        nexts.Add(r->id, next_[r->id]);
        for (const Value* v : op->operands) {
          if (!Known(v)) continue;
          int& before = next_[v->id];
          before = before == kUnreached ? r->id : nexts.Meet(before, r->id);
        }
      }
    }
    std::ranges::replace(next_, nexts.root(), kExit);
  }

  // --- segments: what lies between a value and its next

  struct Segment {
    int next = kExit;    // kExit: there is none
    size_t kind = 0;     // equal for equal segments
    bool taken = false;  // one of its ops is in a layer already
    // From it to the end of the way: ops, and segments with one that is not cheap.
    size_t ops_ahead = 0, dear_ahead = 0;
  };

  void FindSegments() {
    std::vector<bool> from_input(values_.size());
    for (size_t i = 0; i < values_.size(); ++i) {
      const Op* op = values_[i]->producer;
      from_input[i] = !op || std::any_of(op->operands.begin(), op->operands.end(),
                                         [&](Value* v) { return Known(v) && from_input[v->id]; });
    }
    for (const Op* op : ops_) labels_.push_back(LabelOf(*op));
    for (const Value* v : values_) shapes_.push_back(ShapeOf(*v));
    kinds_.resize(values_.size());
    segments_.resize(values_.size());
    for (size_t i = values_.size(); i-- > 0;) {
      if (!from_input[i] || next_[i] < 0) continue;
      // A value that is only moved counts where it arrives.
      int next = next_[i];
      while (MovedTo(next) >= 0) next = MovedTo(next);
      if (MovedTo(static_cast<int>(i)) >= 0) continue;
      Segment& s = segments_[i];
      s.next = next;
      Value *in = values_[i], *out = values_[next];
      std::vector<Op*> ops = Between(in, out);
      const bool dear = std::any_of(ops.begin(), ops.end(), [](const Op* op) {
        return !IsCheap(*op->def) && !OnlyMoves(*op);
      });
      s.ops_ahead = ops.size() + At(next).ops_ahead;
      s.dear_ahead = dear + At(next).dear_ahead;
      // In order, so that what an op reads is known: a segment may be as long as the graph.
      for (const Op* op : ops) {
        for (const Value* r : op->results) kinds_[r->id] = KindMadeBy(*op, *r, in);
      }
      s.kind = kinds_[next];
    }
  }

  // The next value, if it is the same one elsewhere; or -1.
  int MovedTo(int v) const {
    int next = next_[v];
    if (next < 0) return -1;
    const Value *from = values_[v], *to = values_[next];
    bool moved = OnlyMoves(*to->producer) && to->producer->operands[to->index] == from;
    return moved ? next : -1;
  }

  // Ops that depend on `in`, up to the producer of `out`, in order. Leaves their stamps.
  std::vector<Op*> Between(Value* in, Value* out) {
    std::vector<Op*> ops;
    std::vector<Value*> open = {in};
    ++stamp_;
    while (!open.empty()) {
      Value* v = open.back();
      open.pop_back();
      if (v == out) continue;
      for (Op* user : v->users) {
        if (!Known(user) || stamps_[user->id] == stamp_) continue;
        stamps_[user->id] = stamp_;
        ops.push_back(user);
        open.insert(open.end(), user->results.begin(), user->results.end());
      }
    }
    std::sort(ops.begin(), ops.end(), [](const Op* a, const Op* b) { return a->id < b->id; });
    return ops;
  }

  // A number for the expression that gives `result` from `in`, over the ops just stamped. Of what
  // else these read only the shape counts.
  size_t KindMadeBy(const Op& op, const Value& result, const Value* in) {
    auto kind = [&](const Value* v) {
      if (v == in) return NumberOf({kIn});
      if (!Known(v)) return ShapeOf(*v);
      const Op* maker = v->producer;
      const bool within = maker && Known(maker) && stamps_[maker->id] == stamp_;
      return within ? kinds_[v->id] : shapes_[v->id];
    };
    if (OnlyMoves(op)) return kind(op.operands[result.index]);
    std::vector<size_t> what = {kResult, labels_[op.id], static_cast<size_t>(result.index),
                                shapes_[result.id]};
    for (const Value* operand : op.operands) what.push_back(kind(operand));
    return NumberOf(what);
  }

  // Numbers what differs: its first number says what it is.
  size_t NumberOf(const std::vector<size_t>& what) {
    return numbers_.try_emplace(what, numbers_.size()).first->second;
  }

  size_t ShapeOf(const Value& v) {
    std::vector<size_t> what = {kShape};
    what.insert(what.end(), v.type.shape.begin(), v.type.shape.end());
    return NumberOf(what);
  }

  size_t LabelOf(const Op& op) {
    return NumberOf({kOp, reinterpret_cast<size_t>(op.def), AttributesOf(op)});
  }

  // Numbers attributes by value. What is drawn is never the same in two layers.
  size_t AttributesOf(const Op& op) {
    Attributes attrs = op.attrs;
    if (IsRandom(op)) attrs.Erase("stream");
    return attributes_.try_emplace(std::move(attrs), attributes_.size()).first->second;
  }

  // --- runs of equal segments

  struct Repeat {
    int start = -1;
    size_t period = 0, count = 0;
    size_t ops = 0;  // in all of it
  };

  const Segment& At(int v) const { return segments_[v]; }
  bool Free(int v) const { return v >= 0 && At(v).next >= 0 && !At(v).taken; }

  Repeat Best() const {
    constexpr size_t kLongest = 128;  // segments of a layer
    Repeat best;
    // By value: how many segments from it on equal those `period` further on, the value there, or
    // -1, and where the last whole period of the run that begins with it ends, and the run.
    std::vector<size_t> equal(values_.size());
    std::vector<int> ahead(values_.size()), whole(values_.size()), end(values_.size());
    for (size_t i = 0; i < ahead.size(); ++i) ahead[i] = static_cast<int>(i);
    for (size_t period = 1; period <= kLongest; ++period) {
      // Later values come first: the next of each is known.
      for (size_t i = values_.size(); i-- > 0;) {
        equal[i] = 0;
        if (ahead[i] >= 0) ahead[i] = Free(ahead[i]) ? At(ahead[i]).next : kExit;
        whole[i] = ahead[i];
        auto v = static_cast<int>(i);
        if (!Free(v) || !Free(ahead[i]) || At(v).kind != At(ahead[i]).kind) continue;
        const auto next = static_cast<size_t>(At(v).next);
        equal[i] = 1 + equal[next];
        end[i] = equal[next] > 0 ? end[next] : At(ahead[i]).next;
        if (equal[i] < period) continue;
        whole[i] = whole[ahead[i]];
        if (OpsBetween(v, end[i]) <= best.ops) continue;
        Consider({v, period, (equal[i] + period) / period, 0}, whole[i], end[i], best);
      }
    }
    return best;
  }

  // A run of segments up to `end`, of which the periods end at `whole`, may be divided from its
  // first segment on, or a few later.
  void Consider(Repeat run, int whole, int end, Repeat& best) const {
    auto bytes = [&](int v) { return LocalBytes(values_[v]->type, graph_.mesh); };
    int last = whole;
    for (int at = run.start; whole != end; whole = At(whole).next) {
      at = At(at).next;
      if (bytes(at) >= bytes(run.start)) continue;
      run.start = at;
      last = At(whole).next;
    }
    run.ops = OpsBetween(run.start, last);
    const bool dear = At(run.start).dear_ahead > At(last).dear_ahead;
    if (dear && run.ops > best.ops) best = run;
  }

  // Where one is some segments before the other.
  size_t OpsBetween(int from, int to) const { return At(from).ops_ahead - At(to).ops_ahead; }

  // --- layers

  struct Stretch {
    int start = -1;
    size_t segments = 0;
  };

  int EndOf(const Stretch& s) const {
    int at = s.start;
    for (size_t i = 0; i < s.segments; ++i) at = At(at).next;
    return at;
  }

  Layer LayerOf(const Stretch& s) {
    Layer layer{.in = values_[s.start], .out = values_[EndOf(s)], .ops = {}};
    int at = s.start;
    for (size_t i = 0; i < s.segments; ++i, at = At(at).next) {
      for (Op* op : Between(values_[at], values_[At(at).next])) layer.ops.push_back(op);
    }
    return layer;
  }

  void Take(const Repeat& run, std::vector<Stretch>& layers) {
    Stretch s{run.start, run.period};
    for (size_t i = 0; i < run.count; ++i, s.start = EndOf(s)) Take(s, layers);
    UpdateTaken();
  }

  void Take(const Stretch& s, std::vector<Stretch>& layers) {
    layers.push_back(s);
    for (const Op* op : LayerOf(s).ops) taken_[op->id] = true;
  }

  void UpdateTaken() {
    for (size_t i = 0; i < values_.size(); ++i) {
      Segment& s = segments_[i];
      if (s.next < 0 || s.taken) continue;
      for (const Op* op : Between(values_[i], values_[s.next])) {
        s.taken = s.taken || taken_[op->id];
      }
    }
  }

  // On a way that has more modules of lists than layers that repeat these are the layers: several
  // of them may repeat as one, or some do not. Those beside what repeats are layers, too.
  std::vector<Stretch> ByModules(const std::vector<Stretch>& repeated) {
    std::map<int, Stretch> starting;
    for (const Stretch& s : repeated) starting[s.start] = s;
    std::vector<Stretch> layers;
    for (const Way& way : Ways()) {
      std::vector<Stretch> own;
      for (int v : way) {
        if (auto it = starting.find(v); it != starting.end()) own.push_back(it->second);
      }
      size_t longest = 0;
      std::vector<Stretch> modules;
      for (const NumberedStretch& m : ModulesOn(way)) {
        longest = std::max(longest, m.members);
        modules.push_back({way[m.from], m.to - m.from});
      }
      if (longest > own.size()) {
        Release(own);
        TakeFree(modules, layers);
        TakeFree(own, layers);
      } else {
        layers.insert(layers.end(), own.begin(), own.end());
        TakeFree(modules, layers);
      }
    }
    return layers;
  }

  void Release(const std::vector<Stretch>& layers) {
    if (layers.empty()) return;
    for (const Stretch& s : layers) {
      for (const Op* op : LayerOf(s).ops) taken_[op->id] = false;
    }
    for (Segment& s : segments_) s.taken = false;
    UpdateTaken();
  }

  void TakeFree(const std::vector<Stretch>& stretches, std::vector<Stretch>& layers) {
    const size_t before = layers.size();
    for (const Stretch& s : stretches) {
      int at = s.start;
      size_t free = 0;
      while (free < s.segments && Free(at)) ++free, at = At(at).next;
      if (free == s.segments) Take(s, layers);
    }
    if (layers.size() > before) UpdateTaken();
  }

  // The shortest stretches that give a tensor of the shape of what they take.
  std::vector<Stretch> Parts() {
    taken_.assign(ops_.size(), false);
    for (Segment& s : segments_) s.taken = false;
    std::vector<Stretch> parts;
    for (const Way& way : Ways()) {
      std::vector<Stretch> on_way;
      for (size_t to = 1, end = 0; to <= way.size(); ++to) {
        for (size_t from = to; from-- > end;) {
          if (!Fits(way, from, to)) continue;
          on_way.push_back({way[from], to - from});
          end = to;
        }
      }
      TakeFree(on_way, parts);
    }
    return parts;
  }

  using Way = std::vector<int>;

  // From each value to where it meets a way that is longer, the longest first.
  std::vector<Way> Ways() const {
    std::vector<int> starts(values_.size());
    std::iota(starts.begin(), starts.end(), 0);
    std::ranges::stable_sort(starts, std::greater(), [&](int v) { return At(v).ops_ahead; });
    std::vector<Way> ways;
    std::vector<bool> seen(values_.size());
    for (int start : starts) {
      Way way;
      for (int v = start; v >= 0 && At(v).next >= 0 && !seen[v]; v = At(v).next) {
        seen[v] = true;
        way.push_back(v);
      }
      if (!way.empty()) ways.push_back(std::move(way));
    }
    return ways;
  }

  // Whether the segments [from, to) give a tensor of the shape that they take, and are not cheap.
  bool Fits(const Way& way, size_t from, size_t to) const {
    const int in = way[from], out = At(way[to - 1]).next;
    return values_[in]->type.shape == values_[out]->type.shape &&
           IsFloat(values_[in]->type.dtype) && At(in).dear_ahead > At(out).dear_ahead;
  }

  // The innermost module that more than half of the ops are in: of some an exporter says nothing.
  static std::string ModuleOf(const std::vector<Op*>& ops) {
    std::string_view module;
    while (true) {
      // The site up to one name more, for the ops in the module.
      auto inner = [&](const Op* op) -> std::string_view {
        const std::string_view site = op->site;
        if (site.size() <= module.size() || !site.starts_with(module)) return {};
        if (!module.empty() && site[module.size()] != '.') return {};
        return site.substr(0, site.find('.', module.empty() ? 0 : module.size() + 1));
      };
      std::string_view most;  // if one is that of more than half
      int lead = 0;
      for (const Op* op : ops) {
        const std::string_view path = inner(op);
        if (path.empty()) continue;
        if (lead == 0) most = path;
        lead += path == most ? 1 : -1;
      }
      const auto count =
          std::ranges::count_if(ops, [&](const Op* op) { return inner(op) == most; });
      if (most.empty() || 2 * static_cast<size_t>(count) <= ops.size()) return std::string(module);
      module = most;
    }
  }

  std::vector<NumberedStretch> ModulesOn(const Way& way) {
    if (way.size() < 2) return {};
    std::vector<std::string> modules;
    for (int v : way) modules.push_back(ModuleOf(Between(values_[v], values_[At(v).next])));
    return NumberedStretches(modules, [&](size_t from, size_t to) { return Fits(way, from, to); });
  }

  const Graph& graph_;
  std::span<Op* const> all_;
  std::vector<Op*> ops_;           // by Op::id
  std::vector<Value*> values_;     // by Value::id
  std::vector<int> next_;          // by Value::id
  std::vector<Segment> segments_;  // by Value::id: from there on
  std::vector<int> stamps_;        // by Op::id: the segment it was last seen in
  int stamp_ = 0;
  std::vector<bool> taken_;     // by Op::id
  std::vector<size_t> labels_;  // by Op::id: equal for those that do the same
  std::vector<size_t> shapes_;  // by Value::id
  std::vector<size_t> kinds_;   // by Value::id: in the segment last seen
  std::map<std::vector<size_t>, size_t> numbers_;
  struct HashOfAttributes {
    size_t operator()(const Attributes& attrs) const { return HashOf(attrs); }
  };
  std::unordered_map<Attributes, size_t, HashOfAttributes> attributes_;
};

}  // namespace

std::vector<Layer> FindLayers(const Graph& graph, std::span<Op* const> ops, const Op* end) {
  return Finder(graph, ops, end).Run(0);
}

std::vector<Layer> FindLayers(const Graph& graph, size_t least) {
  return Finder(graph, OpsOf(graph), nullptr).Run(least);
}

}  // namespace shardc
