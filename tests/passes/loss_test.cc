#include "passes/loss.h"

#include <gtest/gtest.h>

#include "tests/ir/thrown.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

constexpr const char* kLogits = R"(graph @g(%x: f32[2, 4, 8]) -> (logits: %0, %hidden) {
  %0 = neg %x : f32[2, 4, 8]
  %hidden = exp %x : f32[2, 4, 8]
})";

void Check(const char* text, const std::string& kind, std::string_view checks,
           const std::string& output = {}) {
  Graph graph = ParseAndVerify(text);
  Value* loss = AttachLoss(graph, kind, output);
  EXPECT_EQ(loss, graph.FindOutput("loss"));
  CheckGraph(graph, checks);
}

void Refused(const char* text, const std::string& kind, std::string_view what,
             const std::string& output = {}, std::string_view id = "E1601") {
  ExpectThrown(
      [&] {
        Graph graph = ParseAndVerify(text);
        AttachLoss(graph, kind, output);
      },
      id, what);
}

TEST(AttachLoss, NextToken) {
  Check(kLogits, "lm", R"(
    CHECK: graph @g(%x: f32[2, 4, 8], %labels: i64[2, 4]) -> (loss: %_, logits: %0, %hidden)
    CHECK: %_ = slice %labels {limits=[2, 4], starts=[0, 1], steps=[1, 1], site="loss"} : i64[2, 3]
    CHECK-NEXT: %2 = pad %1 {high=[0, 1], low=[0, 0], value=-100.0, site="loss"} : i64[2, 4]
    CHECK-NEXT: %3, %_ = cross_entropy %0, %2 {ignore_index=-100,
    CHECK: %_ = not_equal %2, %_
    CHECK: %_ = reduce_sum %3 {axes=[0, 1]
    CHECK: %_ = div %_, %_ {site="loss"} : f32[])");
}

TEST(AttachLoss, CrossEntropyDoesNotShift) {
  Check(kLogits, "ce", R"(
    CHECK-NOT: slice
    CHECK-NOT: pad
    CHECK: cross_entropy %0, %labels
    CHECK: not_equal %labels)");
}

TEST(AttachLoss, MaskedTokensAreWeighed) {
  Check(kLogits, "masked_lm", R"(
    CHECK: %labels: i64[2, 4], %loss_mask: f32[2, 4])
    CHECK-NOT: slice
    CHECK: %1, %_ = cross_entropy %0, %labels
    CHECK-NEXT: %3 = mul %1, %loss_mask
    CHECK-NEXT: %4 = reduce_sum %3
    CHECK-NEXT: %5 = reduce_sum %loss_mask
    CHECK-NEXT: %6 = div %4, %5)");
}

TEST(AttachLoss, DotIsWithACotangent) {
  Check(kLogits, "dot", R"(
    CHECK: %cotangent: f32[2, 4, 8]) -> (loss: %_, logits
    CHECK: %1 = mul %hidden, %cotangent
    CHECK-NEXT: %_ = reduce_sum %1 {axes=[0, 1, 2], keepdims=false, site="loss"} : f32[])",
        "hidden");
}

TEST(AttachLoss, AnOutputOfTheModel) {
  constexpr const char* kOwn = R"(graph @g(%x: f32[2, 4], %i: i64[2]) -> (%y, own: %0, %i) {
    %y = neg %x : f32[2, 4]
    %0 = reduce_sum %x {axes=[0, 1], keepdims=true} : f32[1, 1]
  })";
  Check(kOwn, "output:own", R"(
    CHECK: -> (loss: %1, %y, own: %0, %i)
    CHECK: %1 = reshape %0 {shape=[], site="loss"} : f32[])");
  constexpr const char* kOwnLoss = R"(graph @g(%x: f32[2, 4]) -> (%y, loss: %0) {
    %y = neg %x : f32[2, 4]
    %0 = reduce_sum %x {axes=[0, 1], keepdims=true} : f32[1, 1]
  })";
  Check(kOwnLoss, "output:loss", R"(
    CHECK: -> (%y, loss: %1)
    CHECK: %1 = reshape %0 {shape=[], site="loss"} : f32[])");
  Refused(kOwnLoss, "dot", "the model has an output 'loss' of its own, and dot is another", "y");
  Refused(kOwn, "output:y", "output 'y' is not a float scalar (where it is one in PyTorch: dynamo");
  Refused(kOwn, "output:on", "the model has no output 'on'");
}

TEST(AttachLoss, NoneDoesNothing) {
  Graph graph = ParseAndVerify(kLogits);
  EXPECT_EQ(AttachLoss(graph, "none"), nullptr);
  EXPECT_EQ(graph.num_ops(), 2u);
  EXPECT_EQ(graph.outputs.size(), 2u);
}

