#include "passes/emit.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>
#include <unordered_map>

#include "ir/diagnostic.h"
#include "ir/op_def.h"
#include "passes/add_in_passing.h"
#include "passes/heard_back.h"
#include "passes/numbering.h"
#include "passes/place_buffers.h"
#include "passes/wait_late.h"
#include "passes/write_states.h"

namespace shardc {
namespace {

PieceOf PieceOfState(const Op& op) {
  if (!op.attrs.Has("piece_of")) return {};
  return {op.attrs.String("piece_of"), static_cast<int>(op.attrs.Int("piece_dim")),
          op.attrs.Int("piece_start"), op.attrs.Int("whole_size")};
}

// What the programs of all stages have in common.
struct Whole {
  explicit Whole(const Graph& g)
      : graph(g), ops(NumberedOps(g)), num_values(NumberValues(g)), adds(g) {
    int collectives = 0;
    for (const Op* op : ops) {
      collective_ids.push_back(op->def->communicates ? collectives++ : -1);
      if (op->attrs.Has("piece_of")) pieces[op->attrs.String("name")] = PieceOfState(*op);
      if (op->name() == "update") updates.emplace(op->attrs.String("name"), op);
    }
    if (g.pipeline_axis.empty()) return;
    for (const auto& [sent, tells] : HeardBack(g))
      told_by[CollectiveOf(*sent)] = CollectiveOf(*tells);
  }

  int CollectiveOf(const Op& op) const { return collective_ids[op.id]; }

  const Graph& graph;
  const std::vector<Op*> ops;
  const size_t num_values;
  std::vector<int> collective_ids;  // by op; -1 of those that do not communicate
  const AddsInPassing adds;
  std::map<std::string, PieceOf, std::less<>> pieces;  // of states
  std::multimap<std::string, const Op*> updates;       // of states
  // Of each send the transfer by which its sender knows that it was received, by collective.
  std::unordered_map<int, int> told_by;
};

class Emitter {
 public:
  // `stage` of a pipeline; 0 without one.
  Emitter(const Whole& whole, int stage)
      : whole_(whole),
        graph_(whole.graph),
        mesh_(graph_.mesh),
        pipeline_(!graph_.pipeline_axis.empty()),
        stage_(stage),
        buffers_(whole.num_values, -1),
        makers_(whole.ops.size(), -1) {
    program_.mesh = mesh_;
  }

  Program Run() {
    if (pipeline_) program_.rank = FirstRank();
    for (const auto& input : graph_.inputs()) {
      if (IsHere(input.get())) EmitInput(*input);
    }
    for (const Op* op : whole_.ops) {
      if (IsHere(*op)) EmitOp(*op);
    }
    for (const auto& [update, value] : late_updates_) EmitUpdate(*update, value);
    for (const Output& o : graph_.outputs) {
      if (!HasBuffer(o.value) || StageOf(o.value) != stage_) continue;
      program_.outputs.push_back({o.name, BufferOf(o.value), PieceOfGradient(o.name)});
    }
    WriteStates(program_, late_updates_.size());
    WaitLate(program_);
    PlaceBuffers(program_, whole_.told_by);
    return std::move(program_);
  }

 private:
  // --- stages

  int64_t FirstRank() const {
    const int axis = *mesh_.FindAxis(graph_.pipeline_axis);
    int64_t rank = 0;
    while (mesh_.Coordinate(rank, axis) != stage_) ++rank;
    return rank;
  }

  // Inputs, states and constants are where they are read, and states where they are updated; what
  // nothing reads is on the first stage.
  bool IsHere(const Value* v) const {
    if (!pipeline_) return true;
    if (v->users.empty()) return stage_ == 0;
    return std::any_of(v->users.begin(), v->users.end(),
                       [&](const Op* user) { return IsHere(*user); });
  }

  bool IsHere(const Op& op) const {
    if (!pipeline_) return true;
    if (op.def->is_state && IsUpdatedHere(op.attrs.String("name"))) return true;
    if (op.stage < 0) return IsHere(op.result());
    return op.stage == stage_ || (op.name() == "send_recv" && op.attrs.Int("from") == stage_);
  }

  bool IsUpdatedHere(const std::string& state) const {
    const auto [begin, end] = whole_.updates.equal_range(state);
    return std::any_of(begin, end, [&](const auto& u) { return u.second->stage == stage_; });
  }

