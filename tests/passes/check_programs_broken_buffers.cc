#include <algorithm>

#include "tests/passes/check_programs_fixture.h"

namespace shardc::testing {

namespace t = training;
namespace c = collective;

namespace {

std::vector<BrokenCase> BrokenPlaces() {
  return {
      {"BeyondTheArena", TrainingSet, OnAll([](Program& p) { p.arena_bytes = 512; }), "E3104",
       "not inside the arena"},
      {"EndsBeyondTheArena", TrainingSet, OnAll([](Program& p) { p.buffers[t::kE].offset = 512; }),
       "E3104", "buffer 14"},
      {"NegativeOffset", TrainingSet, OnAll([](Program& p) { p.buffers[t::kY].offset = -64; }),
       "E3104", "buffer 5"},
      {"OffsetThatOverflows", TrainingSet,
       OnAll([](Program& p) { p.buffers[t::kY].offset = INT64_MAX - 63; }), "E3104", "buffer 5"},
      {"NegativeArena", TrainingSet, OnAll([](Program& p) { p.arena_bytes = -1; }), "E3104",
       "arena"},
      {"NotAligned", TrainingSet, OnAll([](Program& p) { p.buffers[t::kLoss].offset = 260; }),
       "E3104", "aligned"},
      {"BeyondTheConstants", TrainingSet, OnAll([](Program& p) { p.constants.resize(2); }), "E3104",
       "not inside the constants"},
      {"ConstantStartsBeyondTheConstants", TrainingSet,
       OnAll([](Program& p) { p.buffers[t::kOne].offset = 128; }), "E3104", "buffer 1"},
      {"UnknownSpace", TrainingSet,
       OnAll([](Program& p) { p.buffers[t::kY].space = static_cast<Space>(9); }), "E3104",
       "unknown space"},
      {"StateWithoutAName", TrainingSet, OnAll([](Program& p) { p.buffers[t::kW].name.clear(); }),
       "E3104", "without a name"},
      {"AliasOfNoBuffer", TrainingSet, OnAll([](Program& p) { p.buffers[t::kFlat].alias_of = 99; }),
       "E3104", "no buffer"},
      {"AliasOfANegativeBuffer", TrainingSet,
       OnAll([](Program& p) { p.buffers[t::kFlat].alias_of = -7; }), "E3104", "no buffer"},
      {"AliasOfItself", TrainingSet,
       OnAll([](Program& p) { p.buffers[t::kFlat].alias_of = t::kFlat; }), "E3104", "itself"},
      {"AliasesInACircle", TrainingSet, OnAll([](Program& p) {
         p.buffers[t::kA].alias_of = t::kFlat;
         p.buffers[t::kFlat].alias_of = t::kA;
       }),
       "E3104", "itself"},
      {"LocalShapeOfAnotherCut", TrainingSet, OnAll([](Program& p) {
         p.buffers[t::kW].local_shape = {8, 4};
       }),
       "E3105", "local shape [8, 4]"},
      {"LocalShapeLacksADim", TrainingSet,
       OnAll([](Program& p) { p.buffers[t::kZ].local_shape = {32}; }), "E3105", "[32]"},
      {"BytesTooFew", TrainingSet, OnAll([](Program& p) { p.buffers[t::kZ].bytes = 64; }), "E3105",
       "64 bytes"},
      {"BytesTooMany", TrainingSet, OnAll([](Program& p) { p.buffers[t::kLoss].bytes = 8; }),
       "E3105", "8 bytes"},
      {"BytesOfAnotherType", TrainingSet,
       OnAll([](Program& p) { p.buffers[t::kE].type.dtype = DType::kF16; }), "E3105", "128 bytes"},
      {"UnknownElementType", TrainingSet,
       OnAll([](Program& p) { p.buffers[t::kE].type.dtype = static_cast<DType>(99); }), "E3105",
       "element type"},
      {"NegativeDim", TrainingSet, OnAll([](Program& p) { p.buffers[t::kE].type.shape[0] = -32; }),
       "E3105", "-32"},
      {"ShapeThatOverflows", TrainingSet, OnAll([](Program& p) {
         p.buffers[t::kZ].type.shape = {int64_t{1} << 40, int64_t{1} << 40};
       }),
       "E3105", "more elements"},
      {"ShardingLacksADim", TrainingSet,
       OnAll([](Program& p) { p.buffers[t::kW].type.sharding.dims.resize(1); }), "E3105",
       "shardings for 1"},
      {"CutOverAnAxisThatIsNotThere", TrainingSet,
       OnAll([](Program& p) { p.buffers[t::kZ].type.sharding.dims[0].axes.push_back(3); }), "E3105",
       "axis"},
      {"PartialOverAnAxisThatIsNotThere", TrainingSet,
       OnAll([](Program& p) { p.buffers[t::kZ].type.sharding.partial_max.push_back(1); }), "E3105",
       "partial"},
      {"CutTwiceOverOneAxis", TrainingSet,
       OnAll([](Program& p) { p.buffers[t::kW].type.sharding.dims[1].axes.push_back(0); }), "E3105",
       "twice"},
      {"GranuleOfZero", TrainingSet,
       OnAll([](Program& p) { p.buffers[t::kW].type.sharding.dims[0].granule = 0; }), "E3105",
       "granule 0"},
      {"GranuleLargerThanTheDim", TrainingSet,
       OnAll([](Program& p) { p.buffers[t::kW].type.sharding.dims[0].granule = 1000; }), "E3105",
       "granule 1000"},
      {"SegmentsThatDoNotAddUp", TrainingSet, OnAll([](Program& p) {
         p.buffers[t::kW].type.sharding.dims[0].segments = {2, 2};
       }),
       "E3105", "add up"},
      {"SegmentOfNegativeSize", TrainingSet, OnAll([](Program& p) {
         p.buffers[t::kW].type.sharding.dims[0].segments = {16, -8};
       }),
       "E3105", "segment of size -8"},
      {"ViewInAnotherSpace", TrainingSet,
       OnAll([](Program& p) { p.buffers[t::kFlat].space = Space::kConstant; }), "E3105",
       "another space"},
      {"ViewElsewhere", TrainingSet, OnAll([](Program& p) { p.buffers[t::kFlat].offset = 384; }),
       "E3105", "does not start where"},
      {"ViewLongerThanItsRoot", TrainingSet,
       OnAll([](Program& p) { Retype(p, t::kFlat, F32({33})); }), "E3105", "longer"},
      {"ViewUnderAnotherName", TrainingSet,
       OnAll([](Program& p) { p.buffers[t::kFlat].name = "w"; }), "E3105", "another name"},
  };
}

std::vector<BrokenCase> BrokenLists() {
  return {
      {"StateIsNotListed", TrainingSet,
       OnAll([](Program& p) { p.states.erase(p.states.begin() + 1); }), "E3111", "'momentum'"},
      {"StateIsListedTwice", TrainingSet,
       OnAll([](Program& p) { p.states.push_back(p.states[0]); }), "E3111", "listed twice"},
      {"StateListedAsInput", TrainingSet,
       OnAll([](Program& p) { p.inputs.push_back(p.states[0]); }), "E3113", "is not the input"},
      {"PiecesThatDoNotFill", TrainingSet, OnAll([](Program& p) {
         p.states[0].piece = {"whole", 0, 0, 16};
       }),
       "E3113", "end at 8 of 16"},
      {"PiecesWithAGap", TrainingSet, OnAll([](Program& p) {
         p.states[0].piece = {"whole", 0, 4, 12};
       }),
       "E3113", "begins at 4"},
      {"PieceOfAnotherKind", TrainingSet, OnAll([](Program& p) {
         p.states[0].piece = {"whole", 0, 0, 16};
         p.states[1].piece = {"whole", 1, 8, 16};
       }),
       "E3113", "not of the kind"},
      {"PieceOfAnotherShape", TrainingSet, OnAll([](Program& p) {
         p.states[0].piece = {"whole", 0, 0, 12};
         p.states[1].piece = {"whole", 0, 8, 12};
         for (int b : {t::kMomentum, t::kNewMomentum}) Retype(p, b, F32({4, 16}, {0}));
       }),
       "E3113", "not of the kind"},
      {"PieceOfAnotherElementType", TrainingSet, OnAll([](Program& p) {
         p.states[0].piece = {"whole", 0, 0, 16};
         p.states[1].piece = {"whole", 0, 8, 16};
         for (int b : {t::kMomentum, t::kNewMomentum}) {
           TensorType type = p.buffers[b].type;
           type.dtype = DType::kI32;
           Retype(p, b, type);
         }
       }),
       "E3113", "not of the kind"},
      {"PieceOfADimThatIsNot", TrainingSet, OnAll([](Program& p) {
         p.states[0].piece = {"whole", 2, 0, 8};
       }),
       "E3113", "not of the kind"},
      {"PieceOfANegativeDim", TrainingSet, OnAll([](Program& p) {
         p.states[0].piece = {"whole", -1, 0, 8};
       }),
       "E3113", "not of the kind"},
      {"PieceOfAnotherRank", TrainingSet, OnAll([](Program& p) {
         p.states[0].piece = {"whole", 0, 0, 12};
         p.states[1].piece = {"whole", 0, 8, 12};
         for (int b : {t::kMomentum, t::kNewMomentum}) Retype(p, b, F32({4}, {0}));
       }),
       "E3113", "not of the kind"},
      {"PieceOfWhatIsThere", TrainingSet, OnAll([](Program& p) {
         p.states[0].piece = {"momentum", 0, 0, 8};
       }),
       "E3113", "there whole"},
      {"PieceOnOneRank", TrainingSet,
       [](ProgramSet& set) {
         set[1].states[0].piece = {"whole", 0, 0, 8};
       },
       "E3207", "piece"},
      {"UpdateOfAnotherShape", TrainingSet, OnAll([](Program& p) {
         Retype(p, t::kNewW, F32({4, 16}, {0}));
       }),
       "E3111", "'w'"},
      {"UpdateOfAnotherElementType", TrainingSet, OnAll([](Program& p) {
         Retype(p, t::kNewW, TensorType(DType::kBF16, {8, 8}));
       }),
       "E3111", "bf16"},
      {"UpdateOfAnotherCut", TrainingSet, OnAll([](Program& p) {
         Retype(p, t::kNewMomentum, F32({8, 8}, {-1, 0}));
       }),
       "E3111", "'momentum'"},
      {"CopyOfAnotherTypeIntoAState", TrainingSet,
       OnAll([](Program& p) { p.instructions[t::kCopyStep].operands = {t::kE}; }), "E3111",
       "(copy"},
      {"InputIsNotListed", TrainingSet, OnAll([](Program& p) { p.inputs.clear(); }), "E3113",
       "input 'x'"},
      {"InputIsListedTwice", TrainingSet,
       OnAll([](Program& p) { p.inputs.push_back(p.inputs[0]); }), "E3113", "listed twice"},
      {"OutputIsListedTwice", TrainingSet, OnAll([](Program& p) {
         p.outputs.push_back({"loss", t::kE});
       }),
       "E3113", "'loss'"},
      {"InputIsNoBuffer", TrainingSet, OnAll([](Program& p) { p.inputs[0].buffer = 77; }), "E3113",
       "no buffer 77"},
      {"OutputIsNoBuffer", TrainingSet, OnAll([](Program& p) { p.outputs[0].buffer = -1; }),
       "E3113", "no buffer -1"},
      {"StateIsNoBuffer", TrainingSet, OnAll([](Program& p) { p.states[0].buffer = 1000; }),
       "E3113", "no buffer 1000"},
      {"InputIsInTheArena", TrainingSet, OnAll([](Program& p) {
         p.inputs.push_back({"e", t::kE});
       }),
       "E3113", "input 'e'"},
      {"StateIsInTheArena", TrainingSet, OnAll([](Program& p) {
         p.states.push_back({"e", t::kE});
       }),
       "E3113", "state 'e'"},
      {"InputUnderAnotherName", TrainingSet, OnAll([](Program& p) { p.inputs[0].name = "ids"; }),
       "E3113", "'ids'"},
      {"OutputWithoutAName", TrainingSet, OnAll([](Program& p) { p.outputs[0].name.clear(); }),
       "E3113", "no name"},
      {"OutputIsPartial", TrainingSet,
       OnAll([](Program& p) { p.buffers[t::kE].type.sharding.partial_sum.push_back(0); }), "E3113",
       "partial over axis 'tp'"},
      {"InputsOfOneNameDiffer", CollectiveSet, OnAll([](Program& p) {
         p.buffers.push_back(MakeBuffer(p.mesh, F32({9}), Space::kInput, 0, "y"));
       }),
       "E3113", "'y'"},
  };
}

}  // namespace

std::vector<BrokenCase> BrokenBuffers() {
  std::vector<BrokenCase> all = BrokenPlaces(), lists = BrokenLists();
  all.insert(all.end(), lists.begin(), lists.end());
  return all;
}

}  // namespace shardc::testing
