// Which instructions of a program are a product and what may be done along with it, and each reason
// why they are not.
#include <gmock/gmock.h>

#include <map>

#include "frontend/gpt_config.h"
#include "ir/text.h"
#include "passes/pipeline.h"
#include "runtime/cuda/product_groups.h"
#include "tests/exec/harness.h"

namespace shardc::testing {
namespace {

using cuda::Epilogue;
using cuda::FindProductGroups;
using cuda::ProductGroup;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Program ProgramOf(const std::string& text) { return ProgramsFor(ParseGraph(text, "test"))[0]; }

std::vector<ProductGroup> Groups(const Program& program) { return FindProductGroups(program); }

// The only refusal, where nothing is found.
std::string Refusal(const Program& program) {
  std::vector<std::string> refusals;
  auto groups = FindProductGroups(program, &refusals);
  EXPECT_THAT(groups, IsEmpty());
  EXPECT_THAT(refusals, SizeIs(1));
  return refusals.empty() ? "" : refusals[0];
}
std::string Refusal(const std::string& text) { return Refusal(ProgramOf(text)); }

int Buffer(const Program& p, int instruction) { return p.instructions[instruction].results[0]; }

TEST(ProductGroups, GeluLeavesOutAProductThatNothingElseReads) {
  const std::string text = R"(graph @g(%x: f32[4, 8], %w: f32[8, 16], %b: f32[16]) -> (%y) {
    %0 = linear %x, %w, %b {nt=false} : f32[4, 16]
    %y = gelu %0 {approximate="tanh"} : f32[4, 16]
  })";
  Program p = ProgramOf(text);
  auto groups = Groups(p);
  ASSERT_THAT(groups, SizeIs(1));
  EXPECT_EQ(groups[0].epilogue, Epilogue::kGelu);
  EXPECT_THAT(groups[0].instructions, ElementsAre(0, 1));
  EXPECT_EQ(groups[0].product, 0);
  EXPECT_EQ(groups[0].bias, p.instructions[0].operands[2]);
  EXPECT_EQ(groups[0].result, Buffer(p, 1));
  EXPECT_EQ(groups[0].aux, -1);
  std::string read = text;
  read.replace(read.find("(%y)"), 4, "(%y, %0)");
  p = ProgramOf(read);
  groups = Groups(p);
  ASSERT_THAT(groups, SizeIs(1));
  EXPECT_EQ(groups[0].epilogue, Epilogue::kGeluAux);
  EXPECT_EQ(groups[0].aux, Buffer(p, 0));
}

TEST(ProductGroups, ThroughOtherViewsOfTheSameBytes) {
  Program p = ProgramOf(R"(graph @g(%x: f32[4, 8], %w: f32[8, 16]) -> (%y) {
    %0 = matmul %x, %w : f32[4, 16]
    %1 = reshape %0 {shape=[64]} : f32[64]
    %y = gelu %1 {approximate="tanh"} : f32[64]
  })");
  ASSERT_THAT(Groups(p), SizeIs(1));
  EXPECT_EQ(Groups(p)[0].epilogue, Epilogue::kGelu);
}

constexpr char kGradient[] =
    R"(graph @g(%g: f32[2, 3, 8], %w: f32[16, 8], %x: f32[2, 3, 16]) -> (%y, %s) {
    %0 = matmul_nt %g, %w : f32[2, 3, 16]
    %y = gelu_grad %0, %x {approximate="tanh"} : f32[2, 3, 16]
    %s = reduce_sum %y {axes=[0, 1], keepdims=false} : f32[16]
  })";

TEST(ProductGroups, GradientOfGeluWithSumsOfItsType) {
  Program p = ProgramOf(kGradient);
  auto groups = Groups(p);
  ASSERT_THAT(groups, SizeIs(1));
  EXPECT_EQ(groups[0].epilogue, Epilogue::kGeluGradSums);
  EXPECT_THAT(groups[0].instructions, ElementsAre(0, 1, 2));
  EXPECT_EQ(groups[0].aux, p.instructions[1].operands[1]);
  EXPECT_EQ(groups[0].result, Buffer(p, 1));
  EXPECT_EQ(groups[0].sums, Buffer(p, 2));
}

