#include "passes/emit.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "passes/check_programs.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

// Every program of these tests is also proved by the checker.
Program Emit(std::string_view text) {
  Program program = EmitProgram(ParseAndVerify(text));
  EXPECT_NO_THROW(CheckProgramBody(program)) << ProgramToText(program);
  return program;
}

std::string Ops(const Program& program) {
  std::string ops;
  for (const Instruction& i : program.instructions) ops += (ops.empty() ? "" : " ") + i.op;
  return ops;
}

const Buffer& Result(const Program& program, size_t instruction) {
  return program.buffers[program.instructions[instruction].results[0]];
}

const Buffer& OutputBuffer(const Program& program, std::string_view name) {
  for (const NamedBuffer& o : program.outputs) {
    if (o.name == name) return program.buffers[o.buffer];
  }
  ADD_FAILURE() << "no output " << name;
  return program.buffers[0];
}

TEST(Emit, ElementwiseOpsRunInPlace) {
  Program p = Emit(R"(graph @g(%x: f32[64]) -> (%y) {
    %0 = exp %x : f32[64]
    %1 = neg %0 : f32[64]
    %y = tanh %1 : f32[64]
  })");
  EXPECT_EQ(p.arena_bytes, 256);
  EXPECT_EQ(Result(p, 0).offset, Result(p, 2).offset);
  EXPECT_EQ(p.buffers[p.inputs[0].buffer].space, Space::kInput);
}

TEST(Emit, NotInPlaceWhereTheOldValueIsRead) {
  Program p = Emit(R"(graph @g(%x: f32[64]) -> (%y) {
    %0 = exp %x : f32[64]
    %1 = neg %0 : f32[64]
    %y = mul %0, %1 : f32[64]
  })");
  EXPECT_EQ(p.arena_bytes, 512);
  EXPECT_NE(Result(p, 0).offset, Result(p, 1).offset);
}

// One place, and two results that both would go there.
TEST(Emit, NotInPlaceOfAnOperandThatIsThereTwice) {
  Program p = Emit(R"(mesh [tp=2]
  graph @g(%x: f32[2@tp, 64]) -> (%y, %z) {
    %0 = reduce_sum %x {axes=[0], keepdims=false} : f32[64] partial(tp)
    %y, %z = all_reduce %0, %0 {axes=["tp"], reduce="sum"} : f32[64], f32[64]
  })");
  EXPECT_EQ(p.arena_bytes, 3 * 256);
}

// Nor of an operand where the other result is: each of the two could be made there.
TEST(Emit, NotTwoResultsInOnePlace) {
  Program p = Emit(R"(graph @g(%x: f32[64]) -> (%y, %z) {
    %0 = exp %x : f32[64]
    %y, %z = fused_elementwise %0 {results=[1, 2], steps=["neg 0", "abs 0"], types=["f32", "f32"]} : f32[64], f32[64]
  })");
  EXPECT_EQ(p.arena_bytes, 2 * 256);
}

constexpr char kLoss[] = R"(graph @g(%x: f32[8, 16], %t: i64[8], %d: f32[8]) -> (%dx) {
    %0 = exp %x : f32[8, 16]
    %1, %2 = cross_entropy %0, %t : f32[8], f32[8]
    %dx = cross_entropy_grad %d, %0, %t, %2 : f32[8, 16]
  })";

TEST(Emit, GradientsTakeTheLogitsPlace) {
  Program p = Emit(kLoss);
  EXPECT_EQ(Result(p, 0).offset, Result(p, 2).offset);
}

TEST(Emit, NotWhereTheLogitsAreAnOutput) {
  std::string text = kLoss;
  text.replace(text.find("(%dx)"), 5, "(%dx, %0)");
  Program p = Emit(text);
  EXPECT_NE(Result(p, 0).offset, Result(p, 2).offset);
}

// Or where another operand is in the same memory: the gradient of each row's loss.
TEST(Emit, NotWhereTheOpReadsTheMemoryTwice) {
  Program p = Emit(R"(graph @g(%x: f32[8, 1], %t: i64[8]) -> (%dx) {
    %0 = exp %x : f32[8, 1]
    %d = reshape %0 {shape=[8]} : f32[8]
    %1, %2 = cross_entropy %0, %t : f32[8], f32[8]
    %dx = cross_entropy_grad %d, %0, %t, %2 : f32[8, 1]
  })");
  EXPECT_NE(Result(p, 0).offset, Result(p, 2).offset);
}

