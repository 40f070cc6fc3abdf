// compile: arguments that make no sense.
#include <gmock/gmock.h>

#include "tests/tools/tool.h"

namespace shardc::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class CompileArguments : public ToolTest {
 protected:
  void Refuses(const std::string& options, const std::string& part,
               const char* id = "E6104") const {
    ToolResult r = Tool(std::string("compile ") + kModel + " -o plan " + options);
    EXPECT_EQ(r.exit, 2) << r.err;
    EXPECT_THAT(r.err, AllOf(HasSubstr(id), HasSubstr(part)));
    EXPECT_EQ(List("."), "");
  }
};

TEST_F(CompileArguments, SizesOfSymbolsAndInputs) {
  Refuses("--bind batch", "is not symbol=size");
  Refuses("--bind batch=two", "'two' is not a positive size");
  Refuses("--bind batch=0", "'0' is not a positive size");
  Refuses("--shape input_ids", "is not input=2x32");
  Refuses("--shape input_ids=2x", "'' is not a positive size");
  Refuses("--shape ids=2x16", "the one input input_ids");
}

TEST_F(CompileArguments, MisspeltOptions) {
  Refuses("--mseh tp=2", "--mseh: did you mean '--mesh'", "E6100");
  EXPECT_THAT(Tool(StrCat("compile ", kModel, " --ouput plan")).err,
              AllOf(HasSubstr("--output is required"), HasSubstr("did you mean '--output'")));
}

TEST_F(CompileArguments, WhatMakesNoDifference) {
  auto said = [&](const std::string& options) {
    const ToolResult r = Tool(StrCat("compile ", kModel, " -o plan ", options));
    EXPECT_EQ(r.exit, 0) << r.err;
    return r.err;
  };
  EXPECT_THAT(said("--loss none --freeze '*.wte.*'"), HasSubstr("note: --freeze makes no diff"));
  EXPECT_THAT(said("--no-gradients --train-only '*.wte.*'"), HasSubstr("--train-only makes no"));
  EXPECT_THAT(said("--reduce-in f32"), HasSubstr("--reduce-in makes no difference: all of it is"));
  for (const char* forward : {"--loss none", "--no-gradients"}) {
    EXPECT_THAT(said(StrCat(forward, " --recompute full")),
                HasSubstr("--recompute makes no difference: no gradients are computed"));
  }
  EXPECT_THAT(said("--dropout-seed 1"), HasSubstr("--dropout-seed makes no difference"));
  EXPECT_THAT(said("--freeze '*.wte.*' --reduce-in f32 --precision bf16"),
              Not(HasSubstr("makes no difference")));
}

// 512 MiB of logits, which training does not need.
TEST_F(CompileArguments, OutputsThatHoldMuchMemory) {
  auto said = [&](const std::string& options) {
    const ToolResult r = Tool(StrCat("compile 'builtin:gpt?layers=1,hidden=8,heads=1,vocab=65536,",
                                     "seq=256,batch=8' --weights none -o plan ", options));
    EXPECT_EQ(r.exit, 0) << r.err;
    return r.err;
  };
  EXPECT_THAT(said(""), AllOf(HasSubstr("note: output 'logits' holds 536870912 of an arena's "),
                              HasSubstr("; --drop 'logits' is without it")));
  EXPECT_THAT(said("--microbatches 4 --spec dp --mesh dp=2"),
              HasSubstr("'logits' holds 268435456"));
  EXPECT_THAT(said("--drop logits"), Not(HasSubstr("note: ")));
  EXPECT_THAT(said("--no-gradients"), Not(HasSubstr("note: ")));
  EXPECT_THAT(said("--spec megatron --mesh tp=4"), Not(HasSubstr("note: ")));
}

// What would be left out without a word.
TEST_F(CompileArguments, OptimizersAndWhatTheyNeed) {
  Refuses("--optimizer adamw --loss none", "there is no gradient to step along", "E6102");
  Refuses("--optimizer adamw --no-gradients", "there is no gradient to step along", "E6102");
  Refuses("--optimizer adamw --momentum 0.9", "--momentum: momentum is sgd's", "E6102");
  Refuses("--optimizer sgd --momentum 1", "--momentum: 1 is not in [0, 1)", "E6102");
  Refuses("--optimizer adamw --betas 0.9,1", "--betas: 0.9, 1 are not in [0, 1)", "E6102");
  Refuses("--optimizer adamw --lr-decay cosine", "--lr-decay-steps: is missing", "E6102");
  Refuses("--optimizer sgd --betas 0.9,0.95", "betas are adamw's", "E6102");
  Refuses("--optimizer sgd --eps 1e-6", "eps is adamw's", "E6102");
  Refuses("--optimizer sgd --lr inf", "learning rate", "E6102");
  Refuses("--no-dropout --dropout-seed 3", "--dropout-seed excludes --no-dropout", "E6100");
  Refuses("--optimizer sgd --momentum inf", "--momentum: inf is not a number", "E6102");
  Refuses("--optimizer adamw --weight-decay nan", "--weight-decay: nan is not a number", "E6102");
  for (const char* option : {"--lr 1", "--betas 0.9,0.95", "--eps 1", "--momentum 0.9",
                             "--weight-decay 0.1", "--clip-norm 1"}) {
    Refuses(option, "requires --optimizer", "E6100");
  }
}

TEST_F(CompileArguments, WhatAGraphInTextFormIsGivenIsNotPartial) {
  Write("input.shardc", R"(mesh [tp=2]
graph @g(%x: f32[4] partial(tp)) -> (%y) {
  %y = reshard %x : f32[4]
})");
  Write("param.shardc", R"(mesh [tp=2]
graph @g(%x: f32[4]) -> (%y) {
  %w = param "w" : f32[4] partial(tp)
  %y = add %x, %w : f32[4]
})");
  for (auto [file, what] :
       {std::pair("input.shardc", "input x"), {"param.shardc", "parameter w"}}) {
    ToolResult r = Tool(std::string("compile ") + file + " --loss none --weights none -o plan");
    EXPECT_EQ(r.exit, 3) << r.err;
    EXPECT_THAT(r.err, AllOf(HasSubstr("E7003"), HasSubstr(what), HasSubstr("is partial")));
  }
}

TEST_F(CompileArguments, AGraphInTextFormBringsItsMesh) {
  Write("g.shardc", R"(mesh [tp=2]
graph @g(%x: f32[4, 6]) -> (%y) {
  %w = param "w" : f32[6, 8@tp]
  %y = matmul %x, %w : f32[4, 8]
})");
  const std::string compile = "compile g.shardc --loss none --weights none -o plan";
  ToolResult r = Tool(compile);
  EXPECT_EQ(r.exit, 0) << r.err;
  EXPECT_THAT(r.err, HasSubstr("mesh tp=2, 2 ranks"));
  r = Tool(compile + " --mesh dp=2");
  EXPECT_EQ(r.exit, 4);
  EXPECT_THAT(r.err, HasSubstr("axis 'tp' of f32[6, 8@tp] is not in the mesh dp=2"));
}

}  // namespace
}  // namespace shardc::testing
