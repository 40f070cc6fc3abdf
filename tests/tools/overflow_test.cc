// Steps whose gradients are no finite numbers.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "ir/npy.h"
#include "ir/safetensors.h"
#include "tests/ir/write_tensors.h"
#include "tests/tools/tool.h"

namespace shardc::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

class OverflowTest : public ToolTest {
 protected:
  // Ones for 2 x 16 tokens in each of 5 steps, but for the third, where one is `bad`.
  void WriteMask(float bad) const {
    HostTensor mask(DType::kF32, {5, 2, 16});
    std::fill_n(mask.data<float>(), mask.num_elements(), 1.0f);
    mask.data<float>()[2 * 32 + 7] = bad;
    WriteNpy(Path("mask.npy"), mask);
  }
};

// f16 has no place for what weights as large as these make, whatever the loss is multiplied by.
TEST_F(OverflowTest, RunsWithoutAnyUpdateReplaceNoFile) {
  WriteIds();
  Compile("plan", "--spec serial --precision f16 --loss lm --optimizer adamw",
          "'builtin:gpt?layers=2,hidden=32,heads=4,vocab=97,seq=16,batch=2,init_std=100'");
  for (auto [steps, last] :
       {std::pair("--steps 3", 3), {"--steps 20", 6}, {"--repeat 1", 2}, {"", 1}}) {
    Write("checkpoint", "of before");
    const ToolResult r = Tool(StrCat("run plan --json --input input_ids=@ids.npy ", steps,
                                     " --save-checkpoint checkpoint --save out.safetensors"));
    EXPECT_EQ(r.exit, 7) << steps;
    EXPECT_THAT(r.err, AllOf(HasSubstr(StrCat("E4011: step ", last, ": ")),
                             HasSubstr("the norm of the gradients is nan"),
                             HasSubstr("changes no parameter, and none before it has")))
        << steps;
    EXPECT_EQ(Json::parse(r.out)["outputs"]["grad_norm"], nullptr) << steps;
    EXPECT_EQ(Read("checkpoint"), "of before") << steps;
    EXPECT_TRUE(std::filesystem::remove(Path("out.safetensors"))) << steps;
  }
}

// Short runs get on, one after the other.
TEST_F(OverflowTest, TheScaleOfAFileIsKeptInIt) {
  WriteIds();
  HostTensor cotangent(DType::kF32, {2, 16, 97});
  for (int64_t i = 0; i < cotangent.num_elements(); ++i) cotangent.SetDouble(i, i % 2 ? 0.2 : -0.2);
  WriteNpy(Path("cotangent.npy"), cotangent);
  Compile("plan", "--spec serial --loss dot --optimizer sgd --lr 1e-4");
  const std::string run =
      "run plan --input input_ids=@ids.npy --input cotangent=@cotangent.npy --steps 1 "
      "--save-checkpoint c.safetensors ";
  ASSERT_EQ(Tool(run).exit, 0);
  Compile("plan", "--spec serial --precision f16 --loss dot --optimizer sgd --lr 1e-4");
  int exit = 7, runs = 0;
  for (; exit == 7 && runs < 9; ++runs) exit = Tool(run + "--load c.safetensors").exit;
  EXPECT_EQ(exit, 0);
  EXPECT_GT(runs, 1);
  EXPECT_EQ(SafetensorsFile(Path("c.safetensors")).Read("optimizer.step").AsDouble(0), 2);
}

TEST_F(OverflowTest, WhatIsSavedIsFromBeforeTheStepThatFailed) {
  WriteIds();
  for (float bad : {HUGE_VALF, std::numeric_limits<float>::quiet_NaN()}) {
    WriteMask(bad);
    for (const char* plan : {"--spec serial --precision bf16", "--spec megatron --mesh dp=2,tp=2",
                             "--spec megatron --mesh pp=2,tp=1 --microbatches 2"}) {
      Compile("plan", StrCat(plan, " --loss masked_lm --optimizer sgd --momentum 0.9"));
      const std::string run =
          "run plan --input input_ids=@ids.npy --input labels=@ids.npy --input loss_mask=@mask.npy "
          "--save-checkpoint ";
      ASSERT_EQ(Tool(run + "two.safetensors --steps 2").exit, 0);
      const ToolResult r = Tool(run + "five.safetensors --steps 5 --save-interval 1");
      EXPECT_EQ(r.exit, 7) << plan;
      EXPECT_THAT(r.err, AllOf(HasSubstr("E4011: step 3: the norm of the gradients is nan"),
                               HasSubstr("and what is saved is from before it")))
          << plan;
      EXPECT_THAT(r.out, Not(HasSubstr("\n     4  "))) << plan;
      EXPECT_EQ(Read("five.safetensors"), Read("two.safetensors")) << plan;
    }
  }
}

