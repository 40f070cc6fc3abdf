// Two small valid sets of programs, made by hand, for the tests of the checker.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "ir/program.h"

namespace shardc::testing {

using ProgramSet = std::vector<Program>;

// tp=2; a training step: matmul, all_reduce in place, relu in place, matmul_tn with scratch, a
// loss, sgd on its states, a recycled buffer, a view and a late copy into a state.
ProgramSet TrainingSet();
namespace training {
enum Buffers {
  kX,
  kOne,
  kW,
  kMomentum,
  kStep,  // an input, a constant, states
  kY,
  kZ,
  kA,
  kGradient,
  kLoss,
  kNextStep,  // arena; kZ and kA take the place of kY
  kNewW,
  kNewMomentum,  // states after their update
  kFlat,
  kE,
  kNegated,
  kScratch,  // kFlat is a view of kA; kNegated recycles kGradient
};
enum Instructions {
  kMatmul,
  kAllReduce,
  kRelu,
  kMatmulTn,
  kReduceLoss,
  kAddStep,
  kSgd,
  kExp,
  kNeg,
  kCopyStep,
};
}  // namespace training

// dp=2,tp=2; collectives of all kinds over both axes, with pack and unpack.
ProgramSet CollectiveSet();
namespace collective {
enum Buffers {
  kX,
  kY,  // inputs [8@dp, 4@tp] and [8@tp]
  kPieces,
  kRows,
  kMax,
  kGathered,  // columns gathered over tp; maximum over all; rows over dp
  kScattered,
  kSum0,
  kSum1,
  kSwapped,  // scattered over dp; a bucket in place; all_to_all
  kPacked,
  kNarrow,
  kSumY,  // columns scattered over tp; kY reduced over dp
};
enum Instructions {
  kGather,
  kUnpack,
  kAllMax,
  kGatherRows,
  kScatter,
  kBucket,
  kSwap,
  kPack,
  kScatterColumns,
  kReduceY,
};
}  // namespace collective

// pp=2,tp=2; two stages with programs of their own. Stage 0 sends relu(x) and gets back what stage
// 1 makes of it, which is also stage 1's output; stage 1 sums over tp in between.
ProgramSet PipelineSet();
namespace pipeline {
enum First { kX, kA, kBack };       // buffers of stage 0
enum Second { kGot, kSum, kMade };  // of stage 1
enum FirstSteps { kRelu, kSend, kReceive };
enum SecondSteps { kGet, kReduce, kNeg, kReturn };
}  // namespace pipeline

// Local shape and bytes follow from the type.
Buffer MakeBuffer(const Mesh& mesh, TensorType type, Space space, int64_t offset = 0,
                  std::string name = {});
// Sets type, local shape and bytes of an existing buffer.
void Retype(Program& p, int buffer, TensorType type);
// f32 of the shape, dim i cut over axes[i] where that is not -1.
TensorType F32(Shape shape, std::vector<int> axes = {});
// Appends a buffer in memory of its own at the end of the arena.
int AddArenaBuffer(Program& p, TensorType type);
void AddInstruction(Program& p, std::string op, std::vector<int> operands, std::vector<int> results,
                    Attributes attrs = {});
// A collective of its own at the end: reads a constant, writes a new buffer. `elements` are those
// of the operand.
void AppendCollective(Program& p, CollectiveKind kind, std::vector<int> axes, int64_t elements = 8,
                      DType dtype = DType::kF32, bool max = false);
void MoveInstruction(Program& p, int from, int to);

// One way to break a valid set, and what the checker must say.
struct BrokenCase {
  std::string name;
  ProgramSet (*valid)();
  std::function<void(ProgramSet&)> break_it;
  std::string id;
  std::string word;  // of `where` or of the message
};
inline void PrintTo(const BrokenCase& c, std::ostream* out) { *out << c.name; }
// The same damage on every rank, or on one.
std::function<void(ProgramSet&)> OnAll(std::function<void(Program&)> change);
std::function<void(ProgramSet&)> OnRank(size_t rank, std::function<void(Program&)> change);

std::vector<BrokenCase> BrokenMemory();        // E3101 to E3103, E3106, E3107, E3111, E3114
std::vector<BrokenCase> BrokenBuffers();       // E3104, E3105, E3111, E3113
std::vector<BrokenCase> BrokenInstructions();  // E3104, E3105, E3108, E3109, E3110, E3112
std::vector<BrokenCase> BrokenSets();          // E32xx

}  // namespace shardc::testing
