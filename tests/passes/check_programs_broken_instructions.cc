#include "tests/passes/check_programs_fixture.h"

namespace shardc::testing {

namespace t = training;
namespace c = collective;

namespace {

std::vector<BrokenCase> BrokenOps() {
  return {
      {"OperandIsNoBuffer", TrainingSet,
       OnAll([](Program& p) { p.instructions[t::kRelu].operands = {99}; }), "E3104", "buffer 99"},
      {"ResultIsNoBuffer", TrainingSet,
       OnAll([](Program& p) { p.instructions[t::kRelu].results = {-1}; }), "E3104", "result 0"},
      {"ScratchIsNoBuffer", TrainingSet,
       OnAll([](Program& p) { p.instructions[t::kMatmulTn].scratch = 99; }), "E3104", "scratch"},
      {"ScratchIsAState", TrainingSet,
       OnAll([](Program& p) { p.instructions[t::kMatmulTn].scratch = t::kStep; }), "E3104",
       "outside the arena"},
      {"UnknownOp", TrainingSet, OnAll([](Program& p) { p.instructions[t::kRelu].op = "rleu"; }),
       "E3108", "no op 'rleu'"},
      {"OpWithoutAName", TrainingSet, OnAll([](Program& p) { p.instructions[t::kRelu].op = ""; }),
       "E3108", "instruction 2"},
      {"ParamIsNoInstruction", TrainingSet, OnAll([](Program& p) {
         AddInstruction(p, "param", {}, {AddArenaBuffer(p, F32({}))}, {{"name", std::string("w")}});
       }),
       "E3108", "no instruction"},
      {"ReshardIsNoInstruction", TrainingSet,
       OnAll([](Program& p) { p.instructions[t::kExp].op = "reshard"; }), "E3108", "'reshard'"},
      {"TooFewOperands", TrainingSet,
       OnAll([](Program& p) { p.instructions[t::kMatmul].operands = {t::kX}; }), "E3108",
       "has 1 operands, needs 2"},
      {"TooManyOperands", TrainingSet, OnAll([](Program& p) {
         p.instructions[t::kRelu].operands = {t::kZ, t::kZ};
       }),
       "E3108", "has 2 operands"},
      {"OptimizerLacksTheStep", TrainingSet,
       OnAll([](Program& p) { p.instructions[t::kSgd].operands.pop_back(); }), "E3108",
       "needs the step"},
      {"TooFewResults", TrainingSet,
       OnAll([](Program& p) { p.instructions[t::kSgd].results.pop_back(); }), "E3108",
       "has 1 results, needs 2"},
      {"NoResult", TrainingSet, OnAll([](Program& p) { p.instructions[t::kNeg].results.clear(); }),
       "E3108", "no result"},
      {"AttributeIsMissing", TrainingSet,
       OnAll([](Program& p) { p.instructions[t::kReduceLoss].attrs.Erase("axes"); }), "E3108",
       "'axes'"},
      {"AttributeOfTheWrongKind", TrainingSet,
       OnAll([](Program& p) { p.instructions[t::kReduceLoss].attrs.Set("axes", int64_t{0}); }),
       "E3108", "wrong kind"},
      {"AttributeOfAnotherOp", TrainingSet,
       OnAll([](Program& p) { p.instructions[t::kMatmul].attrs.Set("classes", int64_t{9}); }),
       "E3108", "no attribute 'classes'"},
      {"AttributeThatDoesNotFit", TrainingSet, OnAll([](Program& p) {
         p.instructions[t::kReduceLoss].attrs.Set("axes", Ints{0, 5});
       }),
       "E3108", "do not fit"},
      {"CopyOfTwo", TrainingSet,
       OnAll([](Program& p) { p.instructions[t::kCopyStep].operands.push_back(t::kLoss); }),
       "E3108", "moves one buffer"},
      {"PackOfTwo", CollectiveSet,
       OnAll([](Program& p) { p.instructions[c::kPack].operands.push_back(c::kX); }), "E3108",
       "moves one buffer"},
      {"PackLacksItsAxes", CollectiveSet,
       OnAll([](Program& p) { p.instructions[c::kPack].attrs.Erase("axes"); }), "E3108", "'axes'"},
      {"PackOverAnUnknownAxis", CollectiveSet,
       OnAll([](Program& p) { p.instructions[c::kPack].attrs.Set("axes", Strings{"pp"}); }),
       "E3108", "no axis 'pp'"},
      {"PackOverAnAxisTwice", CollectiveSet, OnAll([](Program& p) {
         p.instructions[c::kPack].attrs.Set("axes", Strings{"tp", "tp"});
       }),
       "E3108", "twice"},
      {"PackOfNoDim", CollectiveSet,
       OnAll([](Program& p) { p.instructions[c::kPack].attrs.Set("dim", int64_t{2}); }), "E3108",
       "no dim 2"},
      {"UnpackOfSegmentsThatDoNotAddUp", CollectiveSet, OnAll([](Program& p) {
         p.instructions[c::kUnpack].attrs.Set("segments", Ints{2, 1});
       }),
       "E3108", "add up"},
      {"UnpackOfGranuleZero", CollectiveSet,
       OnAll([](Program& p) { p.instructions[c::kUnpack].attrs.Set("granule", int64_t{0}); }),
       "E3108", "granule 0"},
      {"PackOfOtherPieces", CollectiveSet, OnAll([](Program& p) {
         Retype(p, c::kPacked, F32({2, 2, 4}));
       }),
       "E3105", "pieces"},
      {"PackToAnotherElementType", CollectiveSet, OnAll([](Program& p) {
         Retype(p, c::kPacked, TensorType(DType::kI32, {2, 4, 2}));
       }),
       "E3105", "are f32[2, 4, 2]"},
      {"PackOfAnotherDim", CollectiveSet,
       OnAll([](Program& p) { p.instructions[c::kPack].attrs.Set("dim", int64_t{0}); }), "E3105",
       "pieces"},
      {"UnpackCutOverMoreAxes", CollectiveSet, OnAll([](Program& p) {
         p.instructions[c::kUnpack].attrs.Set("cut_axes", Strings{"dp", "tp"});
       }),
       "E3105", "(unpack"},
      {"ResultOfAnotherShape", TrainingSet, OnAll([](Program& p) {
         Retype(p, t::kNegated, F32({4, 8}));
       }),
       "E3105", "the op gives f32[32]"},
      {"ResultOfAnotherElementType", TrainingSet,
       OnAll([](Program& p) { Retype(p, t::kNegated, TensorType(DType::kI32, {32})); }), "E3105",
       "i32"},
      {"OperandIsLessOnARankThanTheResult", TrainingSet, OnAll([](Program& p) {
         Retype(p, t::kNegated, F32({32}, {0}));
         int whole = AddArenaBuffer(p, F32({32}));
         AddInstruction(p, "add", {t::kNegated, t::kE}, {whole});
         // The cut comes from an op whose local shapes are its own business.
         p.instructions[t::kNeg].op = "local_slice";
         p.instructions[t::kNeg].attrs = {{"axes", Strings{"tp"}}, {"dim", int64_t{0}}};
       }),
       "E3105", "there [16]"},
      {"CopyOfAnotherCut", TrainingSet, OnAll([](Program& p) {
         AddInstruction(p, "copy", {t::kX}, {AddArenaBuffer(p, F32({4, 8}, {0}))});
       }),
       "E3105", "of another type"},
  };
}

// Kernels go by local shapes, which must be shares of one loop.
std::vector<BrokenCase> BrokenShares() {
  // An instruction at the end, with a result of this type.
  auto append = [](std::string op, std::vector<int> operands, TensorType type,
                   Attributes attrs = {}) {
    return OnAll(
        [=](Program& p) { AddInstruction(p, op, operands, {AddArenaBuffer(p, type)}, attrs); });
  };
  const Ints perm = {1, 0};
  return {
      {"ContractionOfAnotherShare", TrainingSet, OnAll([](Program& p) {
         Retype(p, t::kX, F32({4, 8}));
       }),
       "E3105", "which does not fit buffer 0"},
      {"RowsOfAnotherShare", TrainingSet,
       append("transpose", {t::kX}, F32({8, 4}), {{"perm", perm}}), "E3105", "there [4, 4]"},
      {"CutWhereTheOpNeedsTheWhole", TrainingSet,
       append("softmax", {t::kX}, F32({4, 8}, {-1, 0}), {{"axis", int64_t{1}}}), "E3105",
       "needs dim 1 whole"},
      // After one that is alike but for its axis, or in what a rank has of its tensors.
      {"CutWhereTheOpBeforeDidNotNeedTheWhole", TrainingSet, OnAll([](Program& p) {
         for (int64_t axis : {0, 1}) {
           AddInstruction(p, "softmax", {t::kX}, {AddArenaBuffer(p, p.buffers[t::kX].type)},
                          {{"axis", axis}});
         }
       }),
       "E3105", "needs dim 1 whole"},
      {"CutWhereTheOpBeforeHadTheWhole", TrainingSet, OnAll([](Program& p) {
         const int whole = AddArenaBuffer(p, F32({4, 4}));
         AddInstruction(p, "broadcast_to", {t::kOne}, {whole}, {{"shape", Ints{4, 4}}});
         for (int x : {whole, static_cast<int>(t::kX)}) {
           AddInstruction(p, "softmax", {x}, {AddArenaBuffer(p, p.buffers[x].type)},
                          {{"axis", int64_t{1}}});
         }
       }),
       "E3105", "needs dim 1 whole"},
      {"ReshapeToMoreThanThereIs", TrainingSet,
       append("reshape", {t::kX}, F32({32}), {{"shape", Ints{32}}}), "E3105",
       "parts of dim 0 do not give that"},
      {"QueryHeadsThatKeysDoNotDivide", TrainingSet, OnAll([](Program& p) {
         const Shape heads = {1, 6, 1, 1}, pair = {1, 2, 1, 1};
         int q = AddArenaBuffer(p, F32(heads, {-1, 0})), kv = AddArenaBuffer(p, F32(pair));
         AddInstruction(p, "broadcast_to", {t::kOne}, {q}, {{"shape", heads}});
         AddInstruction(p, "broadcast_to", {t::kOne}, {kv}, {{"shape", pair}});
         AddInstruction(
             p, "attention", {q, kv, kv},
             {AddArenaBuffer(p, p.buffers[q].type), AddArenaBuffer(p, F32({1, 6, 1}, {-1, 0}))},
             {{"scale", 1.0}, {"causal", false}});
       }),
       "E3105", "parts of dim 1 do not give that"},
      {"PiecesAreMoreThanTheWhole", TrainingSet, OnAll([](Program& p) {
         int left = AddArenaBuffer(p, F32({4, 4})), right = AddArenaBuffer(p, F32({4, 4}));
         AddInstruction(p, "split", {t::kX}, {left, right},
                        {{"axis", int64_t{1}}, {"sizes", Ints{4, 4}}});
       }),
       "E3105", "pieces of dim 1 make 8"},
      {"AddedToAnotherShare", TrainingSet,
       OnAll([](Program& p) { p.instructions[t::kMatmul].operands.push_back(t::kX); }), "E3105",
       "which does not fit"},
      {"SliceOfAnotherDim", TrainingSet,
       append("local_slice", {t::kA}, F32({4, 8}, {-1, 0}),
              {{"axes", Strings{"tp"}}, {"dim", int64_t{0}}}),
       "E3105", "there [4, 4]"},
      {"ZeroPaddingThatCuts", TrainingSet, append("zero_padding", {t::kA}, F32({4, 8}, {-1, 0})),
       "E3105", "there [4, 4]"},
  };
}

std::function<void(ProgramSet&)> OnCollective(int i, std::function<void(Collective&)> change) {
  return OnAll([=](Program& p) { change(p.collectives[i]); });
}

std::vector<BrokenCase> BrokenCollectives() {
  // Places in Program::collectives.
  enum { kGather, kMax, kRows, kScatter, kBucket, kSwap, kColumns, kSumY };
  using Kind = CollectiveKind;
  return {
      {"CommunicatesWithoutACollective", TrainingSet,
       OnAll([](Program& p) { p.instructions[t::kAllReduce].collective = -1; }), "E3109",
       "names no collective"},
      {"ComputesWithACollective", TrainingSet, OnAll([](Program& p) {
         std::swap(p.instructions[t::kAllReduce].op, p.instructions[t::kRelu].op);
       }),
       "E3109", "(relu"},
      {"PackWithACollective", CollectiveSet, OnAll([](Program& p) {
         std::swap(p.instructions[c::kPack].collective,
                   p.instructions[c::kScatterColumns].collective);
       }),
       "E3109", "(pack"},
      {"CollectiveOfAnotherKind", CollectiveSet,
       OnCollective(kMax, [](Collective& c) { c.kind = Kind::kReduceScatter; }), "E3109",
       "kind reduce_scatter"},
      {"CollectiveOfNoInstruction", CollectiveSet,
       OnCollective(kMax, [](Collective& c) { c.kind = Kind::kBroadcast; }), "E3109", "broadcast"},
      {"CollectiveOfAnUnknownKind", CollectiveSet,
       OnCollective(kMax, [](Collective& c) { c.kind = static_cast<Kind>(77); }), "E3109",
       "all_reduce"},
      {"CollectiveWithoutAxes", CollectiveSet,
       OnCollective(kMax, [](Collective& c) { c.axes.clear(); }), "E3109", "no axes"},
      {"CollectiveOverAnUnknownAxis", CollectiveSet,
       OnCollective(kMax,
                    [](Collective& c) {
                      c.axes = {0, 2};
                    }),
       "E3109", "axis 2"},
      {"CollectiveOverANegativeAxis", CollectiveSet,
       OnCollective(kMax, [](Collective& c) { c.axes = {-1}; }), "E3109", "axis -1"},
      {"CollectiveOverAnAxisTwice", CollectiveSet,
       OnCollective(kMax,
                    [](Collective& c) {
                      c.axes = {1, 1};
                    }),
       "E3109", "'tp' twice"},
      {"CollectiveOfOneRank", CollectiveSet,
       [](ProgramSet& set) {
         // The same four ranks, with an axis of one more.
         for (Program& p : set) {
           p.mesh = Mesh::Parse("dp=2,tp=2,pp=1");
           p.collectives[kSumY].axes = {2};
         }
       },
       "E3109", "group of one rank"},
      {"GatherTakesAMaximum", CollectiveSet,
       OnCollective(kGather, [](Collective& c) { c.max = true; }), "E3109", "reduces nothing"},
      {"SumOfBools", CollectiveSet,
       OnAll([](Program& p) { AppendCollective(p, Kind::kAllReduce, {0}, 8, DType::kBool); }),
       "E3109", "no sum"},
      {"CollectiveOfAnotherElementType", CollectiveSet,
       OnCollective(kSwap, [](Collective& c) { c.dtype = DType::kI32; }), "E3109", "element type"},
      {"ResultOfACollectiveOfAnotherElementType", CollectiveSet,
       OnAll([](Program& p) { Retype(p, c::kSwapped, TensorType(DType::kI32, {16})); }), "E3109",
       "buffer 9"},
      {"CollectiveOfFewerElements", CollectiveSet,
       OnCollective(kBucket, [](Collective& c) { c.elements = 16; }), "E3109", "16 elements"},
      {"GatherCountsItsOperand", CollectiveSet,
       OnCollective(kGather, [](Collective& c) { c.elements = 8; }), "E3109", "8 elements"},
      {"ScatterCountsItsResult", CollectiveSet,
       OnCollective(kScatter, [](Collective& c) { c.elements = 16; }), "E3109", "16 elements"},
      {"BucketLacksAResult", CollectiveSet,
       OnAll([](Program& p) { p.instructions[c::kBucket].results.pop_back(); }), "E3109",
       "1 results"},
      {"BucketOfSwappedSizes", CollectiveSet, OnAll([](Program& p) {
         p.instructions[c::kBucket].operands = {c::kScattered, c::kX};
         p.collectives[kBucket].elements = 24;
       }),
       "E3109", "all_reduce"},
      {"AllReduceOfAnotherSize", CollectiveSet,
       OnAll([](Program& p) { Retype(p, c::kSumY, F32({8})); }), "E3109", "all_reduce"},
      {"GatherOverAWiderGroup", CollectiveSet,
       OnCollective(kRows,
                    [](Collective& c) {
                      c.axes = {0, 1};
                    }),
       "E3109", "over 4 ranks"},
      {"GatherToMoreThanThePieces", CollectiveSet, OnAll([](Program& p) {
         AppendCollective(p, Kind::kAllGather, {1}, 3);
         Retype(p, p.instructions.back().results[0], F32({7}));
         p.collectives.back().elements = 7;
       }),
       "E3109", "all_gather over 2"},
      {"ScatterOfMoreThanThePieces", CollectiveSet,
       OnAll([](Program& p) { AppendCollective(p, Kind::kReduceScatter, {1}, 7); }), "E3109",
       "reduce_scatter over 2"},
      {"ScatterToTheWholeSize", CollectiveSet, OnAll([](Program& p) {
         Retype(p, c::kNarrow, F32({4, 4}));
       }),
       "E3109", "reduce_scatter"},
      {"AllToAllOfAnotherSize", CollectiveSet,
       OnAll([](Program& p) { Retype(p, c::kSwapped, F32({8})); }), "E3109", "all_to_all"},
      {"AllToAllOfPiecesThatAreNotEqual", CollectiveSet, OnAll([](Program& p) {
         AppendCollective(p, Kind::kAllToAll, {0, 1}, 6);
       }),
       "E3109", "all_to_all over 4"},
      {"TwoCollectivesWithOneId", CollectiveSet,
       OnCollective(kSwap, [](Collective& c) { c.id = 0; }), "E3110", "same id"},
      {"CollectiveThatNothingUses", CollectiveSet, OnAll([](Program& p) {
         p.collectives.push_back(p.collectives[0]);
         p.collectives.back().id = 100;
       }),
       "E3110", "collective 100"},
      {"CollectiveThatIsNotThere", CollectiveSet,
       OnAll([](Program& p) { p.instructions[c::kSwap].collective = 8; }), "E3110",
       "no collective 8"},
      {"CollectiveOfANegativeNumber", CollectiveSet,
       OnAll([](Program& p) { p.instructions[c::kSwap].collective = -2; }), "E3110",
       "no collective -2"},
      {"TwoInstructionsUseOneCollective", CollectiveSet, OnAll([](Program& p) {
         Instruction again = p.instructions[c::kReduceY];
         again.results = {AddArenaBuffer(p, F32({8}, {1}))};
         p.instructions.push_back(again);
       }),
       "E3112", "uses already"},
  };
}

}  // namespace

std::vector<BrokenCase> BrokenInstructions() {
  std::vector<BrokenCase> all = BrokenOps();
  for (auto* make : {BrokenShares, BrokenCollectives}) {
    std::vector<BrokenCase> some = make();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

}  // namespace shardc::testing
