#include "passes/recompute.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <vector>

#include "ir/diagnostic.h"
#include "ir/op_def.h"
#include "passes/find_layers.h"
#include "passes/numbering.h"

namespace shardc {
namespace {

// Bytes moved to make a value again, at most, for each byte that need not be kept. A norm and a
// cast to bf16 after it take 7.
constexpr int64_t kMaxTraffic = 16;

class Recomputation {
 public:
  // The layers of each microbatch are before `end`, where the backward begins.
  Recomputation(Graph& graph, const std::vector<std::vector<Layer>>& microbatches, const Op* end,
                bool cheap, bool gathers)
      : graph_(graph), cheap_(cheap), gathers_(gathers) {
    auto number = [&](Value* v) {
      v->id = static_cast<int>(values_.size());
      values_.push_back({v});
      largest_ = std::max(largest_, LocalBytes(v->type, graph_.mesh));
    };
    for (const auto& input : graph.inputs()) number(input.get());
    bool forward = true;
    for (const auto& op : graph.ops()) {
      forward = forward && op.get() != end;
      if (!forward) {
        late_.push_back(op.get());
        for (Value* r : op->results) r->id = -1;
        continue;
      }
      op->id = static_cast<int>(forward_.size());
      forward_.push_back(op.get());
      for (Value* r : op->results) number(r);
    }
    layer_.assign(forward_.size(), -1);
    FindRoots();
    FindNeeds();
    for (const Op* op : late_) {
      if (const Op* before = GatheredBefore(op)) Root(before->result()).gathered_again = true;
    }
    for (const std::vector<Layer>& layers : microbatches) {
      num_layers_ = layers.size();
      for (size_t i = 0; i < layers.size(); ++i) {
        for (const Value* v : {layers[i].in, layers[i].out}) Root(v).pinned = true;
        for (const Op* op : layers[i].ops) {
          layer_[op->id] = static_cast<int>(i);
        }
      }
    }
  }

  void Run() {
    for (Op* op : forward_) Decide(op);
    for (Op* op : late_) {
      ShareGathered(op);
      for (size_t i = 0; i < op->operands.size(); ++i) {
        Value* v = op->operands[i];
        if (Made(v)) graph_.SetOperand(op, static_cast<int>(i), Copy(v, op));
      }
    }
    graph_.EraseDead();
  }

 private:
  enum class Fate : uint8_t {
    kKept,     // lives until the backward has used it
    kAgain,    // the backward makes its own
    kOnTheWay  // not needed itself, but cheap to make for another
  };

  struct Info {
    Value* value = nullptr;
    Value* root = nullptr;        // whose memory it is
    bool needed = false;          // of roots: an op of the backward reads it
    bool pinned = false;          // of roots: an output, or between layers
    bool from_input = false;      // depends on an input of the graph
    bool gathered_again = false;  // of roots: a weight that an op of the backward gathers
    Fate fate = Fate::kKept;      // of roots
    int64_t traffic = 0;          // kOnTheWay: bytes moved to make it
    Value* copy = nullptr;
  };

  bool Forward(const Value* v) const { return v->id >= 0; }
  Info& At(const Value* v) { return values_[v->id]; }
  Info& Root(const Value* v) { return At(At(v).root); }
  // Whether the backward makes the value itself, if it needs it.
  bool Made(const Value* v) { return Forward(v) && Root(v).fate != Fate::kKept; }

  void FindRoots() {
    for (const auto& input : graph_.inputs()) {
      At(input.get()).root = input.get();
      At(input.get()).from_input = true;
    }
    for (const Op* op : forward_) {
      bool view = IsView(*op, graph_.mesh), from_input = false;
      for (const Value* v : op->operands) from_input = from_input || At(v).from_input;
      for (Value* r : op->results) {
        At(r).root = view ? At(op->operands[0]).root : r;
        At(r).from_input = from_input;
      }
    }
  }

  void FindNeeds() {
    for (const Op* op : late_) {
      for (const Value* v : op->operands) {
        if (Forward(v)) Root(v).needed = true;
      }
    }
    for (const Output& o : graph_.outputs) {
      if (Forward(o.value)) Root(o.value).pinned = true;
    }
  }

  // A weight that is gathered for the forward alone: the backward has its own (ZeRO 3).
  bool GathersForForward(const Op* op) {
    return op->def->communicates && op->operands.size() == 1 && !At(op->result()).from_input &&
           !Root(op->result()).needed && !Root(op->result()).pinned;
  }