TEST(ProductGroups, GradientOfGeluWithoutSumsOfAnotherTypeOrOverFewerDims) {
  Program p = ProgramOf(R"(graph @g(%g: bf16[6, 8], %w: bf16[16, 8], %x: bf16[6, 16]) -> (%y, %s) {
    %0 = matmul_nt %g, %w : bf16[6, 16]
    %y = gelu_grad %0, %x {approximate="tanh"} : bf16[6, 16]
    %s = reduce_sum %y {axes=[0], keepdims=false, out="f32"} : f32[16]
  })");
  ASSERT_THAT(Groups(p), SizeIs(1));
  EXPECT_EQ(Groups(p)[0].epilogue, Epilogue::kGeluGrad);
  EXPECT_THAT(Groups(p)[0].instructions, ElementsAre(0, 1));
  std::string fewer = kGradient;
  fewer.replace(fewer.find("[0, 1]"), 6, "[0]");
  fewer.replace(fewer.find("f32[16]\n"), 7, "f32[3, 16]");
  p = ProgramOf(fewer);
  ASSERT_THAT(Groups(p), SizeIs(1));
  EXPECT_EQ(Groups(p)[0].epilogue, Epilogue::kGeluGrad);
}

std::string Weight(const std::string& rest, const std::string& results = "%w, %s") {
  return "graph @g(%x: f32[2, 3, 8], %g: f32[2, 3, 16]) -> (" + results + ") {\n" + rest + "}";
}
const std::string kProduct = "%w = matmul_tn %x, %g {batch=0} : f32[8, 16]\n";
const std::string kSums = "%s = reduce_sum %g {axes=[0, 1], keepdims=false} : f32[16]\n";

TEST(ProductGroups, SumsOfEitherOperandBeforeOrAfter) {
  for (const std::string& text : {Weight(kProduct + kSums), Weight(kSums + kProduct)}) {
    Program p = ProgramOf(text);
    auto groups = Groups(p);
    ASSERT_THAT(groups, SizeIs(1));
    EXPECT_EQ(groups[0].epilogue, Epilogue::kSumsOfRight);
    EXPECT_THAT(groups[0].instructions, ElementsAre(0, 1));
    EXPECT_EQ(p.instructions[groups[0].product].op, "matmul_tn");
  }
  auto groups = Groups(
      ProgramOf(Weight(kProduct + "%s = reduce_sum %x {axes=[0, 1], keepdims=false} : f32[8]\n")));
  ASSERT_THAT(groups, SizeIs(1));
  EXPECT_EQ(groups[0].epilogue, Epilogue::kSumsOfLeft);
}

TEST(ProductGroups, AnInstructionIsInOneGroup) {
  EXPECT_THAT(Groups(ProgramOf(Weight(
                  kProduct + kSums + "%t = reduce_sum %x {axes=[0, 1], keepdims=false} : f32[8]\n",
                  "%w, %s, %t"))),
              SizeIs(1));
}

std::string Gelu(const std::string& operands, const std::string& product, const std::string& type,
                 const std::string& rest = "") {
  return "graph @g(" + operands + ") -> (%y, %0) {\n%0 = " + product + " : " + type +
         "\n%y = gelu %0 {approximate=\"tanh\"} : " + type + "\n" + rest + "}";
}

TEST(ProductGroupsRefused, GeluByErf) {
  std::string text = Gelu("%x: f32[4, 8], %w: f32[8, 16]", "matmul %x, %w", "f32[4, 16]");
  text.replace(text.find("\"tanh\""), 6, "\"none\"");
  EXPECT_EQ(Refusal(text), "instruction 1, gelu: cuBLASLt has gelu by tanh only");
  text = kGradient;
  text.replace(text.find("\"tanh\""), 6, "\"none\"");
  EXPECT_EQ(Refusal(text), "instruction 1, gelu_grad: cuBLASLt has gelu by tanh only");
}

TEST(ProductGroupsRefused, AddedToSomething) {
  EXPECT_EQ(Refusal(Gelu("%x: f32[4, 8], %w: f32[8, 16], %c: f32[4, 16]", "matmul %x, %w, %c",
                         "f32[4, 16]")),
            "instruction 1, gelu: the product is added to something");
}