// A tied weight's second gradient is added to the first.
TEST(Emit, SumsOfGradientsAreMadeInPassing) {
  constexpr char kText[] = R"(graph @g(%x: f32[4, 8], %y: f32[4, 3], %t: i64[4]) -> (%s) {
    %0 = matmul_tn %x, %y {batch=0} : f32[8, 3]
    %1 = embedding_grad %y, %t {rows=8} : f32[8, 3]
    %s = add %0, %1 : f32[8, 3]
  })";
  Program p = Emit(kText);
  EXPECT_EQ(Ops(p), "matmul_tn embedding_grad");
  EXPECT_EQ(p.instructions[1].operands.size(), 3u);
  EXPECT_EQ(p.arena_bytes, 128);  // 8 x 3 floats
  // Not where the sum alone is wanted too, or is made before what it is added to.
  std::string text = kText;
  text.replace(text.find("(%s)"), 4, "(%s, %1)");
  EXPECT_EQ(Ops(Emit(text)), "matmul_tn embedding_grad add");
  EXPECT_EQ(Ops(Emit(R"(graph @g(%x: f32[4, 8], %y: f32[4, 3], %z: f32[8, 3]) -> (%s) {
    %0 = matmul_tn %x, %y {batch=0} : f32[8, 3]
    %1 = exp %z : f32[8, 3]
    %s = add %0, %1 : f32[8, 3]
  })")),
            "matmul_tn exp add");
}

// A running sum of products is one buffer.
TEST(Emit, ProductsAddToWhatTheyAreGiven) {
  Program p = Emit(R"(graph @g(%x: f32[4, 8], %y: f32[4, 3], %w: f32[4, 3]) -> (%s) {
    %0 = matmul_tn %x, %y {batch=0} : f32[8, 3]
    %1 = matmul_tn %x, %w {batch=0} : f32[8, 3]
    %2 = add %0, %1 : f32[8, 3]
    %3 = matmul_tn %x, %y {batch=0} : f32[8, 3]
    %s = add %3, %2 : f32[8, 3]
  })");
  EXPECT_EQ(Ops(p), "matmul_tn matmul_tn matmul_tn");
  EXPECT_EQ(p.arena_bytes, 128);
}

TEST(Emit, OutputsStayAlive) {
  Program p = Emit(R"(graph @g(%x: f32[64]) -> (%a, %b) {
    %a = exp %x : f32[64]
    %b = neg %a : f32[64]
  })");
  EXPECT_NE(OutputBuffer(p, "a").offset, OutputBuffer(p, "b").offset);
  EXPECT_EQ(p.arena_bytes, 512);
}

TEST(Emit, AReshapeIsAnotherNameOfTheSameBytes) {
  Program p = Emit(R"(graph @g(%x: f32[8, 6]) -> (%y) {
    %0 = exp %x : f32[8, 6]
    %1 = reshape %0 {shape=[48]} : f32[48]
    %y = cumsum %1 {axis=0, exclusive=false, reverse=false} : f32[48]
  })");
  EXPECT_EQ(Ops(p), "exp cumsum");
  const Buffer& view = p.buffers[p.instructions[1].operands[0]];
  EXPECT_EQ(view.alias_of, p.instructions[0].results[0]);
  EXPECT_EQ(view.offset, Result(p, 0).offset);
  EXPECT_EQ(view.local_shape, (Shape{48}));
}

TEST(Emit, EqualConstantsAreKeptOnce) {
  Program p = Emit(R"(graph @g(%x: f32[2]) -> (%y) {
    %0 = constant {value=tensor<f32[]: 2>} : f32[]
    %1 = constant {value=tensor<f32[]: 2>} : f32[]
    %2 = mul %x, %0 : f32[2]
    %y = mul %2, %1 : f32[2]
  })");
  EXPECT_EQ(p.constants.size(), 64u);
}