  // The op of the forward that gathers the same weight for the forward alone, or null.
  const Op* GatheredBefore(const Op* late) {
    if (!late->def->communicates || late->operands.size() != 1) return nullptr;
    if (!Forward(late->operands[0])) return nullptr;
    for (const Op* user : late->operands[0]->users) {
      if (user->def != late->def || !Forward(user->result())) continue;
      if (user->microbatch != late->microbatch) continue;
      if (user->out() == late->out() && GathersForForward(user)) return user;
    }
    return nullptr;
  }

  // The backward gathers a weight once, for its own ops and for what is made again.
  void ShareGathered(Op* op) {
    const Op* before = GatheredBefore(op);
    if (!before) return;
    Info& info = At(before->result());
    if (info.copy) {
      graph_.ReplaceAllUses(op->result(), info.copy);
    } else {
      info.copy = op->result();
    }
  }

  void Decide(const Op* op) {
    if (op->def->is_state || op->def->side_effect || op->operands.empty()) return;
    if (IsView(*op, graph_.mesh)) return;
    if (GathersForForward(op)) {
      Root(op->result()).fate = Fate::kAgain;
    } else if (layer_[op->id] >= 0) {
      Set(op, Fate::kAgain, 0);
    } else if (const auto price = PriceOf(*op)) {
      DecideByPrice(op, *price);
    }
  }

  // What it takes to make an op's results again.
  struct Price {
    int64_t traffic = 0;
    Value* part = nullptr;  // of what is gathered, where it does not live anyway
  };

  // Nothing: it costs too much, or what it is made of is not there.
  std::optional<Price> PriceOf(const Op& op) {
    const bool gather = gathers_ && Gathers(op);
    if (!gather && !(cheap_ && IsCheap(*op.def))) return std::nullopt;
    Price price{CostOnRank(op, graph_.mesh).bytes};
    for (const Value* v : op.operands) {
      const Info& root = Root(v);
      // Nothing travels for what costs little.
      if (v->producer && GathersForForward(v->producer) && !root.gathered_again) {
        return std::nullopt;
      }
      if (root.needed || root.pinned || root.fate == Fate::kAgain || Persistent(root)) continue;
      if (root.fate == Fate::kOnTheWay) {
        price.traffic += root.traffic;
      } else if (gather) {
        price.part = root.value;
      } else {
        return std::nullopt;
      }
    }
    if (price.traffic > kMaxTraffic * largest_) return std::nullopt;
    return price;
  }

  void DecideByPrice(const Op* op, const Price& price) {
    int64_t freed = price.part ? -LocalBytes(price.part->type, graph_.mesh) : 0;
    for (const Value* r : op->results) {
      if (At(r).needed && !At(r).pinned) freed += LocalBytes(r->type, graph_.mesh);
    }
    const bool gains =
        freed > 0 && price.traffic <= kMaxTraffic * freed && At(op->result()).from_input;
    if (!gains && op->def->communicates) return;
    if (price.part) At(price.part).needed = true;
    Set(op, gains ? Fate::kAgain : Fate::kOnTheWay, price.traffic);
  }

  void Set(const Op* op, Fate fate, int64_t traffic) {
    for (const Value* r : op->results) {
      Info& info = At(r);
      if (info.pinned || (fate == Fate::kOnTheWay && info.needed)) continue;
      info.fate = fate;
      info.traffic = traffic;
    }
  }

  // A collective that makes more of what a rank has.
  bool Gathers(const Op& op) const {
    return op.def->communicates && op.operands.size() == 1 &&
           LocalBytes(op.out(), graph_.mesh) > LocalBytes(op.in(0), graph_.mesh);
  }

  static bool Persistent(const Info& root) {
    const Op* producer = root.value->producer;
    return !producer || producer->def->is_state || producer->operands.empty();
  }

  // The copy of a value that is not kept. What it is made from is copied with it, before `user`, in
  // the order of the forward.
  Value* Copy(Value* value, Op* user) {
    std::vector<Value*> open = {value};
    std::vector<const Op*> ops;
    std::vector<bool>& seen = seen_;
    seen.resize(forward_.size());
    while (!open.empty()) {
      Value* v = open.back();
      open.pop_back();
      if (!Made(v) || At(v).copy) continue;
      const Op* op = v->producer;
      if (seen[op->id]) continue;
      seen[op->id] = true;
      ops.push_back(op);
      open.insert(open.end(), op->operands.begin(), op->operands.end());
    }
    std::sort(ops.begin(), ops.end(), [](const Op* a, const Op* b) { return a->id < b->id; });
    for (const Op* op : ops) CopyOp(*op, user);
    return At(value).copy;
  }