TEST(AttachLoss, AnInputOfTheNameIsUsed) {
  constexpr const char* kText = R"(graph @g(%x: f32[2, 8], %labels: i64[2]) -> (%y) {
    %y = neg %x : f32[2, 8]
  })";
  Check(kText, "ce", R"(
    CHECK: graph @g(%x: f32[2, 8], %labels: i64[2]) -> (loss: %_, %y)
    CHECK: cross_entropy %y, %labels)");
  constexpr const char* kOther = R"(graph @g(%x: f32[2, 8], %labels: i32[2]) -> (%y) {
    %y = neg %x : f32[2, 8]
  })";
  Refused(kOther, "ce", "the model's own input 'labels' is i32[2], the loss needs i64[2]");
}

// In f16 the weights of 70,000 labels have no sum, in bf16 those of 257 not the right one.
TEST(AttachLoss, OfHalvesIsMadeInF32) {
  for (const char* half : {"f16", "bf16"}) {
    for (const char* kind : {"lm", "ce", "masked_lm", "dot"}) {
      Graph graph = ParseAndVerify(StrCat(
          "graph @g(%x: ", half, "[2, 4, 8]) -> (%y) {\n  %y = neg %x : ", half, "[2, 4, 8]\n}"));
      Value* loss = AttachLoss(graph, kind);
      EXPECT_EQ(loss->type.dtype, DType::kF32) << kind;
      for (const Value* v : loss->producer->operands) EXPECT_EQ(v->type.dtype, DType::kF32) << kind;
      EXPECT_EQ(graph.FindOutput("y")->type.dtype, *ParseDType(half));
    }
  }
}

TEST(DropOutputs, OfManyByOneName) {
  Graph graph = ParseAndVerify(R"(graph @g(%x: f32[2]) -> (%x, loss: %x, past.0: %x, past.1: %x) {
})");
  DropOutputs(graph, {"past.*"});
  EXPECT_EQ(graph.outputs.size(), 2u);
  ExpectThrown([&] { DropOutputs(graph, {"past.*"}); }, "E6110", "no output 'past.*'");
  DropOutputs(graph, {"*"});
  ASSERT_EQ(graph.outputs.size(), 1u);
  EXPECT_EQ(graph.outputs[0].name, "loss");
}

// Another loss takes the name.
TEST(DropOutputs, TheModelsOwnLossGivesWayToAnother) {
  constexpr const char* kOwn = R"(graph @g(%x: f32[2, 4, 8]) -> (loss: %0, logits: %y) {
    %0 = reduce_sum %x {axes=[0, 1, 2], keepdims=false} : f32[]
    %y = neg %x : f32[2, 4, 8]
  })";
  using Strings = std::vector<std::string>;
  auto left = [&](const std::string& kind, const Strings& drop) {
    Graph graph = ParseAndVerify(kOwn);
    const Strings names = DropOwnLoss(graph, kind, drop);
    AttachLoss(graph, kind);
    DropOutputs(graph, names);
    Strings outputs;
    for (const Output& o : graph.outputs) {
      outputs.push_back(o.value->producer->name() == "reduce_sum" ? o.name + " of the model"
                                                                  : o.name);
    }
    return outputs;
  };
  EXPECT_EQ(left("ce", {"loss"}), (Strings{"loss", "logits"}));
  EXPECT_EQ(left("ce", {"*"}), (Strings{"loss"}));
  EXPECT_EQ(left("none", {"loss"}), (Strings{"logits"}));
  EXPECT_EQ(left("none", {"logits"}), (Strings{"loss of the model"}));
  EXPECT_EQ(left("output:loss", {"*"}), (Strings{"loss of the model"}));
  ExpectThrown([&] { left("output:loss", {"loss"}); }, "E6110", "no output 'loss' to leave out");
  ExpectThrown([&] { left("none", {"*"}); }, "E6110", "nothing is left");
  ExpectThrown([&] { left("ce", {"logits"}); }, "E1601", "leave it out with --drop loss");
}

TEST(AttachLoss, RefusesWhatDoesNotFit) {
  Refused(kLogits, "mse", "use lm, ce, masked_lm, dot, none or output:NAME", "", "E6101");
  Refused(kLogits, "lm", "the model has no output 'logit'", "logit");
  Refused(kLogits, "lm", "logits f32[2, 4, 8], hidden f32[2, 4, 8]", "logit");
  Refused("graph @g(%x: f32[2]) -> (%x, %y) {\n %y = neg %x : f32[2]\n}", "dot",
          "the model has several float outputs; say with --loss-output which");
  Refused("graph @g(%x: i64[2]) -> (%x) {\n}", "lm", "the model has no float output");
  Refused("graph @g(%x: f32[2]) -> (%x) {\n}", "lm", "a batch and a vocabulary dim");
  Refused("graph @g(%x: f32[2, 1, 8]) -> (%x) {\n}", "lm", "has no next one to predict");
  Refused("graph @g(%x: f32[2, 0, 8]) -> (%x) {\n}", "lm", "has no next one to predict");
}

}  // namespace
}  // namespace shardc::testing