// Pieces of the first dim lie one after the other; pieces of an inner one are staged.
TEST(Emit, GathersOfInnerDimsAreUnpacked) {
  Program outer = Emit(R"(mesh [tp=2]
  graph @g(%x: f32[8@tp, 6]) -> (%y) {
    %y = all_gather %x {axes=["tp"], dim=0} : f32[8, 6]
  })");
  EXPECT_EQ(Ops(outer), "all_gather");
  Program inner = Emit(R"(mesh [tp=2]
  graph @g(%x: f32[8, 6@tp]) -> (%y) {
    %y = all_gather %x {axes=["tp"], dim=1, for="exp", why=["because"]} : f32[8, 6]
  })");
  EXPECT_EQ(Ops(inner), "all_gather unpack");
  EXPECT_EQ(Result(inner, 0).local_shape, (Shape{2, 8, 3}));
  const Collective& c = inner.collectives.get().at(0);
  EXPECT_EQ(c.elements, 48);
  EXPECT_EQ(c.op, "exp");
  EXPECT_EQ(c.why, (Strings{"because"}));
}

TEST(Emit, ReductionsAreOfTheirKind) {
  Program p = Emit(R"(mesh [dp=2, tp=2]
  graph @g(%x: f32[8@dp, 6@tp]) -> (%y, %z) {
    %0 = reduce_max %x {axes=[1], keepdims=false} : f32[8@dp] partial_max(tp)
    %y = all_reduce %0 {axes=["tp"], reduce="max"} : f32[8@dp]
    %1 = reduce_sum %x {axes=[0], keepdims=false} : f32[6@tp] partial(dp)
    %z = all_reduce %1 {axes=["dp"], reduce="sum"} : f32[6@tp]
  })");
  const std::vector<Collective>& collectives = p.collectives.get();
  ASSERT_EQ(collectives.size(), 2u);
  EXPECT_TRUE(collectives[0].max);
  EXPECT_EQ(collectives[0].axes, std::vector<int>{1});
  EXPECT_FALSE(collectives[1].max);
  EXPECT_EQ(collectives[1].axes, std::vector<int>{0});
}

TEST(Emit, ScattersAndExchangesOfInnerDimsArePacked) {
  Program p = Emit(R"(mesh [tp=2]
  graph @g(%x: f32[8, 4@tp]) -> (%y, %z) {
    %z = all_to_all %x {axes=["tp"], concat_dim=1, split_dim=0} : f32[8@tp, 4]
    %y = all_to_all %z {axes=["tp"], concat_dim=0, split_dim=1} : f32[8, 4@tp]
  })");
  EXPECT_EQ(Ops(p), "all_to_all unpack pack all_to_all");
}

TEST(Emit, UnevenGathersAreUnpackedToo) {
  Program p = Emit(R"(mesh [tp=2]
  graph @g(%x: f32[5@tp]) -> (%y) {
    %y = all_gather %x {axes=["tp"], dim=0} : f32[5]
  })");
  EXPECT_EQ(Ops(p), "all_gather unpack");
  EXPECT_EQ(Result(p, 0).local_shape, (Shape{2, 3}));
  EXPECT_EQ(p.collectives[0].elements, 6);
}

// As are those of segments: a rank has a part of each.
TEST(Emit, GathersOfSegmentsAreUnpackedToo) {
  Program p = Emit(R"(mesh [tp=2]
  graph @g(%x: f32[12@tp/3]) -> (%y) {
    %0 = all_gather %x {axes=["tp"], dim=0} : f32[12]
    %1 = reduce_sum %x {axes=[0], keepdims=true} : f32[1] partial(tp)
    %2 = neg %0 : f32[12]
    %3 = mul %2, %1 : f32[12] partial(tp)
    %y = reduce_scatter %3 {axes=["tp"], dim=0} : f32[12@tp/3]
  })");
  EXPECT_EQ(Ops(p), "all_gather reduce_sum unpack neg mul pack reduce_scatter");
}

TEST(Emit, WhatWasGatheredIsPutTogetherWhereItIsRead) {
  Program p = Emit(R"(mesh [tp=2]
  graph @g(%x: f32[8, 6@tp], %w: f32[8, 6]) -> (%y, %z) {
    %0 = all_gather %x {axes=["tp"], dim=1} : f32[8, 6]
    %1 = reshape %0 {shape=[48]} : f32[48]
    %z = exp %w : f32[8, 6]
    %y = neg %1 : f32[48]
  })");
  EXPECT_EQ(Ops(p), "all_gather exp unpack neg");
}

