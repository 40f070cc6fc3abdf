#include "passes/place_stages.h"

#include <algorithm>
#include <map>
#include <set>

#include "ir/diagnostic.h"
#include "ir/op_def.h"
#include "passes/home_stages.h"
#include "passes/numbering.h"
#include "passes/order_stages.h"
#include "passes/schedule.h"
#include "passes/weights.h"

namespace shardc {
namespace {

// Not placed: each stage that reads them has its own.
bool IsEverywhere(const Op& op) { return op.def->is_state || op.name() == "constant"; }

class Placer {
 public:
  explicit Placer(Graph& graph) : graph_(graph), homes_(HomeStages(graph)), order_(OpsOf(graph)) {}

  void Run() {
    for (const Op* op : order_) {
      if (op->name() == "send_recv") throw PlacedAlready(*op);
    }
    SettleStages();
    FindShared();
    RepeatOps();
    MoveValues();
  }

 private:
  using Stages = std::set<int>;

  Stages& PlacesOf(const Op* op) { return places_[op->id]; }
  int HomeOf(const Op* op) const { return homes_[op->id]; }
  int64_t Bytes(const Value* v) const { return LocalBytes(v->type, graph_.mesh); }

  // States are where they are read, and so updated there; what that needs may read other states.
  // Those that nothing reads are on the first stage.
  void SettleStages() {
    SettleUntilStable();
    bool unread = false;
    for (const Op* op : order_) {
      if (op->name() != "update") continue;
      Stages& on = states_[op->attrs.String("name")];
      if (on.empty()) unread = on.insert(0).second;
    }
    if (unread) SettleUntilStable();
  }

  void SettleUntilStable() {
    size_t before = 0, now = 1;
    while (before != now) {
      places_.assign(order_.size(), {});
      for (auto it = order_.rbegin(); it != order_.rend(); ++it) PlacesOf(*it) = Settle(**it);
      before = std::exchange(now, 1);
      for (const auto& [name, stages] : states_) now += stages.size();
    }
  }

  Stages Settle(const Op& op) {
    if (op.name() == "update") return states_[op.attrs.String("name")];
    Stages wanted;
    for (const Value* r : op.results) {
      for (const Op* user : r->users) {
        const Stages& on = PlacesOf(user);
        wanted.insert(on.begin(), on.end());
      }
    }
    if (op.def->is_state) {
      states_[op.attrs.String("name")].insert(wanted.begin(), wanted.end());
      return wanted;
    }
    if (IsEverywhere(op)) return wanted;
    const int home = HomeOf(&op);
    if (home == kAnyStage) {
      if (wanted.empty()) wanted.insert(0);
      return wanted;
    }
    Stages places;
    bool sends = wanted.empty() || wanted.contains(home);
    for (int stage : wanted) {
      const bool repeat =
          stage != home && MayRepeat(op) && RepeatBytes(op, stage) < SentBytes(op, stage);
      if (repeat) places.insert(stage);
      sends = sends || (!repeat && stage != home);
    }
    for (const Value* r : op.results) sends = sends || graph_.IsOutput(r);
    if (sends) places.insert(home);
    return places;
  }

  static Diagnostic PlacedAlready(const Op& op) {
    return Diagnostic("E2123", ExitCode::kBadSpec, op.site,
                      "the graph has a send_recv: its stages were placed already",
                      "compile the model that the graph was made from");
  }

  int ValueHome(const Value* v) const { return v->producer ? HomeOf(v->producer) : kAnyStage; }

  static bool MayRepeat(const Op& op) {
    return !op.def->communicates && (op.stage < 0 || IsCheap(*op.def));
  }

  // What would have to come to the stage, or be held there, for the op to run there too.
  int64_t RepeatBytes(const Op& op, int stage, int depth = 0) {
    const auto [known, fresh] = repeat_bytes_.try_emplace({&op, stage}, 0);
    if (!fresh) return known->second;
    int64_t bytes = 0;
    for (const Value* v : op.operands) bytes += BytesToHave(v, stage, op, depth);
    return repeat_bytes_[{&op, stage}] = bytes;
  }

