#include "tests/passes/check_programs_fixture.h"

namespace shardc::testing {

namespace t = training;
namespace c = collective;

namespace {

using Kind = CollectiveKind;
enum { kDp = 0, kTp = 1 };
enum Places { kMax = 1, kBucket = 4, kSumY = 7 };  // in Program::collectives

// Appends collectives that differ on one rank.
std::function<void(ProgramSet&)> OddOne(size_t odd, std::function<void(Program&)> usual,
                                        std::function<void(Program&)> other) {
  return [=](ProgramSet& set) {
    for (size_t r = 0; r < set.size(); ++r) (r == odd ? other : usual)(set[r]);
  };
}

std::function<void(Program&)> Call(Kind kind, std::vector<int> axes, int64_t elements = 8,
                                   DType dtype = DType::kF32, bool max = false) {
  return [=](Program& p) { AppendCollective(p, kind, axes, elements, dtype, max); };
}

std::vector<BrokenCase> BrokenShapesOfSets() {
  return {
      {"NoPrograms", TrainingSet, [](ProgramSet& set) { set.clear(); }, "E3201", "no program"},
      {"OneProgramIsMissing", CollectiveSet, [](ProgramSet& set) { set.pop_back(); }, "E3201",
       "3 programs for the 4 ranks"},
      {"OneProgramTooMany", CollectiveSet,
       [](ProgramSet& set) { set.push_back(Program(set.back())); }, "E3201", "5 programs"},
      {"RanksOutOfOrder", CollectiveSet, [](ProgramSet& set) { std::swap(set[1], set[2]); },
       "E3202", "is for rank 2"},
      {"RankTwice", CollectiveSet, [](ProgramSet& set) { set[3].rank = 2; }, "E3202",
       "is for rank 2, not for rank 3"},
      {"RankBeyondTheMesh", CollectiveSet, [](ProgramSet& set) { set[3].rank = 4; }, "E3202",
       "is for rank 4"},
      {"NegativeRank", TrainingSet, [](ProgramSet& set) { set[0].rank = -1; }, "E3202",
       "is for rank -1"},
      {"OtherMesh", CollectiveSet, OnRank(2, [](Program& p) { p.mesh = Mesh::Parse("dp=4,tp=1"); }),
       "E3203", "dp=4,tp=1"},
      {"OtherNamesOfAxes", CollectiveSet,
       OnRank(1, [](Program& p) { p.mesh = Mesh::Parse("tp=2,dp=2"); }), "E3203", "tp=2,dp=2"},
      {"RankLacksAnOutput", TrainingSet, OnRank(1, [](Program& p) { p.outputs.pop_back(); }),
       "E3207", "has 3 outputs"},
      {"RankCallsAnOutputOtherwise", TrainingSet,
       OnRank(1, [](Program& p) { p.outputs[0].name = "cost"; }), "E3207", "'cost'"},
      {"RankHasOutputsInAnotherOrder", TrainingSet,
       OnRank(1, [](Program& p) { std::swap(p.outputs[0], p.outputs[1]); }), "E3207", "output 0"},
      {"RankHasAnInputOfAnotherType", CollectiveSet,
       OnRank(3,
              [](Program& p) {
                // The same bytes, cut along another axis.
                for (int b : {c::kY, c::kSumY}) Retype(p, b, F32({8}, {kDp}));
              }),
       "E3207", "input 'y'"},
      {"RankHasOneStateMore", TrainingSet,
       OnRank(1,
              [](Program& p) {
                p.buffers.push_back(MakeBuffer(p.mesh, F32({4}), Space::kState, 0, "more"));
                p.states.push_back({"more", static_cast<int>(p.buffers.size()) - 1});
              }),
       "E3207", "has 4 states"},
      {"RankHasAStateOfAnotherCut", TrainingSet,
       OnRank(1,
              [](Program& p) {
                for (int b : {t::kMomentum, t::kNewMomentum}) Retype(p, b, F32({8, 8}, {-1, 0}));
                AddInstruction(p, "copy", {t::kMomentum}, {t::kNewMomentum});
                p.instructions.erase(p.instructions.begin() + t::kSgd);
              }),
       "E3207", "state 'momentum'"},
  };
}

// Ranks that are alike are checked once.
std::vector<BrokenCase> BrokenOnOneRank() {
  return {
      {"OneRankHasAnAttributeThatDoesNotFit", TrainingSet,
       OnRank(1,
              [](Program& p) {
                p.instructions[t::kReduceLoss].attrs.Set("axes", Ints{0, 5});
              }),
       "E3108", "rank 1"},
      {"OneRankHasNoSuchScratch", TrainingSet,
       OnRank(1, [](Program& p) { p.instructions[t::kMatmulTn].scratch = 99; }), "E3104", "rank 1"},
      {"OneRankHasNoView", TrainingSet,
       OnRank(1, [](Program& p) { p.buffers[t::kFlat].alias_of = -1; }), "E3101", "rank 1"},
      {"OneRankSendsToItself", PipelineSet, OnRank(1, [](Program& p) { p.collectives[0].to = 0; }),
       "E3109", "rank 1"},
  };
}

std::vector<BrokenCase> BrokenMeetings() {
  return {
      {"OneRankSumsWhereOthersTakeTheMaximum", CollectiveSet,
       OnRank(2, [](Program& p) { p.collectives[kMax].max = false; }), "E3204", "differ in kind"},
      {"OneRankHasAnotherKind", CollectiveSet,
       OddOne(3, Call(Kind::kAllReduce, {kTp}), Call(Kind::kAllToAll, {kTp})), "E3204",
       "all_to_all"},
      {"OneRankHasAnotherElementType", CollectiveSet,
       OddOne(1, Call(Kind::kAllReduce, {kTp}), Call(Kind::kAllReduce, {kTp}, 8, DType::kI32)),
       "E3204", "differ in element type"},
      {"OneRankHasMoreElements", CollectiveSet,
       OddOne(0, Call(Kind::kAllReduce, {kDp}), Call(Kind::kAllReduce, {kDp}, 9)), "E3204",
       "differ in size"},
      {"OneRankHasTheBucketInAnotherOrder", CollectiveSet,
       OddOne(
           2,
           [](Program& p) {
             AppendCollective(p, Kind::kAllReduce, {kDp}, 4);
             int more = AddArenaBuffer(p, F32({8}, {kTp}));
             p.instructions.back().operands.push_back(c::kY);
             p.instructions.back().results.push_back(more);
             p.collectives.back().elements = 8;
           },
           Call(Kind::kAllReduce, {kDp}, 8)),
       "E3204", "differ in size"},
      {"OneRankHasAnotherId", CollectiveSet,
       OnRank(1, [](Program& p) { p.collectives[kSumY].id = 50; }), "E3204", "differ in id"},
      {"OneRankHasTheAxesInAnotherOrder", CollectiveSet,
       OnRank(3,
              [](Program& p) {
                p.collectives[kMax].axes = {kTp, kDp};
              }),
       "E3204", "order of axes"},
      {"OneRankSwapsTwoCollectivesOfAGroup", CollectiveSet,
       OddOne(
           1,
           [](Program& p) {
             Call(Kind::kAllReduce, {kTp})(p);
             Call(Kind::kAllGather, {kTp})(p);
           },
           [](Program& p) {
             Call(Kind::kAllGather, {kTp})(p);
             Call(Kind::kAllReduce, {kTp})(p);
           }),
       "E3204", "all_gather"},
      {"TheIdsTellSwappedCollectivesApart", CollectiveSet,
       OddOne(
           0,
           [](Program& p) {
             Call(Kind::kAllReduce, {kTp})(p);
             Call(Kind::kAllReduce, {kTp})(p);
           },
           [](Program& p) {
             Call(Kind::kAllReduce, {kTp})(p);
             Call(Kind::kAllReduce, {kTp})(p);
             auto last = static_cast<int>(p.instructions.size()) - 1;
             MoveInstruction(p, last, last - 1);
           }),
       "E3204", "differ in id"},
      {"TheSecondGroupMeetsInAnotherSize", CollectiveSet,
       OddOne(2, Call(Kind::kAllReduce, {kTp}), Call(Kind::kAllReduce, {kTp}, 16)), "E3204",
       "rank 2"},
      {"OneRankSkipsACollective", CollectiveSet,
       OnRank(0,
              [](Program& p) {
                // A later call over the same axes meets the one that was skipped.
                p.instructions.erase(p.instructions.begin() + c::kReduceY);
                p.collectives.pop_back();
                p.outputs[3].buffer = c::kY;
                Call(Kind::kAllGather, {kDp})(p);
              }),
       "E3204", "all_gather"},
  };
}

std::vector<BrokenCase> BrokenOrders() {
  auto swap_last = [](Program& p) {
    auto last = static_cast<int>(p.instructions.size()) - 1;
    MoveInstruction(p, last, last - 1);
  };
  auto dp_then_tp = [](Program& p) {
    Call(Kind::kAllReduce, {kDp})(p);
    Call(Kind::kAllReduce, {kTp})(p);
  };
  auto tp_then_dp = [=](Program& p) {
    dp_then_tp(p);
    swap_last(p);
  };
  auto dp_then_all = [](Program& p) {
    Call(Kind::kAllReduce, {kDp})(p);
    Call(Kind::kAllReduce, {kDp, kTp})(p);
  };
  auto all_then_dp = [=](Program& p) {
    dp_then_all(p);
    swap_last(p);
  };
  return {
      {"OneRankReducesOverAllFirst", CollectiveSet, OddOne(0, dp_then_all, all_then_dp), "E3205",
       "deadlock"},
      {"OneRankReducesOverAllLast", CollectiveSet, OddOne(3, all_then_dp, dp_then_all), "E3205",
       "rank 3"},
      {"RanksWaitInACircle", CollectiveSet,
       [=](ProgramSet& set) {
         for (size_t r : {0u, 3u}) dp_then_tp(set[r]);
         for (size_t r : {1u, 2u}) tp_then_dp(set[r]);
       },
       "E3205", "all_reduce"},
      {"RanksWaitInTheOtherCircle", CollectiveSet,
       [=](ProgramSet& set) {
         for (size_t r : {0u, 3u}) tp_then_dp(set[r]);
         for (size_t r : {1u, 2u}) dp_then_tp(set[r]);
       },
       "E3205", "over dp"},
      {"OneRankReducesYFirst", CollectiveSet,
       OnRank(1, [](Program& p) { MoveInstruction(p, c::kReduceY, 0); }), "E3205", "instruction 0"},
      {"OneRankReducesYBeforeTheMaximum", CollectiveSet,
       OnRank(2, [](Program& p) { MoveInstruction(p, c::kReduceY, c::kAllMax); }), "E3205",
       "over dp,tp"},
      {"OneRankReducesOverOtherAxes", CollectiveSet,
       OddOne(1, dp_then_tp,
              [](Program& p) {
                Call(Kind::kAllReduce, {kDp})(p);
                Call(Kind::kAllReduce, {kDp, kTp})(p);
                Call(Kind::kAllReduce, {kTp})(p);
              }),
       "E3206", "ends without it"},
      {"TwoRanksSkipACollective", CollectiveSet,
       [](ProgramSet& set) {
         for (size_t r : {0u, 3u}) Call(Kind::kAllReduce, {kDp})(set[r]);
       },
       "E3206", "for rank 2"},
      {"OneRankEndsEarly", CollectiveSet,
       OnRank(1,
              [](Program& p) {
                p.instructions.erase(p.instructions.begin() + c::kReduceY);
                p.collectives.pop_back();
                p.outputs[3].buffer = c::kY;
              }),
       "E3206", "for rank 1"},
      {"OneRankHasACollectiveMore", CollectiveSet, OnRank(2, Call(Kind::kAllGather, {kTp})),
       "E3206", "for rank 3"},
      {"OneRankHasNoCollectives", TrainingSet,
       OnRank(0,
              [](Program& p) {
                p.collectives.clear();
                Instruction& i = p.instructions[t::kAllReduce];
                i.collective = -1;
                i.op = "neg";
              }),
       "E3206", "for rank 0"},
  };
}

// The same damage on both ranks of a stage.
std::function<void(ProgramSet&)> OnStage(size_t stage, std::function<void(Program&)> change) {
  return [=](ProgramSet& set) {
    for (size_t r : {2 * stage, 2 * stage + 1}) change(set[r]);
  };
}

std::vector<BrokenCase> BrokenPipelines() {
  namespace p = pipeline;
  auto rename = [](SharedVector<NamedBuffer> Program::*list, const char* name) {
    return [=](Program& program) { (program.*list)[0].name = name; };
  };
  return {
      {"TransferOfMoreThanArrives", PipelineSet,
       OnStage(0,
               [](Program& program) {
                 Retype(program, p::kX, F32({9}));
                 Retype(program, p::kA, F32({9}));
                 program.collectives[0].elements = 9;
               }),
       "E3204", "differ in size"},
      {"TransferOfAnotherId", PipelineSet,
       OnStage(1, [](Program& program) { program.collectives[2].id = 7; }), "E3204",
       "differ in id"},
      {"TransferToTheSender", PipelineSet,
       OnStage(0, [](Program& program) { program.collectives[0].to = 0; }), "E3109",
       "from member 0 to member 0"},
      {"TransferOutOfTheGroup", PipelineSet,
       OnStage(0, [](Program& program) { program.collectives[0].to = 2; }), "E3109",
       "to member 2 of a group of 2"},
      {"TransferOfOthers", PipelineSet,
       [](ProgramSet& set) {
         for (Program& program : set) {
           program.mesh = Mesh::Parse("pp=4,tp=1");
           for (Collective& c : program.collectives) {
             if (c.kind == Kind::kSendRecv) c.from = 2, c.to = 3;
           }
         }
       },
       "E3109", "this rank is member 0"},
      {"TransferWithBothEnds", PipelineSet,
       OnStage(0, [](Program& program) { program.instructions[p::kSend].results = {p::kBack}; }),
       "E3109", "1 operands and 1 results, and this rank sends"},
      {"TransferOfNothing", PipelineSet,
       OnStage(1, [](Program& program) { program.instructions[p::kReturn].operands.clear(); }),
       "E3109", "0 operands and 0 results"},
      {"TransferOfAnotherType", PipelineSet,
       OnStage(1, [](Program& program) { program.collectives[0].dtype = DType::kI32; }), "E3109",
       "another element type"},
      {"TransferOfOtherElements", PipelineSet,
       OnStage(1, [](Program& program) { program.collectives[0].elements = 7; }), "E3109",
       "is of 7 elements"},
      {"ASenderOnTheOtherStage", PipelineSet,
       [](ProgramSet& set) {
         for (int64_t r : {2, 3}) {
           set[r] = set[0];
           set[r].rank = r;
         }
       },
       "E3208", "is member 1"},
      {"NobodyReceives", PipelineSet,
       OnStage(1,
               [](Program& program) {
                 program.instructions[p::kGet] = program.instructions[p::kNeg];
                 program.instructions.resize(1);
                 program.instructions[0].operands = {p::kGot};
                 program.buffers[p::kGot].space = Space::kConstant;
                 program.buffers[p::kGot].offset = 0;
                 program.constants.resize(64);
                 program.collectives.clear();
               }),
       "E3206", "for rank 2"},
      {"ReceivesBeforeItSends", PipelineSet,
       OnStage(0, [](Program& program) { MoveInstruction(program, p::kReceive, p::kRelu); }),
       "E3205", "deadlock"},
      {"StagesCallTwoTensorsAlike", PipelineSet,
       OnStage(1,
               [=](Program& program) {
                 rename(&Program::outputs, "back")(program);
                 for (int b : {p::kSum, p::kMade}) Retype(program, b, F32({2, 4}));
               }),
       "E3207", "is another tensor than on rank 0"},
      {"StagesCutATensorIntoOtherPieces", PipelineSet,
       [](ProgramSet& set) {
         for (Program& program : set) {
           NamedBuffer& out = program.outputs[0];
           const int64_t size = program.buffers[out.buffer].type.shape[0];
           if (program.rank >= 2) out.name = "other";
           out.piece = {"back of all", 0, 0, size};
         }
       },
       "E3207", "'back of all', which is in others on rank 0"},
      {"InPiecesOnOneStageOnly", PipelineSet,
       [](ProgramSet& set) {
         for (Program& program : set) {
           NamedBuffer& out = program.outputs[0];
           if (program.rank >= 2) {
             out.name = "back of all";
           } else {
             out.piece = {"back of all", 0, 0, program.buffers[out.buffer].type.shape[0]};
           }
         }
       },
       "E3207", "rank 2, 'back of all': is in pieces on rank 0"},
      {"RanksOfAStageDiffer", PipelineSet, OnRank(3, rename(&Program::outputs, "other")), "E3207",
       "'other'"},
      {"CutOverTheStages", PipelineSet,
       OnStage(0,
               [](Program& program) {
                 Retype(program, p::kX, F32({16}, {0}));
                 Retype(program, p::kA, F32({16}, {0}));
               }),
       "E3207", "is cut over pp"},
  };
}

}  // namespace

std::vector<BrokenCase> BrokenSets() {
  std::vector<BrokenCase> all;
  for (auto* make :
       {BrokenShapesOfSets, BrokenOnOneRank, BrokenMeetings, BrokenOrders, BrokenPipelines}) {
    std::vector<BrokenCase> some = make();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

}  // namespace shardc::testing