// What runs beside the reduce_scatter for less time than it takes does not wait to write over its
// operand; what runs after that may.
TEST(Emit, WhatTravelsIsKeptMeanwhile) {
  Program p = Emit(R"(mesh [tp=2]
  graph @g(%a: f32[2@tp, 512], %b: f32[2@tp, 512], %w: f32[512, 512], %u: f32[512, 512]) -> (%y, %1) {
    %0 = matmul_tn %a, %b : f32[512, 512] partial(tp)
    %s = reduce_scatter %0 {axes=["tp"], dim=0} : f32[512@tp, 512]
    %1 = exp %w : f32[512, 512]
    %2 = matmul %w, %u : f32[512, 512]
    %3 = matmul %2, %u : f32[512, 512]
    %4 = matmul %3, %u : f32[512, 512]
    %5 = matmul %4, %u : f32[512, 512]
    %6 = matmul %5, %u : f32[512, 512]
    %7 = matmul %6, %u : f32[512, 512]
    %8 = matmul %7, %u : f32[512, 512]
    %9 = local_slice %8 {axes=["tp"], dim=0} : f32[512@tp, 512]
    %y = add %9, %s : f32[512@tp, 512]
  })");
  ASSERT_EQ(Ops(p).substr(0, 36), "matmul_tn reduce_scatter exp matmul ");
  const int64_t travels = Result(p, 0).offset;
  for (int i : {2, 3}) EXPECT_NE(Result(p, i).offset, travels) << i;
  // Of each matmul's bytes a seventh could have travelled.
  EXPECT_EQ(p.arena_bytes, (4 * 512 + 256) * 512 * 4);
}

TEST(Emit, AnUpdateIsWrittenIntoItsState) {
  Program p = Emit(R"(graph @g(%x: f32[4]) -> (%x) {
    %s = state "s" {dtype="f32", init=0.0, shape=[4]} : f32[4]
    %0 = add %s, %x : f32[4]
    update "s" %0
  })");
  EXPECT_EQ(Ops(p), "add");
  EXPECT_EQ(Result(p, 0).space, Space::kState);
  EXPECT_EQ(Result(p, 0).name, "s");
  EXPECT_EQ(p.arena_bytes, 0);
}

// neg still reads the old value: the new one waits until the end.
TEST(Emit, AnUpdateIsCopiedLateWhereTheOldValueIsRead) {
  Program p = Emit(R"(graph @g(%x: f32[4]) -> (%y) {
    %s = state "s" {dtype="f32", init=0.0, shape=[4]} : f32[4]
    %0 = add %s, %x : f32[4]
    update "s" %0
    %y = mul %s, %x : f32[4]
  })");
  EXPECT_EQ(Ops(p), "add mul copy");
  EXPECT_EQ(Result(p, 2).space, Space::kState);
}

// An output shows the parameter before the update.
TEST(Emit, OutputsOfUpdatedStatesAreKept) {
  Program p = Emit(R"(graph @g(%x: f32[4]) -> (%s) {
    %s = state "s" {dtype="f32", init=0.0, shape=[4]} : f32[4]
    %0 = add %s, %x : f32[4]
    update "s" %0
  })");
  EXPECT_EQ(Ops(p), "copy add");
  EXPECT_EQ(OutputBuffer(p, "s").space, Space::kArena);
}

// One state takes the value that another had, and is not read after that one's update.
TEST(Emit, StatesThatBecomeUpdatedStatesHaveTheirOldValues) {
  Program p = Emit(R"(graph @g(%x: f32[4]) -> (%y) {
    %s = state "s" {dtype="f32", init=0.0, shape=[4]} : f32[4]
    %t = state "t" {dtype="f32", init=1.0, shape=[4]} : f32[4]
    %y = mul %x, %x : f32[4]
    update "s" %t
    update "t" %s
  })");
  EXPECT_EQ(Ops(p), "copy copy mul copy copy");
  for (int i : {0, 1}) EXPECT_EQ(Result(p, i).space, Space::kArena);
  for (int i : {3, 4}) EXPECT_EQ(Result(p, i).space, Space::kState);
}

}  // namespace
}  // namespace shardc::testing
