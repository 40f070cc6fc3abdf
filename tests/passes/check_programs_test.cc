#include "passes/check_programs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "ir/diagnostic.h"
#include "tests/ir/thrown.h"
#include "tests/passes/check_programs_fixture.h"

namespace shardc::testing {
namespace {

using ::testing::HasSubstr;
namespace t = training;
namespace c = collective;

void Check(const ProgramSet& set) {
  std::vector<const Program*> programs;
  for (const Program& p : set) programs.push_back(&p);
  CheckProgramSet(programs);
}

std::vector<BrokenCase> AllBroken() {
  std::vector<BrokenCase> all;
  for (auto* make : {BrokenMemory, BrokenBuffers, BrokenInstructions, BrokenSets}) {
    std::vector<BrokenCase> some = make();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

class CheckProgramsBroken : public ::testing::TestWithParam<BrokenCase> {};

TEST_P(CheckProgramsBroken, IsRefused) {
  const BrokenCase& broken = GetParam();
  ProgramSet set = broken.valid();
  ASSERT_NO_THROW(Check(set));
  broken.break_it(set);
  const Diagnostic d = Thrown([&] { Check(set); });
  EXPECT_EQ(d.id(), broken.id) << d.what();
  EXPECT_EQ(d.code(), ExitCode::kVerification);
  EXPECT_THAT(d.where() + ": " + d.message(), HasSubstr(broken.word));
  EXPECT_THAT(d.fix(), HasSubstr("compile again"));
  if (broken.id < "E3200") {
    EXPECT_THAT(d.where(), HasSubstr("rank "));
  }
}

// A program that differs from the first one is looked at itself, whatever differs.
TEST_P(CheckProgramsBroken, IsRefusedOnTheLastRankAlone) {
  const BrokenCase& broken = GetParam();
  ProgramSet set = broken.valid(), damaged = set;
  broken.break_it(damaged);
  if (broken.id >= "E3200" || SerializeBody(damaged.back()) == SerializeBody(set.back())) return;
  set.back() = damaged.back();
  EXPECT_EQ(Thrown([&] { Check(set); }).code(), ExitCode::kVerification);
}

INSTANTIATE_TEST_SUITE_P(All, CheckProgramsBroken, ::testing::ValuesIn(AllBroken()),
                         [](const auto& info) { return info.param.name; });

TEST(CheckPrograms, BrokenCasesAreManyAndNamedOnce) {
  std::set<std::string> names, ids;
  for (const BrokenCase& b : AllBroken()) {
    EXPECT_TRUE(names.insert(b.name).second) << b.name;
    ids.insert(b.id);
  }
  EXPECT_GE(names.size(), 100u);
  EXPECT_EQ(ids.size(), 14u + 8u) << "every id of the checker has a case";
}

void ExpectValid(ProgramSet set, const std::function<void(ProgramSet&)>& change) {
  change(set);
  EXPECT_EQ(TextThrownBy([&] { Check(set); }), "none");
}

TEST(CheckPrograms, AcceptsTheBaseSets) {
  EXPECT_NO_THROW(Check(TrainingSet()));
  EXPECT_NO_THROW(Check(CollectiveSet()));
  EXPECT_NO_THROW(Check(PipelineSet()));
}

TEST(CheckPrograms, AcceptsAnEmptyProgram) { EXPECT_NO_THROW(Check({Program()})); }

TEST(CheckPrograms, AcceptsBodiesThatDifferButFit) {
  // Independent work in another order, and other memory, on one rank.
  ExpectValid(TrainingSet(), OnRank(1, [](Program& p) {
                MoveInstruction(p, t::kAddStep, 0);
                p.arena_bytes += 64;
              }));
  // A collective that moves past local work, but not past another collective.
  ExpectValid(CollectiveSet(),
              OnRank(2, [](Program& p) { MoveInstruction(p, c::kPack, c::kPack - 1); }));
}

TEST(CheckPrograms, AcceptsGroupsThatDifferFromEachOther) {
  // The two groups over tp run the same two collectives in opposite orders, and one runs a third.
  ExpectValid(CollectiveSet(), [](ProgramSet& set) {
    for (Program& p : set) {
      bool first = p.rank < 2;
      AppendCollective(p, CollectiveKind::kAllReduce, {1});
      AppendCollective(p, CollectiveKind::kAllToAll, {1});
      if (!first) continue;
      auto last = static_cast<int>(p.instructions.size()) - 1;
      MoveInstruction(p, last, last - 1);
      AppendCollective(p, CollectiveKind::kAllGather, {1});
    }
  });
}

TEST(CheckPrograms, AcceptsOtherOrdersWhereNoCircleForms) {
  // One rank takes tp before dp: its partner over tp arrives after its own dp, which needs no one
  // else.
  for (size_t odd = 0; odd < 4; ++odd) {
    ExpectValid(CollectiveSet(), [=](ProgramSet& set) {
      for (size_t r = 0; r < set.size(); ++r) {
        AppendCollective(set[r], CollectiveKind::kAllReduce, {0});
        AppendCollective(set[r], CollectiveKind::kAllReduce, {1});
        auto last = static_cast<int>(set[r].instructions.size()) - 1;
        if (r == odd) MoveInstruction(set[r], last, last - 1);
      }
    });
  }
}

TEST(CheckPrograms, AcceptsElementwiseInPlaceThroughAView) {
  ExpectValid(TrainingSet(), OnAll([](Program& p) {
                p.outputs.erase(p.outputs.begin() + 2);
                p.buffers[t::kE].offset = 0;
              }));
}

TEST(CheckPrograms, AcceptsAnAllReduceIntoItsOwnBuffer) {
  ExpectValid(TrainingSet(), OnAll([](Program& p) {
                p.instructions[t::kAllReduce].results = {t::kY};
                p.instructions[t::kRelu].operands = {t::kY};
              }));
}

TEST(CheckPrograms, AcceptsReadsOfTheUpdatedState) {
  ExpectValid(TrainingSet(), OnAll([](Program& p) {
                int doubled = AddArenaBuffer(p, p.buffers[t::kW].type);
                AddInstruction(p, "add", {t::kNewW, t::kNewW}, {doubled});
                p.outputs.push_back({"doubled", doubled});
                p.outputs.push_back({"w", t::kNewW});
              }));
}

TEST(CheckPrograms, AcceptsConstantsAndInputsAsOutputs) {
  ExpectValid(TrainingSet(), OnAll([](Program& p) {
                p.outputs.push_back({"one", t::kOne});
                p.outputs.push_back({"same", t::kX});
              }));
}

TEST(CheckPrograms, AcceptsBuffersWithoutElements) {
  ExpectValid(TrainingSet(), OnAll([](Program& p) {
                int none = AddArenaBuffer(p, F32({0, 4})), also = AddArenaBuffer(p, F32({0, 4}));
                AddInstruction(p, "neg", {none}, {also});
                p.outputs.push_back({"none", also});
              }));
}

TEST(CheckPrograms, NamesRankInstructionOpSiteAndBuffer) {
  ProgramSet set = TrainingSet();
  set[1].instructions[t::kRelu].operands = {t::kY};
  set[1].instructions[t::kRelu].site = "h.0.mlp";
  const Diagnostic d = Thrown([&] { Check(set); });
  EXPECT_EQ(d.where(), "rank 1, instruction 2 (relu at h.0.mlp)");
  EXPECT_THAT(d.message(), HasSubstr("buffer 5 (f32[4, 8], arena from 0, 128 bytes)"));
  EXPECT_THAT(d.message(), HasSubstr("instruction 1 (all_reduce)"));
}

// Whatever the numbers in a program are, the checker answers: it passes or throws a Diagnostic.
TEST(CheckPrograms, SurvivesDamageAnywhere) {
  std::mt19937 random(7);
  auto pick = [&](size_t n) { return static_cast<int>(random() % n); };
  const int64_t odd[] = {-1, 0, 1, 2, 3, 7, 63, 64, 128, 1 << 20, INT64_MAX, INT64_MIN, -64};
  int refused = 0;
  constexpr int kRounds = 4000;
  for (int round = 0; round < kRounds; ++round) {
    ProgramSet set = round % 2 ? TrainingSet() : CollectiveSet();
    Program& p = set[pick(set.size())];
    Buffer& b = p.buffers[pick(p.buffers.size())];
    Instruction& i = p.instructions[pick(p.instructions.size())];
    Collective& all = p.collectives[pick(p.collectives.size())];
    int64_t value = odd[pick(std::size(odd))];
    int small = static_cast<int>(value);
    const std::function<void()> damage[] = {
        [&] { b.offset = value; },
        [&] { b.bytes = value; },
        [&] { b.alias_of = small; },
        [&] { b.space = static_cast<Space>(pick(6)); },
        [&] { b.local_shape.assign(1, value); },
        [&] { b.type.dtype = static_cast<DType>(pick(9)); },
        [&] { b.type.shape.push_back(value); },
        [&] {
          if (!b.type.shape.empty()) b.type.shape[0] = value;
        },
        [&] {
          if (!b.type.shape.empty()) b.type.sharding.dims[0].granule = value;
        },
        [&] {
          if (!b.type.shape.empty()) b.type.sharding.dims[0].segments = {value, value};
        },
        [&] { b.type.sharding.partial_sum.push_back(pick(4)); },
        [&] { i.operands[0] = small; },
        [&] { i.results[0] = pick(p.buffers.size()); },
        [&] { i.collective = small; },
        [&] { i.scratch = small; },
        [&] { i.op = p.instructions[pick(p.instructions.size())].op; },
        [&] { std::swap(i, p.instructions[0]); },
        [&] { all.axes.push_back(small); },
        [&] { all.elements = value; },
        [&] { all.kind = static_cast<CollectiveKind>(pick(8)); },
        [&] { p.arena_bytes = value; },
        [&] { p.inputs[0].buffer = small; },
        [&] { p.outputs[0].buffer = small; },
        [&] { p.rank = value; },
    };
    damage[pick(std::size(damage))]();
    try {
      Check(set);
    } catch (const Diagnostic& d) {
      ++refused;
      EXPECT_EQ(d.code(), ExitCode::kVerification) << d.what();
    }
  }
  EXPECT_GT(refused, kRounds / 2);
}

// A long chain over many places of the arena, and a collective every ten instructions.
Program LongProgram(int instructions) {
  Program p;
  p.mesh = Mesh::Parse("tp=8");
  p.buffers.push_back(MakeBuffer(p.mesh, F32({4, 8}), Space::kInput, 0, "x"));
  p.inputs = {{"x", 0}};
  p.arena_bytes = 128 * 1000;
  for (int i = 0; i < instructions; ++i) {
    bool reduce = i % 10 == 9;
    p.buffers.push_back(MakeBuffer(p.mesh, F32({4, 8}), Space::kArena, i % 1000 * 128));
    AddInstruction(p, reduce ? "all_reduce" : "add", {i}, {i + 1});
    if (!reduce) {
      p.instructions.back().operands.push_back(i < 500 ? i : i - 500);
      continue;
    }
    Collective all;
    all.id = p.instructions.back().collective = static_cast<int>(p.collectives.size());
    all.axes = {0};
    all.elements = 32;
    p.collectives.push_back(all);
  }
  p.outputs = {{"y", instructions}};
  return p;
}

// Counted, not timed. A little more than four times: while the arena fills there is less to
// overwrite.
TEST(CheckPrograms, WorkGrowsNoFasterThanTheProgramAndTheRanks) {
  auto visits = [](int instructions, int ranks, bool distinct) {
    ProgramSet set(static_cast<size_t>(ranks), LongProgram(instructions));
    std::vector<const Program*> programs;
    for (size_t r = 0; r < set.size(); ++r) {
      set[r].mesh = Mesh::Parse(StrCat("tp=", ranks));
      set[r].rank = static_cast<int64_t>(r);
      // A difference that ranks may have.
      if (distinct) set[r].instructions[0].site = StrCat("rank ", r);
      programs.push_back(&set[r]);
    }
    return CheckProgramSet(programs);
  };
  EXPECT_GE(visits(3000, 2, false), 3000 * 3);
  for (bool distinct : {false, true}) {
    EXPECT_LE(10 * visits(12000, 2, distinct), 42 * visits(3000, 2, distinct)) << distinct;
  }
  // Equal bodies are only compared.
  EXPECT_LE(visits(3000, 8, false), visits(3000, 2, false) + 6 * 6001);
  // Each rank is compared with those before it; the rest grows with the ranks.
  const int64_t comparisons = 8 * 7 / 2 * 6001;
  EXPECT_LE(visits(3000, 8, true) - comparisons, 4 * visits(3000, 2, true));
}

}  // namespace
}  // namespace shardc::testing