  // The one stage that gives an output.
  int StageOf(const Value* v) const {
    if (!pipeline_) return 0;
    if (v->producer && v->producer->stage >= 0) return v->producer->stage;
    int first = -1;
    for (const Op* user : v->users) {
      const bool sends = user->name() == "send_recv";
      const int stage = sends ? static_cast<int>(user->attrs.Int("from")) : user->stage;
      if (first < 0 || stage < first) first = stage;
    }
    return std::max(0, first);
  }

  // --- buffers

  bool HasBuffer(const Value* v) const { return buffers_[v->id] >= 0; }

  int BufferOf(const Value* v) const {
    SHARDC_CHECK(HasBuffer(v), v->producer ? v->producer->name() : v->name,
                 ": the value is not on stage ", stage_);
    return buffers_[v->id];
  }

  int NewBuffer(const TensorType& type, Space space = Space::kArena, std::string name = {}) {
    Buffer b;
    b.type = type;
    b.local_shape = LocalShape(type, mesh_);
    b.bytes = NumElements(b.local_shape) * DTypeSize(type.dtype);
    b.space = space;
    b.name = std::move(name);
    program_.buffers.push_back(std::move(b));
    return static_cast<int>(program_.buffers.size()) - 1;
  }

  int NewBuffer(const Value* v) { return buffers_[v->id] = NewBuffer(v->type); }

  int Root(int buffer) const { return RootOf(program_, buffer); }

  // A view of the same bytes under another type.
  void Alias(const Value* v, int of) {
    int b = NewBuffer(v);
    program_.buffers[b].alias_of = Root(of);
    program_.buffers[b].space = program_.buffers[of].space;
    program_.buffers[b].name = program_.buffers[of].name;
  }

  void EmitInput(const Value& input) {
    int b = buffers_[input.id] = NewBuffer(input.type, Space::kInput, input.name);
    program_.inputs.push_back({input.name, b});
  }

  void EmitConstant(const Op& op) {
    const HostTensor& value = op.attrs.Tensor("value");
    std::string_view bytes(reinterpret_cast<const char*>(value.raw()),
                           static_cast<size_t>(value.bytes()));
    auto [at, fresh] =
        constants_.try_emplace(std::string(bytes), static_cast<int64_t>(program_.constants.size()));
    if (fresh) {
      auto padded = (program_.constants.size() + bytes.size() + kBufferAlignment - 1) /
                    kBufferAlignment * kBufferAlignment;
      program_.constants.resize(padded);
      if (!bytes.empty()) {
        std::memcpy(program_.constants.data() + at->second, bytes.data(), bytes.size());
      }
    }
    int b = NewBuffer(op.result());
    program_.buffers[b].space = Space::kConstant;
    program_.buffers[b].offset = at->second;
  }

  // --- instructions

  Instruction& Emit(const Op& op, std::string name, std::vector<int> operands,
                    std::vector<int> results, Attributes attrs) {
    Instruction i;
    i.op = std::move(name);
    i.attrs = std::move(attrs);
    i.operands = std::move(operands);
    i.results = std::move(results);
    i.phase = op.phase;
    i.site = op.site;
    for (const std::vector<int>* list : {&i.operands, &i.results}) {
      for (int b : *list) i.bytes += program_.buffers[b].bytes;
    }
    program_.instructions.push_back(std::move(i));
    return program_.instructions.back();
  }

  std::vector<int> Operands(const Op& op) const {
    std::vector<int> ids;
    for (const Value* v : op.operands) ids.push_back(BufferOf(v));
    return ids;
  }

  // The gradient of a piece is that piece of the gradient.
  PieceOf PieceOfGradient(const std::string& output) const {
    const auto piece = whole_.pieces.find(ParamOfGradient(output));
    if (piece == whole_.pieces.end()) return {};
    PieceOf of_gradient = piece->second;
    of_gradient.whole = GradientName(of_gradient.whole);
    return of_gradient;
  }