TEST(ProductGroupsRefused, PartsOfRows) {
  EXPECT_EQ(
      Refusal(Gelu("%x: f32[4, 8], %w: f32[8, 16]", "matmul %x, %w {length=24}", "f32[4, 24]")),
      "instruction 1, gelu: it is of a part of the rows");
  EXPECT_EQ(Refusal(R"(graph @g(%x: f32[6, 16], %g: f32[6, 8]) -> (%w, %s) {
    %w = matmul_tn %x, %g {batch=0, cols=13} : f32[13, 8]
    %s = reduce_sum %x {axes=[0], keepdims=false} : f32[16]
  })"),
            "instruction 1, reduce_sum: it is of a part of the rows");
}

TEST(ProductGroupsRefused, ABiasBeforeAGradient) {
  EXPECT_EQ(
      Refusal(R"(graph @g(%g: f32[6, 8], %w: f32[8, 16], %b: f32[16], %x: f32[6, 16]) -> (%y) {
    %0 = linear %g, %w, %b {nt=false} : f32[6, 16]
    %y = gelu_grad %0, %x {approximate="tanh"} : f32[6, 16]
  })"),
      "instruction 1, gelu_grad: the product has a bias");
}

TEST(ProductGroupsRefused, SeveralMatrices) {
  EXPECT_EQ(Refusal(Gelu("%x: f32[2, 4, 8], %w: f32[2, 8, 16]", "matmul %x, %w", "f32[2, 4, 16]")),
            "instruction 1, gelu: the product is of several matrices");
  EXPECT_EQ(Refusal(R"(graph @g(%x: f32[2, 3, 8], %g: f32[2, 3, 16]) -> (%w, %s) {
    %w = matmul_tn %x, %g {batch=1} : f32[2, 8, 16]
    %s = reduce_sum %g {axes=[0, 1], keepdims=false} : f32[16]
  })"),
            "instruction 1, reduce_sum: the product is of several matrices");
}

TEST(ProductGroupsRefused, Padding) {
  const std::string whole = R"(mesh [tp=2]
  graph @g(%x: f32[4, 8], %w: f32[8, 16@tp]) -> (%y, %0) {
    %0 = matmul %x, %w : f32[4, 16@tp]
    %y = gelu %0 {approximate="tanh"} : f32[4, 16@tp]
  })";
  EXPECT_THAT(Groups(ProgramOf(whole)), SizeIs(1));
  std::string padded = whole;
  for (size_t at; (at = padded.find("16@tp")) != std::string::npos;) padded.replace(at, 5, "15@tp");
  EXPECT_EQ(Refusal(padded), "instruction 1, gelu: a tensor has padding");
}

TEST(ProductGroupsRefused, Types) {
  EXPECT_EQ(Refusal(Gelu("%x: f64[4, 8], %w: f64[8, 16]", "matmul %x, %w", "f64[4, 16]")),
            "instruction 1, gelu: cuBLASLt has no epilogues for the type");
  EXPECT_EQ(Refusal(Gelu("%x: bf16[4, 8], %w: bf16[8, 16], %b: bf16[16]",
                         "linear %x, %w, %b {nt=false, out=\"f32\"}", "f32[4, 16]")),
            "instruction 1, gelu: its types differ from the product's");
  EXPECT_EQ(Refusal(R"(graph @g(%x: bf16[6, 8], %g: bf16[6, 16]) -> (%w, %s) {
    %w = matmul_tn %x, %g {batch=0, out="f32"} : f32[8, 16]
    %s = reduce_sum %g {axes=[0], keepdims=false} : bf16[16]
  })"),
            "instruction 1, reduce_sum: its types differ from the product's");
}

TEST(ProductGroupsRefused, RowsOfTheAuxiliaryMatrix) {
  EXPECT_EQ(Refusal(Gelu("%x: f32[4, 8], %w: f32[8, 12]", "matmul %x, %w", "f32[4, 12]")),
            "instruction 1, gelu: the last dim of gelu's operand is no multiple of 8");
}

TEST(ProductGroupsRefused, ReadElsewhere) {
  EXPECT_EQ(Refusal(R"(graph @g(%g: f32[6, 8], %w: f32[16, 8], %x: f32[6, 16]) -> (%y, %0) {
    %0 = matmul_nt %g, %w : f32[6, 16]
    %y = gelu_grad %0, %x {approximate="tanh"} : f32[6, 16]
  })"),
            "instruction 1, gelu_grad: the product is read elsewhere");
}

