// Streams and events of a program: what must be ordered is, what can overlap may.
#include <gmock/gmock.h>

#include <algorithm>

#include "frontend/gpt_config.h"
#include "passes/pipeline.h"
#include "runtime/cuda/schedule.h"
#include "tests/exec/harness.h"

namespace shardc::testing {
namespace {

using cuda::MakeSchedule;
using cuda::Schedule;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A program over arena buffers of 64 bytes: instruction i reads and writes the given slots.
class ProgramOf {
 public:
  explicit ProgramOf(const std::string& mesh) { program_.mesh = Mesh::Parse(mesh); }

  ProgramOf& Kernel(std::vector<int> in, std::vector<int> out) { return Add(in, out, -1); }
  ProgramOf& AllReduce(int in, int out, std::vector<int> axes) {
    Collective c;
    c.id = static_cast<int>(program_.collectives.size());
    c.axes = std::move(axes);
    program_.collectives.push_back(c);
    return Add({in}, {out}, c.id);
  }
  Program& program() { return program_; }

 private:
  ProgramOf& Add(const std::vector<int>& in, const std::vector<int>& out, int collective) {
    Instruction i;
    i.op = collective < 0 ? "kernel" : "all_reduce";
    i.collective = collective;
    for (int slot : in) i.operands.push_back(BufferOf(slot));
    for (int slot : out) i.results.push_back(BufferOf(slot));
    program_.instructions.push_back(i);
    return *this;
  }
  int BufferOf(int slot) {
    Buffer b;
    b.offset = 64 * slot;
    b.bytes = 64;
    program_.buffers.push_back(b);
    return static_cast<int>(program_.buffers.size()) - 1;
  }
  Program program_;
};

std::vector<int> Order(const Schedule& s) {
  std::vector<int> order;
  for (const Schedule::Item& i : s.items) order.push_back(i.instruction);
  return order;
}

const Schedule::Item& ItemOf(const Schedule& s, int instruction) {
  return *std::find_if(s.items.begin(), s.items.end(),
                       [&](const auto& i) { return i.instruction == instruction; });
}

// Which items are done before each item begins, by streams and waits alone: the transitive closure.
std::vector<std::vector<bool>> Closure(const Schedule& s) {
  size_t n = s.items.size();
  std::vector<std::vector<bool>> before(n, std::vector<bool>(n, false));
  std::vector<int> last(s.streams.size(), -1);
  for (size_t i = 0; i < n; ++i) {
    auto follow = [&](int j) {
      before[i][j] = true;
      for (int k = 0; k < j; ++k) {
        if (before[j][k]) before[i][k] = true;
      }
    };
    for (int w : s.items[i].waits) follow(w);
    int& own = last[s.items[i].stream];
    if (own >= 0) follow(own);
    own = static_cast<int>(i);
  }
  return before;
}

// Instructions that are missing, are there twice, or stand in another order within an item.
std::vector<std::string> Miscounted(const Program& p, const Schedule& s) {
  std::vector<std::string> out;
  std::vector<int> times(p.instructions.size());
  for (const Schedule::Item& i : s.items) {
    for (int runs : i.runs) ++times[runs];
    if (!std::is_sorted(i.runs.begin(), i.runs.end()) ||
        std::find(i.runs.begin(), i.runs.end(), i.instruction) == i.runs.end()) {
      out.push_back(StrCat("the item of ", i.instruction, " is out of order"));
    }
  }
  for (size_t i = 0; i < times.size(); ++i) {
    if (times[i] != 1) out.push_back(StrCat(i, " is there ", times[i], " times"));
  }
  return out;
}

// Every pair of instructions that share a byte, one writing, is in the program's order.
std::vector<std::string> Violations(const Program& p, const Schedule& s) {
  std::vector<std::string> out;
  std::vector<int> item(p.instructions.size(), -1);
  for (size_t i = 0; i < s.items.size(); ++i) {
    for (int runs : s.items[i].runs) item[runs] = static_cast<int>(i);
  }
  auto before = Closure(s);
  std::vector<std::vector<Access>> accesses;
  for (const Instruction& i : p.instructions) accesses.push_back(AccessesOf(p, i));
  for (size_t b = 0; b < item.size(); ++b) {
    if (item[b] < 0) out.push_back(StrCat(b, " is missing"));
    for (size_t a = 0; a < b; ++a) {
      // Within an item they run in order.
      if (item[a] == item[b] || !Conflict(accesses[a], accesses[b])) continue;
      if (!before[item[b]][item[a]]) out.push_back(StrCat(a, " is not before ", b));
    }
  }
  return out;
}

std::vector<Program> GptPrograms(const std::string& spec, const std::string& mesh,
                                 const std::string& optimizer = "") {
  PipelineOptions options;
  options.optimizer.kind = optimizer;
  options.loss = "lm";
  Spec parsed = SpecOf(spec);
  Graph graph =
      BuildGpt(ParseBuiltin("builtin:gpt?layers=3,hidden=32,heads=4,vocab=96,seq=16,batch=4"));
  CompileGraph(graph, parsed, MeshFor(parsed, Mesh::Parse(mesh)), options);
  return ProgramsFor(graph);
}

TEST(CudaSchedule, CollectivesOfAnAxisSetShareAStream) {
  ProgramOf p("dp=2,tp=2");
  p.Kernel({}, {0}).AllReduce(0, 1, {1}).AllReduce(1, 2, {0}).AllReduce(2, 3, {1});
  Schedule s = MakeSchedule(p.program());
  EXPECT_THAT(s.streams, ElementsAre(IsEmpty(), ElementsAre(1), ElementsAre(0)));
  EXPECT_EQ(ItemOf(s, 0).stream, 0);
  EXPECT_EQ(ItemOf(s, 1).stream, 1);
  EXPECT_EQ(ItemOf(s, 2).stream, 2);
  EXPECT_EQ(ItemOf(s, 3).stream, 1);
}

TEST(CudaSchedule, WaitsForWhatItReads) {
  ProgramOf p("tp=2");
  p.Kernel({}, {0}).Kernel({}, {5}).AllReduce(0, 1, {0}).Kernel({1}, {2});
  Schedule s = MakeSchedule(p.program());
  // The collective waits for the kernel that made its operand, not for the one after it.
  EXPECT_THAT(ItemOf(s, 2).waits, ElementsAre(0));
  EXPECT_TRUE(s.items[0].recorded);
  EXPECT_FALSE(s.items[1].recorded);
  EXPECT_THAT(ItemOf(s, 3).waits, ElementsAre(2));
}

TEST(CudaSchedule, WaitsForReadersOfWhatItOverwrites) {
  ProgramOf p("tp=2");
  p.Kernel({}, {0}).AllReduce(0, 1, {0}).Kernel({}, {0});
  Schedule s = MakeSchedule(p.program());
  EXPECT_THAT(ItemOf(s, 2).waits, ElementsAre(1));
}

TEST(CudaSchedule, WorkThatCanRunGoesBeforeAWait) {
  // The input gradient's all_reduce and its reader, then the weight gradient.
  ProgramOf p("tp=2");
  p.Kernel({}, {0}).AllReduce(0, 1, {0}).Kernel({1}, {2}).Kernel({9}, {3});
  EXPECT_THAT(Order(MakeSchedule(p.program())), ElementsAre(0, 1, 3, 2));
  EXPECT_THAT(Order(MakeSchedule(p.program(), {}, 0)), ElementsAre(0, 1, 2, 3));
}

TEST(CudaSchedule, DoesNotPassWhatItConflictsWith) {
  ProgramOf p("tp=2");
  p.Kernel({}, {0}).AllReduce(0, 1, {0}).Kernel({1}, {2}).Kernel({2}, {3}).Kernel({9}, {1});
  EXPECT_THAT(Order(MakeSchedule(p.program())), ElementsAre(0, 1, 2, 3, 4));
}

TEST(CudaSchedule, CollectivesKeepTheirOrder) {
  ProgramOf p("dp=2,tp=2");
  // The second collective needs what the first one's reader makes; the third needs nothing.
  p.AllReduce(0, 1, {0}).Kernel({1}, {2}).AllReduce(2, 3, {0}).AllReduce(4, 5, {1});
  EXPECT_THAT(Order(MakeSchedule(p.program())), ElementsAre(0, 1, 2, 3));
}

TEST(CudaSchedule, OneWaitIsEnough) {
  ProgramOf p("tp=2");
  p.AllReduce(0, 1, {0}).AllReduce(2, 3, {0}).Kernel({1, 3}, {4}).Kernel({1}, {5});
  Schedule s = MakeSchedule(p.program());
  EXPECT_THAT(ItemOf(s, 2).waits, ElementsAre(1));
  EXPECT_THAT(ItemOf(s, 3).waits, IsEmpty());
}

TEST(CudaSchedule, StatesConflictByName) {
  Access w{Space::kState, "w", 0, 8, true}, v{Space::kState, "v", 0, 8, true};
  Access read = w, arena{Space::kArena, "", 0, 8, true};
  read.write = false;
  EXPECT_TRUE(Conflict(w, read));
  EXPECT_FALSE(Conflict(read, read));
  EXPECT_FALSE(Conflict(w, v));
  EXPECT_FALSE(Conflict(w, arena));
}

TEST(CudaSchedule, AliasesAreTheSameMemory) {
  ProgramOf p("tp=2");
  p.Kernel({}, {0}).AllReduce(1, 2, {0});
  Program& program = p.program();
  program.buffers[1].alias_of = 0;
  program.buffers[1].offset = 0;
  EXPECT_THAT(ItemOf(MakeSchedule(program), 1).waits, ElementsAre(0));
}

TEST(CudaSchedule, AGroupRunsAtItsPlaceAndWaitsForAll) {
  // Kernels 1 and 4 are one; the first of them reads what the collective makes, or writes what
  // another reads.
  ProgramOf p("tp=2");
  p.AllReduce(0, 1, {0}).Kernel({1}, {2}).AllReduce(8, 9, {0}).Kernel({}, {5}).Kernel({2}, {3});
  p.AllReduce(3, 4, {0});
  cuda::ProductGroup group;
  group.instructions = {1, 4};
  group.place = 4;
  Schedule s = MakeSchedule(p.program(), {group}, 0);
  EXPECT_THAT(Order(s), ElementsAre(0, 2, 3, 4, 5));
  EXPECT_THAT(ItemOf(s, 4).runs, ElementsAre(1, 4));
  EXPECT_THAT(ItemOf(s, 4).waits, ElementsAre(0));
  EXPECT_THAT(ItemOf(s, 5).waits, ElementsAre(3));
  EXPECT_THAT(Violations(p.program(), s), IsEmpty());
  EXPECT_THAT(Miscounted(p.program(), s), IsEmpty());
  // At the place of the first.
  group.place = 1;
  s = MakeSchedule(p.program(), {group}, 0);
  EXPECT_THAT(Order(s), ElementsAre(0, 1, 2, 3, 5));
  EXPECT_THAT(ItemOf(s, 1).runs, ElementsAre(1, 4));
  EXPECT_THAT(ItemOf(s, 5).waits, ElementsAre(1));
  EXPECT_THAT(Violations(p.program(), s), IsEmpty());
}

TEST(CudaSchedule, NothingPassesAGroupThatItConflictsWith) {
  // Kernel 4 overwrites what the first of the group, kernel 2, reads.
  ProgramOf p("tp=2");
  p.AllReduce(0, 1, {0}).Kernel({1}, {2}).Kernel({6}, {7}).Kernel({1, 7}, {3}).Kernel({}, {6});
  cuda::ProductGroup group;
  group.instructions = {2, 3};
  group.place = 3;
  Schedule s = MakeSchedule(p.program(), {group});
  EXPECT_THAT(Order(s), ElementsAre(0, 1, 3, 4));
}

// Kernels that could be joined, were they not kept apart.
ProgramOf Casts(ProgramOf p) {
  for (Instruction& i : p.program().instructions) {
    if (i.collective < 0) i.op = "cast";
  }
  return p;
}

TEST(CudaSchedule, NeighboursAreJoined) {
  ProgramOf p = Casts(ProgramOf("tp=2").Kernel({0}, {1}).Kernel({2}, {3}).Kernel({3}, {4}));
  Schedule s = MakeSchedule(p.program(), {}, 0, true);
  EXPECT_THAT(Order(s), ElementsAre(0, 2));
  EXPECT_TRUE(s.items[0].joined);
  EXPECT_THAT(s.items[0].runs, ElementsAre(0, 1));
  EXPECT_FALSE(s.items[1].joined) << "it reads what the others write";
  EXPECT_THAT(MakeSchedule(p.program()).items, SizeIs(3));
}

TEST(CudaSchedule, WhatIsJoinedDelaysNoCollectiveAndWaitsForNone) {
  // Kernel 3 might follow kernel 1, for which the collective waits.
  ProgramOf p = Casts(ProgramOf("tp=2").Kernel({0}, {1}).Kernel({2}, {3}));
  p.AllReduce(3, 4, {0});
  p = Casts(p.Kernel({5}, {6}));
  Schedule s = MakeSchedule(p.program(), {}, 0, true);
  EXPECT_THAT(Order(s), ElementsAre(0, 2, 3));
  EXPECT_THAT(ItemOf(s, 2).waits, ElementsAre(0));
  // Kernel 2 needs what the collective gives, which kernel 1 need not wait for.
  p = Casts(ProgramOf("tp=2").AllReduce(0, 1, {0}).Kernel({2}, {3}).Kernel({1}, {4}));
  s = MakeSchedule(p.program(), {}, 0, true);
  EXPECT_THAT(Order(s), ElementsAre(0, 1, 2));
  // Had kernel 1 waited for it, they would be one.
  p = Casts(ProgramOf("tp=2").AllReduce(0, 1, {0}).Kernel({1}, {3}).Kernel({1}, {4}));
  EXPECT_THAT(Order(MakeSchedule(p.program(), {}, 0, true)), ElementsAre(0, 1));
}

struct Setup {
  const char *spec, *mesh;
};
class CudaScheduleOfGpt : public ::testing::TestWithParam<Setup> {};

TEST_P(CudaScheduleOfGpt, OrdersEveryConflictingPair) {
  std::vector<Program> programs = GptPrograms(GetParam().spec, GetParam().mesh);
  Schedule s = MakeSchedule(programs[0]);
  EXPECT_THAT(Violations(programs[0], s), IsEmpty());
  EXPECT_THAT(s.items, SizeIs(programs[0].instructions.size()));
  int last = -1;
  for (const Schedule::Item& i : s.items) {
    int collective = programs[0].instructions[i.instruction].collective;
    if (collective < 0) continue;
    EXPECT_GT(i.instruction, last) << "collectives keep their order";
    last = i.instruction;
  }
}

TEST_P(CudaScheduleOfGpt, OrdersEveryConflictingPairWithGroups) {
  std::vector<Program> programs = GptPrograms(GetParam().spec, GetParam().mesh);
  auto groups = cuda::FindProductGroups(programs[0]);
  ASSERT_THAT(groups, SizeIs(::testing::Ge(15u)));
  size_t joined = 0;
  for (const auto& g : groups) joined += g.instructions.size() - 1;
  Schedule s = MakeSchedule(programs[0], groups);
  EXPECT_THAT(Violations(programs[0], s), IsEmpty());
  EXPECT_THAT(Miscounted(programs[0], s), IsEmpty());
  EXPECT_THAT(s.items, SizeIs(programs[0].instructions.size() - joined));
}

TEST_P(CudaScheduleOfGpt, OrdersEveryConflictingPairWithJoinedInstructions) {
  const Program p = GptPrograms(GetParam().spec, GetParam().mesh, "adamw")[0];
  Schedule s = MakeSchedule(p, cuda::FindProductGroups(p), cuda::kLookahead, true);
  EXPECT_THAT(Violations(p, s), IsEmpty());
  EXPECT_THAT(Miscounted(p, s), IsEmpty());
  EXPECT_EQ(
      std::ranges::count_if(
          s.items, [&](const auto& i) { return p.instructions[i.instruction].op == "adamw"; }),
      1);
}

TEST_P(CudaScheduleOfGpt, EveryWaitIsNeeded) {
  std::vector<Program> programs = GptPrograms(GetParam().spec, GetParam().mesh);
  Schedule s = MakeSchedule(programs[0], cuda::FindProductGroups(programs[0]));
  int waits = 0;
  for (const Schedule::Item& i : s.items) waits += static_cast<int>(i.waits.size());
  if (std::string(GetParam().spec) == "serial") {
    EXPECT_EQ(waits, 0);
    return;
  }
  ASSERT_GT(waits, 0);
  for (size_t i = 0; i < s.items.size(); i += 7) {
    for (size_t w = 0; w < s.items[i].waits.size(); ++w) {
      Schedule without = s;
      without.items[i].waits.erase(without.items[i].waits.begin() + static_cast<int64_t>(w));
      EXPECT_FALSE(Violations(programs[0], without).empty()) << "item " << i << ", wait " << w;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, CudaScheduleOfGpt,
                         ::testing::Values(Setup{"serial", ""}, Setup{"megatron", "tp=2"},
                                           Setup{"megatron", "tp=4"},
                                           Setup{"megatron", "dp=2,tp=2"}));

}  // namespace
}  // namespace shardc::testing