  void EmitOp(const Op& op) {
    if (op.def->is_state) {
      std::string name = op.attrs.String("name");
      int b = buffers_[op.result()->id] = NewBuffer(op.out(), Space::kState, name);
      program_.states.push_back({name, b, PieceOfState(op)});
      states_[name] = b;
    } else if (op.name() == "constant") {
      EmitConstant(op);
    } else if (op.name() == "update") {
      // After everything that may still read the old value.
      late_updates_.push_back({&op, BufferOf(op.operands[0])});
    } else if (op.def->communicates) {
      EmitCollective(op);
    } else if (IsView(op, mesh_)) {
      Alias(op.result(), BufferOf(op.operands[0]));
    } else if (TakeAddInPassing(op)) {
      return;
    } else {
      std::vector<int> operands = Operands(op), results;
      for (const Value* r : op.results) results.push_back(NewBuffer(r));
      Attributes attrs = op.attrs;
      attrs.Erase("why");
      attrs.Erase("for");
      Instruction& i = Emit(op, std::string(op.name()), std::move(operands), std::move(results),
                            std::move(attrs));
      LocalCost cost = CostOnRank(op, mesh_);
      i.flops = cost.flops;
      i.bytes = cost.bytes;
      makers_[op.id] = static_cast<int>(program_.instructions.size()) - 1;
    }
  }

  bool TakeAddInPassing(const Op& op) {
    auto [f, x] = whole_.adds.Of(op);
    if (!f) return false;
    int sum = BufferOf(f->result());
    Instruction& i = program_.instructions[makers_[f->id]];
    i.operands.push_back(BufferOf(x));
    i.bytes += program_.buffers[BufferOf(x)].bytes;
    i.flops += Elements(BufferOf(x));
    buffers_[op.result()->id] = sum;
    return true;
  }

  // --- collectives

  std::vector<int> AxesOf(const Op& op) const {
    std::vector<int> axes;
    for (const std::string& name : op.attrs.StringList("axes"))
      axes.push_back(*mesh_.FindAxis(name));
    return axes;
  }

  void EmitRaw(const Op& op, CollectiveKind kind, std::vector<int> operands,
               std::vector<int> results, int64_t elements) {
    Collective c;
    // The same on all stages.
    c.id = whole_.CollectiveOf(op);
    c.kind = kind;
    c.max = op.attrs.String("reduce", "sum") == "max";
    c.axes = AxesOf(op);
    c.dtype = op.in(0).dtype;
    c.elements = elements;
    c.op = op.attrs.String("for", "");
    if (kind == CollectiveKind::kSendRecv) {
      c.from = static_cast<int>(op.attrs.Int("from"));
      c.to = static_cast<int>(op.attrs.Int("to"));
    }
    c.why = WhyOf(op);
    Instruction& i = Emit(op, std::string(CollectiveKindName(kind)), std::move(operands),
                          std::move(results), {});
    i.collective = static_cast<int>(program_.collectives.size());
    i.bytes = 0;
    for (int b : i.operands) i.bytes += program_.buffers[b].bytes;
    program_.collectives.push_back(std::move(c));
  }

  int64_t Elements(int buffer) const { return NumElements(program_.buffers[buffer].local_shape); }

  void EmitCollective(const Op& op) {
    if (op.name() == "all_reduce") {
      std::vector<int> operands = Operands(op), results;
      int64_t elements = 0;
      for (const Value* r : op.results) elements += Elements(NewBuffer(r));
      for (const Value* r : op.results) results.push_back(BufferOf(r));
      EmitRaw(op, CollectiveKind::kAllReduce, operands, results, elements);
    } else if (op.name() == "all_gather") {
      int in = BufferOf(op.operands[0]);
      int dim = static_cast<int>(op.attrs.Int("dim"));
      bool direct = Contiguous(op.in(0), op.out(), dim);
      int raw = direct ? NewBuffer(op.result()) : Staging(op, op.in(0));
      EmitRaw(op, CollectiveKind::kAllGather, {in}, {raw}, Elements(raw));
      if (!direct) Unpack(op, raw, op.in(0), dim);
    } else if (op.name() == "reduce_scatter") {
      int dim = static_cast<int>(op.attrs.Int("dim"));
      bool direct = Contiguous(op.out(), op.in(0), dim);
      int raw = direct ? BufferOf(op.operands[0]) : Pack(op, op.out(), dim);
      EmitRaw(op, CollectiveKind::kReduceScatter, {raw}, {NewBuffer(op.result())}, Elements(raw));
    } else if (op.name() == "all_to_all") {
      EmitAllToAll(op);
    } else if (op.name() == "send_recv") {
      const bool sends = op.stage != stage_;
      const int b = sends ? BufferOf(op.operands[0]) : NewBuffer(op.result());
      std::vector<int> here = {b}, none;
      EmitRaw(op, CollectiveKind::kSendRecv, sends ? here : none, sends ? none : here, Elements(b));
    } else {
      throw InternalError(StrCat("emit: '", op.name(), "' is not lowered"));
    }
  }