TEST_F(OverflowTest, F16GoesOnWithASmallerScale) {
  WriteIds();
  HostTensor cotangent(DType::kF32, {2, 16, 97});
  for (int64_t i = 0; i < cotangent.num_elements(); ++i)
    cotangent.SetDouble(i, i % 2 ? 0.125 : -0.125);
  WriteNpy(Path("cotangent.npy"), cotangent);
  const std::string training = "--loss dot --optimizer sgd --lr 1e-4";
  const std::string run =
      "run plan --input input_ids=@ids.npy --input cotangent=@cotangent.npy --steps 6 ";
  for (const char* cut : {"--spec serial", "--spec megatron --mesh pp=2,tp=2"}) {
    Compile("plan", StrCat(cut, " --precision f16 ", training));
    const ToolResult r = Tool(run + "--json --save-checkpoint six.safetensors");
    ASSERT_EQ(r.exit, 0) << r.err;
    const Json steps = Json::parse(r.out)["steps"];
    EXPECT_EQ(steps[0]["loss_scale"], 32768);
    EXPECT_EQ(steps[0]["grad_norm"], nullptr);
    EXPECT_EQ(steps[1]["loss_scale"], 16384);
    EXPECT_EQ(steps[1]["loss"], steps[0]["loss"]);
    EXPECT_LT(steps[5]["loss"], steps[0]["loss"]);
    EXPECT_THAT(r.err, HasSubstr("note: step 1: gradients of 32768 times the loss overflow"));
    const SafetensorsFile six(Path("six.safetensors"));
    EXPECT_EQ(six.Read("optimizer.step").AsDouble(0), 5);
    EXPECT_EQ(six.Read("optimizer.loss_scale").AsDouble(0), 0.5);
    // Later runs begin with the scale that the file has, where their plan has one.
    const ToolResult text = Tool(run + "--load six.safetensors");
    EXPECT_THAT(text.out, HasSubstr("grad_norm       loss_scale"));
    EXPECT_THAT(text.err, Not(HasSubstr("step 1: ")));
    Compile("other", StrCat("--spec serial --precision bf16 ", training));
    const ToolResult other = Tool(
        "run other --input input_ids=@ids.npy --input cotangent=@cotangent.npy --steps 2 "
        "--load six.safetensors --save-checkpoint other.safetensors");
    EXPECT_EQ(other.exit, 0) << other.err;
    EXPECT_THAT(other.out, Not(HasSubstr("loss_scale")));
    const ToolResult back = Tool(run + "--load other.safetensors");
    EXPECT_EQ(back.exit, 0) << back.err;
    EXPECT_THAT(back.err, AllOf(HasSubstr("step 1: gradients"), Not(HasSubstr("begins anew"))));
  }
}

TEST_F(OverflowTest, TheScaleGrowsAfterAWindowWithoutOverflows) {
  Write("g.shardc", R"(graph @g(%x: f16[2, 4]) -> (y: %y) {
  %w = param "w" : f16[4, 4]
  %y = matmul %x, %w : f16[2, 4]
})");
  constexpr bool kOverflows[] = {true, false, true, false, false, false, false, false};
  constexpr double kScales[] = {32768, 16384, 16384, 8192, 8192, 16384, 16384, 32768};
  HostTensor w(DType::kF16, {4, 4}), x(DType::kF16, {8, 2, 4}), cotangent(DType::kF16, {8, 2, 4});
  for (int64_t step = 0; step < 8; ++step) {
    for (int64_t i = 0; i < 8; ++i) {
      x.SetDouble(step * 8 + i, 1);
      cotangent.SetDouble(step * 8 + i, kOverflows[step] ? 1000 : 0.125);
    }
  }
  WriteNpy(Path("x.npy"), x);
  WriteNpy(Path("cotangent.npy"), cotangent);
  WriteSafetensors(Path("w.safetensors"), {{"w", w}});
  ASSERT_EQ(Tool("compile g.shardc --weights none --spec serial --loss dot --optimizer sgd "
                 "--loss-scale-window 2 -o plan")
                .exit,
            0);
  const std::string run = "run plan --input x=@x.npy --input cotangent=@cotangent.npy --json ";
  const ToolResult r = Tool(run + "--load w.safetensors --steps 8");
  ASSERT_EQ(r.exit, 0) << r.err;
  const Json steps = Json::parse(r.out)["steps"];
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(steps[i]["loss_scale"], kScales[i]) << i;
}

TEST_F(OverflowTest, AModelsOwnLossScaleIsNone) {
  Write("g.shardc", R"(graph @g(%x: f32[2, 4]) -> (y: %y, loss_scale: %s) {
  %w = param "w" : f32[4, 4]
  %y = matmul %x, %w : f32[2, 4]
  %s = constant {value=tensor<f32[]: 5>} : f32[]
})");
  HostTensor w(DType::kF32, {4, 4}), bad(DType::kF32, {2, 4});
  bad.SetDouble(3, std::numeric_limits<double>::quiet_NaN());
  WriteNpy(Path("bad.npy"), bad);
  WriteSafetensors(Path("w.safetensors"), {{"w", w}});
  ASSERT_EQ(Tool("compile g.shardc --weights none --spec serial --loss dot --loss-output y "
                 "--optimizer sgd -o plan")
                .exit,
            0);
  const ToolResult r =
      Tool("run plan --load w.safetensors --random-inputs 1 --input cotangent=@bad.npy --steps 3");
  EXPECT_EQ(r.exit, 7);
  EXPECT_THAT(r.err, HasSubstr("E4011: step 1: "));
  EXPECT_THAT(r.out, Not(HasSubstr("loss_scale")));
}

TEST_F(OverflowTest, AWindowWithoutF16MakesNoDifference) {
  const ToolResult r =
      Tool(StrCat("compile ", kModel, " --loss lm --optimizer sgd --loss-scale-window 7 -o plan"));
  EXPECT_EQ(r.exit, 0);
  EXPECT_THAT(r.err, HasSubstr("--loss-scale-window makes no difference: no gradient passes f16"));
}

}  // namespace
}  // namespace shardc::testing
