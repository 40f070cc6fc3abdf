#include "tests/passes/check_programs_fixture.h"

#include <algorithm>

namespace shardc::testing {

Buffer MakeBuffer(const Mesh& mesh, TensorType type, Space space, int64_t offset,
                  std::string name) {
  Buffer b;
  b.type = std::move(type);
  b.local_shape = LocalShape(b.type, mesh);
  b.bytes = LocalBytes(b.type, mesh);
  b.space = space;
  b.offset = offset;
  b.name = std::move(name);
  return b;
}

void Retype(Program& p, int buffer, TensorType type) {
  Buffer& b = p.buffers[buffer];
  b.type = std::move(type);
  b.local_shape = LocalShape(b.type, p.mesh);
  b.bytes = LocalBytes(b.type, p.mesh);
}

TensorType F32(Shape shape, std::vector<int> axes) {
  TensorType type(DType::kF32, std::move(shape));
  for (size_t d = 0; d < axes.size(); ++d) {
    if (axes[d] >= 0) type.sharding.dims[d].axes.push_back(axes[d]);
  }
  return type;
}

int AddArenaBuffer(Program& p, TensorType type) {
  Buffer b = MakeBuffer(p.mesh, std::move(type), Space::kArena, p.arena_bytes);
  p.arena_bytes += (b.bytes + 63) / 64 * 64;
  p.buffers.push_back(std::move(b));
  return static_cast<int>(p.buffers.size()) - 1;
}

void AddInstruction(Program& p, std::string op, std::vector<int> operands, std::vector<int> results,
                    Attributes attrs) {
  Instruction i;
  i.op = std::move(op);
  i.operands = std::move(operands);
  i.results = std::move(results);
  i.attrs = std::move(attrs);
  i.site = "test";
  p.instructions.push_back(std::move(i));
}

namespace {

void AddCollective(Program& p, CollectiveKind kind, std::vector<int> operands,
                   std::vector<int> results, std::vector<int> axes, int64_t elements,
                   DType dtype = DType::kF32, bool max = false) {
  Collective c;
  c.id = static_cast<int>(p.collectives.size());
  c.kind = kind;
  c.max = max;
  c.axes = std::move(axes);
  c.dtype = dtype;
  c.elements = elements;
  AddInstruction(p, std::string(CollectiveKindName(kind)), std::move(operands), std::move(results));
  p.instructions.back().collective = c.id;
  p.collectives.push_back(std::move(c));
}

ProgramSet OnAllRanks(Program body) {
  ProgramSet set(static_cast<size_t>(body.mesh.num_ranks()), body);
  for (size_t r = 0; r < set.size(); ++r) set[r].rank = static_cast<int64_t>(r);
  return set;
}

}  // namespace

void AppendCollective(Program& p, CollectiveKind kind, std::vector<int> axes, int64_t elements,
                      DType dtype, bool max) {
  p.constants.resize((p.constants.size() + 63) / 64 * 64);
  auto offset = static_cast<int64_t>(p.constants.size());
  int64_t group = p.mesh.GroupSize(axes), result = elements, counted = elements;
  if (kind == CollectiveKind::kAllGather) counted = result = elements * group;
  if (kind == CollectiveKind::kReduceScatter) result = elements / group;
  p.buffers.push_back(MakeBuffer(p.mesh, TensorType(dtype, {elements}), Space::kConstant, offset));
  p.constants.resize(p.constants.size() + static_cast<size_t>(p.buffers.back().bytes));
  int from = static_cast<int>(p.buffers.size()) - 1;
  int to = AddArenaBuffer(p, TensorType(dtype, {result}));
  AddCollective(p, kind, {from}, {to}, std::move(axes), counted, dtype, max);
}

void MoveInstruction(Program& p, int from, int to) {
  Instruction moved = std::move(p.instructions[from]);
  p.instructions.erase(p.instructions.begin() + from);
  p.instructions.insert(p.instructions.begin() + to, std::move(moved));
}

ProgramSet TrainingSet() {
  namespace t = training;
  Program p;
  p.mesh = Mesh::Parse("tp=2");
  p.arena_bytes = 576;
  p.constants.resize(64);
  TensorType partial = F32({4, 8});
  partial.sharding.partial_sum.push_back(0);
  auto add = [&](TensorType type, Space space, int64_t offset = 0, std::string name = {}) {
    p.buffers.push_back(MakeBuffer(p.mesh, std::move(type), space, offset, std::move(name)));
  };
  add(F32({4, 8}, {-1, 0}), Space::kInput, 0, "x");
  add(F32({}), Space::kConstant);
  add(F32({8, 8}, {0}), Space::kState, 0, "w");
  add(F32({8, 8}, {0}), Space::kState, 0, "momentum");
  add(F32({}), Space::kState, 0, "step");
  add(partial, Space::kArena, 0);
  add(F32({4, 8}), Space::kArena, 0);
  add(F32({4, 8}), Space::kArena, 0);
  add(F32({8, 8}, {0}), Space::kArena, 128);
  add(F32({}), Space::kArena, 256);
  add(F32({}), Space::kArena, 320);
  add(F32({8, 8}, {0}), Space::kState, 0, "w");
  add(F32({8, 8}, {0}), Space::kState, 0, "momentum");
  add(F32({32}), Space::kArena, 0);
  p.buffers[t::kFlat].alias_of = t::kA;
  add(F32({32}), Space::kArena, 384);
  add(F32({32}), Space::kArena, 128);
  add(F32({16}), Space::kArena, 512);

  AddInstruction(p, "matmul", {t::kX, t::kW}, {t::kY});
  AddCollective(p, CollectiveKind::kAllReduce, {t::kY}, {t::kZ}, {0}, 32);
  AddInstruction(p, "relu", {t::kZ}, {t::kA});
  AddInstruction(p, "matmul_tn", {t::kX, t::kA}, {t::kGradient}, {{"batch", int64_t{0}}});
  p.instructions.back().scratch = t::kScratch;
  p.instructions.back().phase = Phase::kBackward;
  AddInstruction(p, "reduce_sum", {t::kA}, {t::kLoss}, {{"axes", Ints{0, 1}}});
  AddInstruction(p, "add", {t::kStep, t::kOne}, {t::kNextStep});
  AddInstruction(p, "sgd", {t::kW, t::kGradient, t::kOne, t::kOne, t::kMomentum, t::kNextStep},
                 {t::kNewW, t::kNewMomentum}, {{"momentum", 0.9}});
  p.instructions.back().phase = Phase::kOptimizer;
  AddInstruction(p, "exp", {t::kFlat}, {t::kE});
  AddInstruction(p, "neg", {t::kE}, {t::kNegated});
  AddInstruction(p, "copy", {t::kNextStep}, {t::kStep});
  p.inputs = {{"x", t::kX}};
  p.states = {{"w", t::kW}, {"momentum", t::kMomentum}, {"step", t::kStep}};
  p.outputs = {{"loss", t::kLoss}, {"e", t::kE}, {"hidden", t::kFlat}, {"negated", t::kNegated}};
  return OnAllRanks(std::move(p));
}

ProgramSet CollectiveSet() {
  namespace c = collective;
  Program p;
  p.mesh = Mesh::Parse("dp=2,tp=2");
  p.arena_bytes = 640;
  auto add = [&](TensorType type, Space space, int64_t offset = 0, std::string name = {}) {
    p.buffers.push_back(MakeBuffer(p.mesh, std::move(type), space, offset, std::move(name)));
  };
  add(F32({8, 4}, {0, 1}), Space::kInput, 0, "x");
  add(F32({8}, {1}), Space::kInput, 0, "y");
  add(F32({2, 4, 2}), Space::kArena, 0);
  add(F32({8, 4}, {0}), Space::kArena, 64);
  add(F32({8, 4}, {0}), Space::kArena, 128);
  add(F32({8, 4}), Space::kArena, 192);
  add(F32({8, 4}, {0}), Space::kArena, 320);
  add(F32({8, 4}, {0}), Space::kArena, 320);
  add(F32({8, 4}, {0}), Space::kArena, 64);
  add(F32({8, 4}, {0}), Space::kArena, 384);
  add(F32({2, 4, 2}), Space::kArena, 448);
  add(F32({8, 4}, {0, 1}), Space::kArena, 512);
  add(F32({8}, {1}), Space::kArena, 576);

  Attributes columns{{"axes", Strings{"tp"}},
                     {"cut_axes", Strings{"tp"}},
                     {"dim", int64_t{1}},
                     {"granule", int64_t{1}}};
  using Kind = CollectiveKind;
  AddCollective(p, Kind::kAllGather, {c::kX}, {c::kPieces}, {1}, 16);
  AddInstruction(p, "unpack", {c::kPieces}, {c::kRows}, columns);
  AddCollective(p, Kind::kAllReduce, {c::kRows}, {c::kMax}, {0, 1}, 16, DType::kF32, true);
  AddCollective(p, Kind::kAllGather, {c::kMax}, {c::kGathered}, {0}, 32);
  AddCollective(p, Kind::kReduceScatter, {c::kGathered}, {c::kScattered}, {0}, 32);
  AddCollective(p, Kind::kAllReduce, {c::kScattered, c::kRows}, {c::kSum0, c::kSum1}, {1}, 32);
  AddCollective(p, Kind::kAllToAll, {c::kSum0}, {c::kSwapped}, {1}, 16);
  AddInstruction(p, "pack", {c::kSum1}, {c::kPacked}, columns);
  AddCollective(p, Kind::kReduceScatter, {c::kPacked}, {c::kNarrow}, {1}, 16);
  AddCollective(p, Kind::kAllReduce, {c::kY}, {c::kSumY}, {0}, 4);
  p.inputs = {{"x", c::kX}, {"y", c::kY}};
  p.outputs = {{"gathered", c::kGathered},
               {"swapped", c::kSwapped},
               {"narrow", c::kNarrow},
               {"y_sum", c::kSumY}};
  return OnAllRanks(std::move(p));
}

ProgramSet PipelineSet() {
  namespace p = pipeline;
  using Kind = CollectiveKind;
  auto stage = [](const std::vector<Space>& spaces) {
    Program program;
    program.mesh = Mesh::Parse("pp=2,tp=2");
    for (Space space : spaces) {
      const bool arena = space == Space::kArena;
      program.buffers.push_back(MakeBuffer(program.mesh, F32({8}), space,
                                           arena ? program.arena_bytes : 0, arena ? "" : "x"));
      if (arena) program.arena_bytes += 64;
    }
    return program;
  };
  auto transfer = [](Program& program, std::vector<int> in, std::vector<int> out, int id, int from,
                     int to) {
    AddCollective(program, Kind::kSendRecv, std::move(in), std::move(out), {0}, 8);
    program.collectives.back().id = id;
    program.collectives.back().from = from;
    program.collectives.back().to = to;
  };
  Program first = stage({Space::kInput, Space::kArena, Space::kArena});
  AddInstruction(first, "relu", {p::kX}, {p::kA});
  transfer(first, {p::kA}, {}, 0, 0, 1);
  transfer(first, {}, {p::kBack}, 2, 1, 0);
  first.inputs = {{"x", p::kX}};
  first.outputs = {{"back", p::kBack}};
  Program second = stage({Space::kArena, Space::kArena, Space::kArena});
  transfer(second, {}, {p::kGot}, 0, 0, 1);
  AddCollective(second, Kind::kAllReduce, {p::kGot}, {p::kSum}, {1}, 8);
  AddInstruction(second, "neg", {p::kSum}, {p::kMade});
  transfer(second, {p::kMade}, {}, 2, 1, 0);
  second.outputs = {{"made", p::kMade}};
  ProgramSet set = {first, first, second, second};
  for (size_t r = 0; r < set.size(); ++r) set[r].rank = static_cast<int64_t>(r);
  return set;
}

std::function<void(ProgramSet&)> OnAll(std::function<void(Program&)> change) {
  return [change](ProgramSet& set) { std::for_each(set.begin(), set.end(), change); };
}

std::function<void(ProgramSet&)> OnRank(size_t rank, std::function<void(Program&)> change) {
  return [=](ProgramSet& set) { change(set[rank]); };
}

}  // namespace shardc::testing