  // Of the value, or of what it is made of there. What others of the stage read comes anyway.
  int64_t BytesToHave(const Value* v, int stage, const Op& reader, int depth) {
    constexpr int kDeepest = 16;
    const int home = ValueHome(v);
    if (home == stage) return 0;
    if (home == kAnyStage && !(IsWeight(v) && v->type.rank() > 0)) return 0;
    const bool comes = std::any_of(v->users.begin(), v->users.end(), [&](const Op* user) {
      return user != &reader && HomeOf(user) == stage;
    });
    if (comes) return 0;
    const bool repeat = home != kAnyStage && depth < kDeepest && MayRepeat(*v->producer);
    return repeat ? std::min(Bytes(v), RepeatBytes(*v->producer, stage, depth + 1)) : Bytes(v);
  }

  int64_t SentBytes(const Op& op, int stage) {
    int64_t bytes = 0;
    for (const Value* r : op.results) {
      const bool read = std::any_of(r->users.begin(), r->users.end(),
                                    [&](const Op* user) { return PlacesOf(user).contains(stage); });
      if (read) bytes += Bytes(r);
    }
    return bytes;
  }

  // One op for each stage. The op itself is that of its home, or of the first.
  void RepeatOps() {
    for (Op* op : order_) {
      if (IsEverywhere(*op)) {
        op->stage = -1;
        continue;
      }
      const Stages& places = PlacesOf(op);
      SHARDC_CHECK(!places.empty(), op->name(), " at ", op->site, " is on no stage");
      const int home = places.contains(HomeOf(op)) ? HomeOf(op) : *places.begin();
      if (op->stage != home) op->virtual_stage = VirtualStageOn(home, *op);
      op->stage = home;
      for (const Value* r : op->results) made_[{r, op->stage}] = op->result(r->index);
      for (int stage : places) {
        if (stage == op->stage) continue;
        Op* copy = Repeat(*op, stage);
        for (const Value* r : op->results) made_[{r, stage}] = copy->result(r->index);
      }
    }
  }

  Op* Repeat(const Op& op, int stage) {
    std::vector<TensorType> types;
    for (const Value* r : op.results) types.push_back(r->type);
    Op* copy = graph_.AddOp(*op.def, op.operands, types, op.attrs, graph_.Next(&op), op);
    copy->stage = stage;
    copy->virtual_stage = VirtualStageOn(stage, op);
    for (size_t i = 0; i < op.results.size(); ++i) {
      copy->results[i]->provenance = op.results[i]->provenance;
    }
    return copy;
  }

  // Of an op that comes to the stage: the one that makes the last of its operands there, else that
  // which first reads its results. The backward goes through them in falling order.
  int VirtualStageOn(int stage, const Op& op) const {
    std::set<int> makers, readers;
    for (const Value* v : op.operands) {
      auto made = made_.find({v, stage});
      if (made != made_.end()) makers.insert(made->second->producer->virtual_stage);
    }
    for (const Value* r : op.results) {
      for (const Op* user : r->users) {
        if (HomeOf(user) == stage) readers.insert(user->virtual_stage);
      }
    }
    const bool backward = op.phase == Phase::kBackward;
    if (!makers.empty()) return backward ? *makers.begin() : *makers.rbegin();
    if (!readers.empty()) return backward ? *readers.rbegin() : *readers.begin();
    return 0;
  }

  // Every op reads what its own stage has.
  void MoveValues() {
    for (Op* op : OpsOf(graph_)) {
      if (op->stage < 0) continue;
      for (size_t i = 0; i < op->operands.size(); ++i) {
        Value* v = op->operands[i];
        if (!v->producer || v->producer->stage < 0 || v->producer->stage == op->stage) continue;
        graph_.SetOperand(op, static_cast<int>(i), On(v, op->stage, *op));
      }
    }
  }

  Value* On(Value* v, int stage, const Op& user) {
    auto [it, fresh] = made_.try_emplace({v, stage}, nullptr);
    if (fresh) it->second = Send(v, stage, user);
    return it->second;
  }

  bool IsShared(const std::string& state) const {
    auto it = states_.find(state);
    return it != states_.end() && it->second.size() > 1;
  }