TEST(ProductGroupsRefused, SumsOverFewerDims) {
  EXPECT_EQ(
      Refusal(Weight(kProduct + "%s = reduce_sum %g {axes=[0], keepdims=false} : f32[3, 16]\n")),
      "instruction 1, reduce_sum: it does not sum over all dims but the last");
}

TEST(ProductGroupsRefused, AnotherGroup) {
  std::vector<std::string> refusals;
  Program p = ProgramOf(Gelu("%x: f32[4, 8], %w: f32[8, 16]", "matmul %x, %w", "f32[4, 16]",
                             "%z = gelu %0 {approximate=\"tanh\"} : f32[4, 16]\n"));
  EXPECT_THAT(FindProductGroups(p, &refusals), SizeIs(1));
  EXPECT_THAT(refusals, ElementsAre("instruction 2, gelu: another group has it"));
}

TEST(ProductGroupsRefused, InstructionsBetween) {
  // What reads the sums makes an operand of the product.
  EXPECT_EQ(Refusal(R"(graph @g(%x: f32[6, 16], %g: f32[6, 16]) -> (%w, %s) {
    %s = reduce_sum %g {axes=[0], keepdims=false} : f32[16]
    %t = add %x, %s : f32[6, 16]
    %w = matmul_tn %t, %g {batch=0} : f32[16, 16]
  })"),
            "instruction 0, reduce_sum: instruction 1 stands between");
}

// The last place is taken where nothing is in the way, else an earlier one.
TEST(ProductGroups, RunWhereTheyMay) {
  Program p = ProgramOf(Weight(kSums + "%t = exp %x : f32[2, 3, 8]\n" + kProduct, "%w, %s, %t"));
  auto groups = Groups(p);
  ASSERT_THAT(groups, SizeIs(1));
  EXPECT_EQ(groups[0].place, 2);
  p = ProgramOf(Weight(kSums + "%t = exp %s : f32[16]\n" + kProduct, "%w, %t"));
  groups = Groups(p);
  ASSERT_THAT(groups, SizeIs(1));
  EXPECT_EQ(groups[0].place, 0);
}

// The sums can only be early, but their product reads what the gelu's group makes, later.
TEST(ProductGroupsRefused, GroupsThatWouldChangePlaces) {
  const std::string text =
      R"(graph @g(%x: f32[6, 8], %w: f32[8, 16], %g: f32[6, 24]) -> (%y, %v, %t) {
    %0 = matmul %x, %w : f32[6, 16]
    %s = reduce_sum %g {axes=[0], keepdims=false} : f32[24]
    %t = exp %s : f32[24]
    %y = gelu %0 {approximate="tanh"} : f32[6, 16]
    %v = matmul_tn %0, %g {batch=0} : f32[16, 24]
  })";
  std::vector<std::string> refusals;
  auto groups = FindProductGroups(ProgramOf(text), &refusals);
  ASSERT_THAT(groups, SizeIs(1));
  EXPECT_EQ(groups[0].epilogue, Epilogue::kGeluAux);
  EXPECT_EQ(groups[0].place, 3);
  ASSERT_THAT(refusals, SizeIs(1));
  EXPECT_EQ(refusals[0], "instruction 1, reduce_sum: instruction 2 stands between");
  // With another operand it is early, and the gelu's group late.
  std::string other = text;
  other.replace(other.find("matmul_tn %0"), 12, "matmul_tn %x");
  other.replace(other.find("[16, 24]"), 8, "[8, 24]");
  groups = Groups(ProgramOf(other));
  ASSERT_THAT(groups, SizeIs(2));
  EXPECT_EQ(groups[0].place, 1);
  EXPECT_EQ(groups[1].place, 3);
}

TEST(ProductGroupsRefused, MemoryOfAnOperand) {
  // What the product reads ends with it, but the planner keeps it for the gelu.
  Program p = ProgramOf(R"(graph @g(%i: f32[16, 16], %w: f32[16, 16]) -> (%y, %0) {
    %x = exp %i : f32[16, 16]
    %0 = matmul %x, %w : f32[16, 16]
    %y = gelu %0 {approximate="tanh"} : f32[16, 16]
  })");
  EXPECT_THAT(Groups(p), SizeIs(1));
  p.buffers[Buffer(p, 2)].offset = p.buffers[Buffer(p, 0)].offset;
  EXPECT_EQ(Refusal(p), "instruction 2, gelu: a result is made in the memory of an operand");
}

