#include "tests/passes/check_programs_fixture.h"

namespace shardc::testing {

namespace t = training;
namespace c = collective;

namespace {

std::vector<BrokenCase> BrokenReads() {
  return {
      {"ReadsWhatNothingWrote", TrainingSet,
       OnAll([](Program& p) { p.instructions[t::kNeg].operands = {t::kNegated}; }), "E3101",
       "nothing has written it"},
      {"ReadsTooEarly", TrainingSet,
       OnAll([](Program& p) { MoveInstruction(p, t::kNeg, t::kExp); }), "E3101", "buffer 14"},
      {"WriterIsGone", TrainingSet,
       OnAll([](Program& p) { p.instructions.erase(p.instructions.begin() + t::kMatmulTn); }),
       "E3101", "(sgd"},
      {"ReadsAViewTooEarly", TrainingSet, OnAll([](Program& p) { MoveInstruction(p, t::kExp, 0); }),
       "E3101", "buffer 13"},
      {"OneRankReadsTooEarly", TrainingSet,
       OnRank(1, [](Program& p) { MoveInstruction(p, t::kReduceLoss, 0); }), "E3101", "rank 1"},
      {"CollectiveReadsAnotherSize", CollectiveSet,
       OnAll([](Program& p) { p.instructions[c::kSwap].operands = {c::kNarrow}; }), "E3109",
       "do not fit"},
      {"SecondOperandOfABucketIsMissing", CollectiveSet,
       OnAll([](Program& p) { p.instructions[c::kBucket].operands[1] = c::kSwapped; }), "E3101",
       "operand 1"},
      {"CollectiveComesBeforeItsPack", CollectiveSet,
       OnAll([](Program& p) { MoveInstruction(p, c::kPack, c::kScatterColumns); }), "E3101",
       "(reduce_scatter"},
      {"ReadsScratch", TrainingSet, OnAll([](Program& p) {
         int copy = AddArenaBuffer(p, F32({16}));
         AddInstruction(p, "neg", {t::kScratch}, {copy});
       }),
       "E3101", "buffer 16"},
      {"OnlyAPartWasWritten", TrainingSet, OnAll([](Program& p) {
         // Written through a shorter view, read whole.
         int whole = AddArenaBuffer(p, F32({64})), copy = AddArenaBuffer(p, F32({64}));
         p.buffers.push_back(MakeBuffer(p.mesh, F32({32}), Space::kArena, p.buffers[whole].offset));
         p.buffers.back().alias_of = whole;
         AddInstruction(p, "neg", {t::kE}, {static_cast<int>(p.buffers.size()) - 1});
         AddInstruction(p, "neg", {whole}, {copy});
       }),
       "E3101", "only a part"},
      {"ReadsTheNewStateBeforeItsUpdate", TrainingSet,
       OnAll([](Program& p) { p.instructions[t::kMatmul].operands[1] = t::kNewW; }), "E3101",
       "not updated yet"},
      {"ReadsTheOperandOfAnInPlaceOp", TrainingSet,
       OnAll([](Program& p) { p.instructions[t::kReduceLoss].operands = {t::kZ}; }), "E3102",
       "recycled"},
      {"ReadsTheOperandOfAnInPlaceCollective", TrainingSet,
       OnAll([](Program& p) { p.instructions[t::kRelu].operands = {t::kY}; }), "E3102",
       "(all_reduce)"},
      {"ReadsTheGradientAfterItWasRecycled", TrainingSet,
       OnAll([](Program& p) { MoveInstruction(p, t::kSgd, t::kNeg); }), "E3102", "(neg)"},
      {"OverwritesTheFirstBytes", TrainingSet,
       OnAll([](Program& p) { p.buffers[t::kNextStep].offset = 128; }), "E3102", "(add)"},
      {"OverwritesTheMiddle", TrainingSet,
       OnAll([](Program& p) { p.buffers[t::kNextStep].offset = 192; }), "E3102", "(sgd"},
      {"OverwritesWithItsEnd", TrainingSet, OnAll([](Program& p) {
         Retype(p, t::kLoss, F32({32}));
         p.buffers[t::kLoss].offset = 64;
         p.instructions[t::kReduceLoss] = p.instructions[t::kRelu];
         p.instructions[t::kReduceLoss].operands = {t::kOne};
         p.instructions[t::kReduceLoss].op = "broadcast_to";
         p.instructions[t::kReduceLoss].attrs = {{"shape", Ints{32}}};
         p.instructions[t::kReduceLoss].results = {t::kLoss};
       }),
       "E3102", "recycled"},
      {"ScratchOverwritesAValue", TrainingSet, OnAll([](Program& p) {
         MoveInstruction(p, t::kAddStep, 0);
         p.buffers[t::kScratch].offset = 320;
       }),
       "E3102", "(matmul_tn)"},
      {"RanksRecycleAlone", CollectiveSet,
       OnRank(3, [](Program& p) { p.buffers[c::kMax].offset = 64; }), "E3102", "rank 3"},
      {"AllGatherOverwritesWhatIsReadLater", CollectiveSet,
       OnAll([](Program& p) { p.buffers[c::kGathered].offset = 0; }), "E3102", "buffer 3"},
      {"AnotherValueInTheSamePlace", CollectiveSet,
       OnAll([](Program& p) { p.instructions[c::kSwap].operands = {c::kScattered}; }), "E3102",
       "(all_reduce)"},
  };
}

std::vector<BrokenCase> BrokenOverlaps() {
  return {
      {"MatmulInPlace", TrainingSet, OnAll([](Program& p) {
         p.buffers[t::kGradient].offset = 0;
         p.outputs.resize(2);
       }),
       "E3103", "(matmul_tn"},
      {"ElementwiseShifted", TrainingSet, OnAll([](Program& p) { p.buffers[t::kE].offset = 64; }),
       "E3103", "in place"},
      {"ElementwiseOfOtherElementSizes", TrainingSet, OnAll([](Program& p) {
         // f64 [1, 4] broadcast against bool [8, 4]: the same bytes, but another order.
         int small = AddArenaBuffer(p, TensorType(DType::kF64, {1, 4}));
         int large = AddArenaBuffer(p, TensorType(DType::kF64, {8, 4}));
         int less = AddArenaBuffer(p, TensorType(DType::kBool, {8, 4}));
         for (int b : {small, large}) {
           int64_t rows = p.buffers[b].type.shape[0];
           AddInstruction(p, "broadcast_to", {t::kX}, {b}, {{"shape", Ints{rows, 4}}});
           int source = AddArenaBuffer(p, TensorType(DType::kF64, {}));
           p.instructions.back().operands = {source};
           AddInstruction(p, "cast", {t::kOne}, {source}, {{"to", std::string("f64")}});
           std::swap(p.instructions.back(), p.instructions[p.instructions.size() - 2]);
         }
         p.buffers[less].offset = p.buffers[small].offset;
         AddInstruction(p, "less", {small, large}, {less});
       }),
       "E3103", "(less"},
      {"ResultsOverlapEachOther", CollectiveSet, OnAll([](Program& p) {
         p.instructions[c::kBucket].results = {c::kSum0, c::kSum0};
       }),
       "E3103", "result 1"},
      {"ResultsOverlapInPart", TrainingSet, OnAll([](Program& p) {
         int a = AddArenaBuffer(p, F32({16})), b = AddArenaBuffer(p, F32({16}));
         p.buffers[a].offset = 384;
         p.buffers[b].offset = 384;
         p.buffers[b].offset = 384;
         AddInstruction(p, "split", {t::kNegated}, {a, b},
                        {{"axis", int64_t{0}}, {"sizes", Ints{16, 16}}});
       }),
       "E3103", "result 0"},
      {"BucketInPlaceOfItsOtherOperand", CollectiveSet,
       OnAll([](Program& p) { std::swap(p.buffers[c::kSum0].offset, p.buffers[c::kSum1].offset); }),
       "E3103", "(all_reduce"},
      {"AllGatherInPlace", CollectiveSet,
       OnAll([](Program& p) { p.buffers[c::kGathered].offset = 128; }), "E3103", "(all_gather"},
      {"AllToAllInPlace", CollectiveSet,
       OnAll([](Program& p) { p.buffers[c::kSwapped].offset = 320; }), "E3103", "(all_to_all"},
      {"ReduceScatterInPlace", CollectiveSet, OnAll([](Program& p) {
         p.buffers[c::kScattered].offset = p.buffers[c::kSum0].offset = 192;
       }),
       "E3103", "(reduce_scatter"},
      {"UnpackInPlace", CollectiveSet, OnAll([](Program& p) { p.buffers[c::kPieces].offset = 64; }),
       "E3103", "(unpack"},
      {"PackInPlace", CollectiveSet, OnAll([](Program& p) { p.buffers[c::kPacked].offset = 64; }),
       "E3103", "(pack"},
      {"ScratchOverlapsAnOperand", TrainingSet,
       OnAll([](Program& p) { p.buffers[t::kScratch].offset = 64; }), "E3103", "scratch"},
      {"ScratchOverlapsAResult", TrainingSet,
       OnAll([](Program& p) { p.buffers[t::kScratch].offset = 192; }), "E3103", "scratch"},
      {"ScratchIsTheResult", TrainingSet,
       OnAll([](Program& p) { p.instructions[t::kMatmulTn].scratch = t::kGradient; }), "E3103",
       "(matmul_tn"},
      {"OptimizerMixesUpItsStates", TrainingSet, OnAll([](Program& p) {
         std::swap(p.instructions[t::kSgd].results[0], p.instructions[t::kSgd].results[1]);
       }),
       "E3103", "(sgd"},
      {"OptimizerUpdatesInPlaceOfTheGradient", TrainingSet, OnAll([](Program& p) {
         Buffer& b = p.buffers[t::kNewW];
         b.space = Space::kArena;
         b.offset = 128;
         b.name.clear();
       }),
       "E3103", "operand 1"},
      {"WritesABufferTwice", TrainingSet,
       OnAll([](Program& p) { AddInstruction(p, "neg", {t::kLoss}, {t::kNextStep}); }), "E3103",
       "again"},
      {"WritesThroughAViewAgain", TrainingSet,
       OnAll([](Program& p) { AddInstruction(p, "neg", {t::kE}, {t::kFlat}); }), "E3103", "again"},
      {"MatmulWritesTheStateItReads", TrainingSet, OnAll([](Program& p) {
         int ones = AddArenaBuffer(p, F32({8, 8}));
         AddInstruction(p, "broadcast_to", {t::kOne}, {ones}, {{"shape", Ints{8, 8}}});
         MoveInstruction(p, t::kSgd, static_cast<int>(p.instructions.size()) - 1);
         Instruction& i = p.instructions.back();
         i = p.instructions[t::kMatmulTn];
         i.op = "matmul_nt";
         i.attrs = {};
         i.scratch = -1;
         i.operands = {t::kW, ones};
         i.results = {t::kNewW};
       }),
       "E3103", "in place"},
  };
}

std::vector<BrokenCase> BrokenStates() {
  return {
      {"WritesAnInput", TrainingSet,
       OnAll([](Program& p) { AddInstruction(p, "neg", {t::kX}, {t::kX}); }), "E3106", "read only"},
      {"WritesAConstant", TrainingSet,
       OnAll([](Program& p) { p.instructions[t::kReduceLoss].results = {t::kOne}; }), "E3106",
       "buffer 1"},
      {"CollectiveWritesAnInput", CollectiveSet,
       OnAll([](Program& p) { p.instructions[c::kReduceY].results = {c::kY}; }), "E3106", "'y'"},
      {"WritesAnInputThroughAView", TrainingSet, OnAll([](Program& p) {
         p.buffers.push_back(MakeBuffer(p.mesh, F32({16}), Space::kInput, 0, "x"));
         p.buffers.back().alias_of = t::kX;
         int view = static_cast<int>(p.buffers.size()) - 1;
         AddInstruction(p, "broadcast_to", {t::kLoss}, {view}, {{"shape", Ints{16}}});
       }),
       "E3106", "read only"},
      {"OutputIsNeverWritten", TrainingSet, OnAll([](Program& p) {
         p.outputs.push_back({"more", AddArenaBuffer(p, F32({4}))});
       }),
       "E3107", "output 'more'"},
      {"OutputIsRecycled", TrainingSet, OnAll([](Program& p) {
         p.outputs.push_back({"gradient", t::kGradient});
       }),
       "E3107", "output 'gradient'"},
      {"OutputIsScratch", TrainingSet, OnAll([](Program& p) {
         p.outputs.push_back({"scratch", t::kScratch});
       }),
       "E3107", "not alive"},
      {"OutputViewIsRecycled", TrainingSet, OnAll([](Program& p) { p.buffers[t::kE].offset = 0; }),
       "E3107", "output 'hidden'"},
      {"UpdatesAStateTwice", TrainingSet,
       OnAll([](Program& p) { AddInstruction(p, "copy", {t::kLoss}, {t::kStep}); }), "E3111",
       "again"},
      {"UpdatesAPartOfAState", TrainingSet, OnAll([](Program& p) {
         p.buffers.push_back(MakeBuffer(p.mesh, F32({4}), Space::kState, 0, "momentum"));
         p.buffers.back().alias_of = t::kNewMomentum;
         p.instructions[t::kSgd] = p.instructions[t::kReduceLoss];
         p.instructions[t::kSgd].op = "broadcast_to";
         p.instructions[t::kSgd].attrs = {{"shape", Ints{4}}};
         p.instructions[t::kSgd].operands = {t::kLoss};
         p.instructions[t::kSgd].results = {static_cast<int>(p.buffers.size()) - 1};
       }),
       "E3111", "a part of the state"},
      {"ReadsAStateAfterItsUpdate", TrainingSet, OnAll([](Program& p) {
         AddInstruction(p, "neg", {t::kW}, {AddArenaBuffer(p, p.buffers[t::kW].type)});
       }),
       "E3114", "after its update"},
      {"ReadsAStateThatIsAnOutputAfterItsUpdate", TrainingSet, OnAll([](Program& p) {
         p.outputs.push_back({"w", t::kNewW});
         AddInstruction(p, "neg", {t::kW}, {AddArenaBuffer(p, p.buffers[t::kW].type)});
       }),
       "E3114", "after its update"},
      {"ReadsTheStepAfterItsCopy", TrainingSet, OnAll([](Program& p) {
         MoveInstruction(p, t::kCopyStep, t::kSgd);
         p.instructions[t::kSgd + 1].operands[5] = t::kStep;
       }),
       "E3114", "'step'"},
      {"UpdatesBeforeTheForwardStep", TrainingSet, OnAll([](Program& p) {
         AddInstruction(p, "copy", {t::kW}, {t::kNewW});
         p.instructions.erase(p.instructions.begin() + t::kSgd);
         MoveInstruction(p, static_cast<int>(p.instructions.size()) - 1, 0);
       }),
       "E3114", "(matmul"},
      {"ReadsAViewOfAStateAfterItsUpdate", TrainingSet, OnAll([](Program& p) {
         p.buffers.push_back(MakeBuffer(p.mesh, F32({64}, {0}), Space::kState, 0, "w"));
         p.buffers.back().alias_of = t::kW;
         int view = static_cast<int>(p.buffers.size()) - 1;
         AddInstruction(p, "neg", {view}, {AddArenaBuffer(p, p.buffers[view].type)});
       }),
       "E3114", "(sgd)"},
  };
}

}  // namespace

std::vector<BrokenCase> BrokenMemory() {
  std::vector<BrokenCase> all;
  for (auto* make : {BrokenReads, BrokenOverlaps, BrokenStates}) {
    std::vector<BrokenCase> some = make();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

}  // namespace shardc::testing