  // What states on several stages are updated to, and their gradients.
  void FindShared() {
    for (const Op* op : order_) {
      if (op->name() != "update") continue;
      const std::string& state = op->attrs.String("name");
      if (IsShared(state)) shared_[op->operands[0]] = state;
    }
    for (const Output& o : graph_.outputs) {
      const std::string state(ParamOfGradient(o.name));
      if (IsShared(state)) shared_[o.value] = state;
    }
  }

  // The state on several stages that the value is of: it comes to be, in its own shape, the
  // gradient or the new value. Else empty, also for scalars, of which the shape says nothing.
  std::string SharedStateOf(const Value* v) const {
    const bool may_be =
        v->type.rank() > 0 && std::any_of(shared_.begin(), shared_.end(), [&](const auto& entry) {
          return entry.first->type.shape == v->type.shape;
        });
    if (!may_be) return "";
    std::vector<const Value*> reached = {v};
    std::set<const Value*> seen = {v};
    for (size_t i = 0; i < reached.size(); ++i) {
      if (auto it = shared_.find(reached[i]); it != shared_.end()) return it->second;
      for (const Op* user : reached[i]->users) {
        for (const Value* r : user->results) {
          if (r->type.shape == v->type.shape && seen.insert(r).second) reached.push_back(r);
        }
      }
    }
    return "";
  }

  Value* Send(Value* v, int stage, const Op& user) {
    const Op& maker = *v->producer;
    Strings why = WhyOf(maker);
    why.push_back(StrCat(maker.name(), maker.site.empty() ? "" : " at " + maker.site,
                         " is on stage ", maker.stage));
    why.push_back(StrCat(user.name(), user.site.empty() ? "" : " at " + user.site,
                         " reads it on stage ", stage));
    if (const std::string state = SharedStateOf(v); !state.empty()) {
      why.push_back(
          StrCat(state, " is on stages ", Join(states_.at(state), ", "), ": the same on each"));
    }
    Op* op = graph_.AddOp(GetOpDef("send_recv"), {v}, {v->type},
                          {{"axes", Strings{graph_.pipeline_axis}},
                           {"from", int64_t{maker.stage}},
                           {"to", int64_t{stage}},
                           {"why", why},
                           {"for", std::string(maker.name())}},
                          graph_.Next(&maker), maker);
    op->stage = stage;
    op->result()->provenance = v->provenance;
    return op->result();
  }

  Graph& graph_;
  std::vector<int> homes_;
  const std::vector<Op*> order_;
  std::vector<Stages> places_;            // by Op::id
  std::map<std::string, Stages> states_;  // by name
  std::map<std::pair<const Op*, int>, int64_t> repeat_bytes_;
  std::map<const Value*, std::string> shared_;
  std::map<std::pair<const Value*, int>, Value*> made_;
};

// What depends on no parameter runs on whatever stages need it: of a model with little else a stage
// may be left with nothing, or all of them go alone.
void RefuseIdleStages(const Graph& graph) {
  const auto axis = graph.mesh.FindAxis(graph.pipeline_axis);
  const int64_t stages = axis ? graph.mesh.axis_size(*axis) : 1;
  std::set<int> busy;
  bool sends = stages == 1;
  for (const auto& op : graph.ops()) {
    busy.insert(op->stage);
    sends = sends || op->name() == "send_recv";
  }
  std::string what = sends ? "" : "no stage needs anything of another";
  for (int stage = 0; stage < stages; ++stage) {
    if (!busy.contains(stage)) what = StrCat("nothing is left for stage ", stage, " to compute");
  }
  if (what.empty()) return;
  throw Diagnostic("E2125", ExitCode::kBadSpec,
                   StrCat("the pipeline over '", graph.pipeline_axis, "'"),
                   what + ": what depends on no parameter runs on the stages that read it",
                   stages > 2 ? "use fewer stages" : "leave the pipeline out");
}

}  // namespace

void PlaceStages(Graph& graph) {
  if (graph.pipeline_axis.empty()) return;
  Placer(graph).Run();
  RefuseIdleStages(graph);
  OrderBySchedule(graph, OneForwardOneBackward(graph));
  OrderStages(graph);
}

}  // namespace shardc