TEST(ProductGroupsRefused, MemoryOfAnotherResult) {
  Program p = ProgramOf(Weight(kSums + kProduct));
  auto& sums = p.buffers[Buffer(p, 0)];
  sums.offset = p.buffers[Buffer(p, 1)].offset;
  EXPECT_EQ(Refusal(p), "instruction 0, reduce_sum: two results share memory");
}

TEST(ProductGroupsRefused, MemoryOfItsOwn) {
  Program p = ProgramOf(Gelu("%x: f32[4, 8], %w: f32[8, 16]", "matmul %x, %w", "f32[4, 16]"));
  p.instructions[1].scratch = 0;
  EXPECT_EQ(Refusal(p), "instruction 1, gelu: it has memory of its own");
}

TEST(ProductGroupsRefused, NothingToDo) {
  EXPECT_EQ(Refusal(Gelu("%x: f32[0, 8], %w: f32[8, 16]", "matmul %x, %w", "f32[0, 16]")),
            "instruction 1, gelu: there is nothing to do");
}

// What is not by a product is no group, and no refusal either.
TEST(ProductGroups, NothingWithoutAProduct) {
  std::vector<std::string> refusals;
  Program p = ProgramOf(R"(graph @g(%x: f32[4, 8]) -> (%y, %s) {
    %0 = exp %x : f32[4, 8]
    %y = gelu %0 {approximate="tanh"} : f32[4, 8]
    %s = reduce_sum %y {axes=[0], keepdims=false} : f32[8]
  })");
  EXPECT_THAT(FindProductGroups(p, &refusals), IsEmpty());
  EXPECT_THAT(refusals, IsEmpty());
}

std::map<Epilogue, int> CountsOfGpt(const std::string& precision, const std::string& mesh) {
  PipelineOptions options;
  options.loss = "lm";
  options.precision.compute = precision;
  Graph graph =
      BuildGpt(ParseBuiltin("builtin:gpt?layers=3,hidden=32,heads=4,vocab=96,seq=16,batch=4"));
  Spec spec = SpecOf("megatron");
  CompileGraph(graph, spec, MeshFor(spec, Mesh::Parse(mesh)), options);
  std::map<Epilogue, int> counts;
  for (const ProductGroup& g : Groups(ProgramsFor(graph)[0])) ++counts[g.epilogue];
  return counts;
}

TEST(ProductGroups, OfAGptOfThreeLayers) {
  using Counts = std::map<Epilogue, int>;
  for (const char* mesh : {"tp=1", "tp=2", "tp=4"}) {
    // Per layer; bias gradients: c_attn, and both c_proj.
    EXPECT_EQ(CountsOfGpt("f32", mesh), (Counts{{Epilogue::kGeluAux, 3},
                                                {Epilogue::kGeluGradSums, 3},
                                                {Epilogue::kSumsOfRight, 9}}))
        << mesh;
    // c_attn and c_fc: what flows back into c_proj is rounded for products, but not for sums.
    EXPECT_EQ(
        CountsOfGpt("bf16", mesh),
        (Counts{{Epilogue::kGeluAux, 3}, {Epilogue::kGeluGrad, 3}, {Epilogue::kSumsOfRight, 6}}))
        << mesh;
  }
}

// The forward pass keeps no product, the backward pass needs it.
TEST(ProductGroups, OfAGptThatKeepsLittle) {
  PipelineOptions options;
  options.recompute = "full";
  Graph graph =
      BuildGpt(ParseBuiltin("builtin:gpt?layers=3,hidden=32,heads=4,vocab=96,seq=16,batch=4"));
  Spec spec = SpecOf("serial");
  CompileGraph(graph, spec, MeshFor(spec, Mesh::Parse("")), options);
  int plain = 0, with_aux = 0;
  for (const ProductGroup& g : FindProductGroups(ProgramsFor(graph)[0])) {
    plain += g.epilogue == Epilogue::kGelu;
    with_aux += g.epilogue == Epilogue::kGeluAux;
  }
  EXPECT_EQ(plain, 3);
  EXPECT_EQ(with_aux, 3);
}

}  // namespace
}  // namespace shardc::testing