  // Piece j of the operand: cut along split_dim as in the result, still cut along concat_dim.
  void EmitAllToAll(const Op& op) {
    int split = static_cast<int>(op.attrs.Int("split_dim"));
    int concat = static_cast<int>(op.attrs.Int("concat_dim"));
    TensorType piece = op.in(0);
    piece.sharding.dims[split] = op.out().sharding.dims[split];
    // Not a sharding that a tensor could have (an axis on two dims): only its sizes are used.
    bool direct_in = Contiguous(piece, op.in(0), split),
         direct_out = Contiguous(piece, op.out(), concat);
    int in = direct_in ? BufferOf(op.operands[0]) : Pack(op, piece, split);
    int raw = direct_out ? NewBuffer(op.result()) : Staging(op, piece);
    EmitRaw(op, CollectiveKind::kAllToAll, {in}, {raw}, Elements(in));
    if (!direct_out) Unpack(op, raw, piece, concat);
  }

  // Whether the pieces (dim cut further than in `whole`) lie one after the other in `whole`.
  bool Contiguous(const TensorType& piece, const TensorType& whole, int dim) const {
    Shape local = LocalShape(whole, mesh_);
    for (int d = 0; d < dim; ++d) {
      if (local[d] != 1) return false;
    }
    auto at = static_cast<size_t>(dim);
    const DimSharding &p = piece.sharding.dims[at], &w = whole.sharding.dims[at];
    return p.segments.empty() && w.segments.empty() && !HasPadding(piece.shape[at], p, mesh_) &&
           !HasPadding(whole.shape[at], w, mesh_);
  }

  int Staging(const Op& op, const TensorType& piece) {
    Shape shape = LocalShape(piece, mesh_);
    shape.insert(shape.begin(), mesh_.GroupSize(AxesOf(op)));
    return NewBuffer(TensorType(piece.dtype, shape));
  }

  Attributes PieceAttributes(const Op& op, const TensorType& piece, int dim) const {
    const DimSharding& cut = piece.sharding.dims[dim];
    Attributes attrs{{"axes", op.attrs.StringList("axes")},
                     {"dim", int64_t{dim}},
                     {"cut_axes", mesh_.Names(cut.axes)},
                     {"granule", cut.granule}};
    if (!cut.segments.empty()) attrs.Set("segments", cut.segments);
    return attrs;
  }

  int Pack(const Op& op, const TensorType& piece, int dim) {
    int staging = Staging(op, piece);
    Emit(op, "pack", {BufferOf(op.operands[0])}, {staging}, PieceAttributes(op, piece, dim));
    return staging;
  }

  void Unpack(const Op& op, int staging, const TensorType& piece, int dim) {
    Emit(op, "unpack", {staging}, {NewBuffer(op.result())}, PieceAttributes(op, piece, dim));
  }

  // --- updates

  void EmitUpdate(const Op& update, int value) {
    Emit(update, "copy", {value}, {states_.at(update.attrs.String("name"))}, {});
  }

  const Whole& whole_;
  const Graph& graph_;
  const Mesh& mesh_;
  const bool pipeline_;
  const int stage_;
  Program program_;
  std::vector<int> buffers_;  // by value
  std::vector<int> makers_;   // by op: its instruction, or -1 where it is no instruction of its own
  std::unordered_map<std::string, int64_t> constants_;
  std::unordered_map<std::string, int> states_;
  std::vector<std::pair<const Op*, int>> late_updates_;
};

}  // namespace

Program EmitProgram(const Graph& graph) {
  SHARDC_CHECK(graph.pipeline_axis.empty());
  return Emitter(Whole(graph), 0).Run();
}

size_t StagePrograms::StageOf(int64_t rank) const {
  return axis < 0 ? 0 : static_cast<size_t>(stages[0].mesh.Coordinate(rank, axis));
}

StagePrograms EmitStages(const Graph& graph) {
  StagePrograms set;
  if (graph.pipeline_axis.empty()) {
    set.stages.push_back(EmitProgram(graph));
    return set;
  }
  set.axis = *graph.mesh.FindAxis(graph.pipeline_axis);
  const Whole whole(graph);
  for (int s = 0; s < graph.mesh.axis_size(set.axis); ++s) {
    set.stages.push_back(Emitter(whole, s).Run());
  }
  return set;
}

}  // namespace shardc