  void CopyOp(const Op& op, Op* before) {
    std::vector<Value*> operands;
    std::vector<TensorType> types;
    for (Value* v : op.operands) operands.push_back(Made(v) ? At(v).copy : v);
    for (const Value* r : op.results) types.push_back(r->type);
    Op* copy = graph_.AddOp(*op.def, std::move(operands), std::move(types), op.attrs, before);
    copy->phase = Phase::kBackward;
    copy->BelongWith(op);
    if (op.def->communicates) {
      Strings why = WhyOf(op);
      const int layer = layer_[op.id];
      why.push_back(layer < 0 ? At(op.result()).from_input
                                    ? "gathered again for the backward (--recompute gathers)"
                                    : "gathered again for what the backward computes again"
                              : StrCat("computed again for the backward of layer ", layer + 1,
                                       " of ", num_layers_,
                                       ", of which only the input is kept (--recompute full)"));
      copy->attrs.Set("why", std::move(why));
    }
    for (size_t i = 0; i < op.results.size(); ++i) {
      copy->results[i]->provenance = op.results[i]->provenance;
      copy->results[i]->id = -1;
      At(op.results[i]).copy = copy->results[i];
    }
  }

  Graph& graph_;
  const bool cheap_, gathers_;
  std::vector<Op*> forward_;  // by Op::id
  std::vector<Op*> late_;     // from the first op of the backward on
  std::vector<Info> values_;  // by Value::id: inputs and values of the forward
  std::vector<int> layer_;    // by Op::id, or -1
  size_t num_layers_ = 0;     // of a microbatch
  int64_t largest_ = 0;       // bytes of a value of the forward
  std::vector<bool> seen_;    // by Op::id: copied
};

// "selective,gathers".
std::set<std::string> KindsOf(const std::string& kinds) {
  std::set<std::string> asked;
  std::istringstream list(kinds + ",");
  for (std::string kind; std::getline(list, kind, ',');) {
    constexpr std::string_view kKinds[] = {"none", "selective", "gathers", "full"};
    if (std::ranges::find(kKinds, kind) == std::end(kKinds)) {
      throw Diagnostic("E6109", ExitCode::kUsage, "--recompute",
                       StrCat("'", kind, "' is not known"),
                       "use none, selective, gathers or full, or two: selective,gathers");
    }
    asked.insert(kind);
  }
  if (asked.size() > 1 && asked.contains("none")) {
    throw Diagnostic("E6109", ExitCode::kUsage, "--recompute " + kinds,
                     "'none' stands beside what is to be made again", "give either");
  }
  return asked;
}

// The layers of each microbatch, whose ops are before `end`.
std::vector<std::vector<Layer>> LayersOf(const Graph& graph, const Op* end) {
  std::map<int, std::vector<Op*>> microbatches;
  for (const auto& op : graph.ops()) {
    if (op->microbatch >= 0) microbatches[op->microbatch];
  }
  if (microbatches.empty()) microbatches[-1];
  for (const auto& op : graph.ops()) {
    const bool ends = op.get() == end;
    if (op->phase != Phase::kForward && !ends) continue;
    if (op->microbatch >= 0 && !ends) {
      microbatches[op->microbatch].push_back(op.get());
    } else {
      for (auto& [microbatch, ops] : microbatches) ops.push_back(op.get());
    }
  }
  std::vector<std::vector<Layer>> layers;
  for (const auto& [microbatch, ops] : microbatches) layers.push_back(FindLayers(graph, ops, end));
  return layers;
}

}  // namespace

void Recompute(Graph& graph, const std::string& kinds) {
  const std::set<std::string> asked = KindsOf(kinds);
  const bool full = asked.contains("full"), gathers = asked.contains("gathers");
  const bool cheap = full || asked.contains("selective");
  if (!cheap && !gathers) return;
  auto end = std::find_if(graph.ops().begin(), graph.ops().end(),
                          [](const auto& op) { return op->phase != Phase::kForward; });
  if (end == graph.ops().end()) return;
  std::vector<std::vector<Layer>> layers;
  if (full) {
    layers = LayersOf(graph, end->get());
    const std::vector<Layer>& first = layers[0];
    graph.notes.push_back(
        first.empty() ? "--recompute full: no repeated layers are found; what costs little is "
                        "computed again, as with selective"
                      : StrCat("--recompute full: keeps the inputs of ", first.size(),
                               " layers, the first of ", first[0].ops.size(), " ops"));
  }
  Recomputation(graph, layers, end->get(), cheap, gathers).Run();
}

}  // namespace shardc
