#include "passes/optimizer.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/ir/thrown.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

constexpr const char* kText = R"(mesh [tp=2]
graph @g(%dw: f32[4, 6], %db: f32[6], %dv: f32[6, 4]) -> (grad.w: %dw, grad.b: %db, grad.v: %dv) {
  %w = param "w" : f32[4, 6@tp]
  %b = param "b" : f32[6@tp]
  %v = param "v" {decay=false} : f32[6, 4]
})";

void Check(const OptimizerOptions& options, std::string_view checks) {
  Graph graph = ParseAndVerify(kText);
  AddOptimizer(graph, options);
  CheckGraph(graph, checks);
}

void Refused(const OptimizerOptions& options, std::string_view what) {
  ExpectThrown(
      [&] {
        Graph graph = ParseAndVerify(kText);
        AddOptimizer(graph, options);
      },
      "E6102", what);
}

TEST(Optimizer, AdamWHasTwoStatesCutLikeTheParameter) {
  Check({.kind = "adamw", .rate = {.lr = 0.5}}, R"(
    CHECK: -> (grad.w: %dw, grad.b: %db, grad.v: %dv, grad_norm: %_)
    CHECK: %7 = sub %5, %5
    CHECK-NEXT: %8 = add %6, %7
    CHECK-NEXT: %9 = equal %8, %8
    CHECK-NEXT: %10 = state "optimizer.step" {dtype="i64", init=0.0, shape=[],
    CHECK-NEXT: %11 = constant {value=tensor<f32[]: 0.5>
    CHECK-NEXT: %12 = cast %9 {to="i64"
    CHECK-NEXT: %13 = add %10, %12
    CHECK-NEXT: update "optimizer.step" %13
    CHECK: %14 = state "w.adamw.m" {dtype="f32", init=0.0, shape=[4, 6], phase="optimizer", site="w"} : f32[4, 6@tp]
    CHECK-NEXT: %15 = state "w.adamw.v" {dtype="f32", init=0.0, shape=[4, 6], phase="optimizer", site="w"} : f32[4, 6@tp]
    CHECK-NEXT: %16, %17, %18 = adamw %w, %dw, %14, %15, %13, %8, %11 {beta1=0.9, beta2=0.999, eps=1e-08,
    CHECK-NEXT: update "w" %16
    CHECK-NEXT: update "w.adamw.m" %17
    CHECK-NEXT: update "w.adamw.v" %18)");
}

// Matrices decay, vectors do not, and a parameter that says so does not.
TEST(Optimizer, WeightDecay) {
  Check({.kind = "adamw", .weight_decay = 0.25}, R"(
    CHECK: adamw %w, %_, %_, %_, %_, %_, %_ {beta1=0.9, beta2=0.999, eps=1e-08, weight_decay=0.25
    CHECK: adamw %b, %_, %_, %_, %_, %_, %_ {beta1=0.9, beta2=0.999, eps=1e-08, weight_decay=0.0
    CHECK: adamw %v, %_, %_, %_, %_, %_, %_ {beta1=0.9, beta2=0.999, eps=1e-08, weight_decay=0.0)");
}

TEST(Optimizer, AParameterMayNotHaveTheNameOfAState) {
  for (const char* name : {"w.adamw.v", "optimizer.step"}) {
    std::string text = kText;
    text.replace(text.find("\"v\""), 3, StrCat("\"", name, "\""));
    text.replace(text.find("grad.v"), 6, StrCat("grad.", name));
    ExpectThrown(
        [&] {
          Graph graph = ParseAndVerify(text);
          AddOptimizer(graph, {.kind = "adamw"});
        },
        "E6102", StrCat("keeps a state '", name, "', and the model has a parameter of that name"));
  }
}

TEST(Optimizer, AParameterMayNotBeUpdatedByTheModel) {
  Graph g = ParseAndVerify(R"(graph @g(%x: f32[4]) -> (grad.w: %y) {
    %w = param "w" : f32[4]
    %y = mul %w, %x : f32[4]
    update "w" %y
  })");
  ExpectThrown([&] { AddOptimizer(g, {.kind = "sgd"}); }, "E6102",
               "the model itself updates parameter 'w'");
}

// One sum for those that are cut alike (w and b), one for the rest; each gradient counts once.
TEST(Optimizer, GradientNormSumsWhatIsCutAlikeFirst) {
  Check({.kind = "sgd"}, R"(
    CHECK: %0 = sum_squares %dw
    CHECK-NEXT: %1 = sum_squares %db
    CHECK-NEXT: %2 = add %0, %1
    CHECK-NEXT: %3 = sum_squares %dv
    CHECK-NEXT: %4 = add %3, %2
    CHECK-NEXT: %5 = sqrt %4
    CHECK-NOT: sum_squares)");
}

TEST(Optimizer, ClippingScalesByTheNorm) {
  Check({.kind = "sgd", .clip_norm = 2}, R"(
    CHECK: %5 = sqrt
    CHECK: %6 = constant {value=tensor<f32[]: 1>
    CHECK-NEXT: %7 = constant {value=tensor<f32[]: 1e-06>
    CHECK-NEXT: %8 = add %5, %7
    CHECK-NEXT: %9 = constant {value=tensor<f32[]: 2>
    CHECK-NEXT: %10 = div %9, %8
    CHECK-NEXT: %11 = min %10, %6
    CHECK-NEXT: %12 = sub %5, %5
    CHECK-NEXT: %13 = add %11, %12
    CHECK: sgd %w, %dw, %13, %_ {)");
}

// The norm of all is of the widest type, and each parameter is updated in its own.
TEST(Optimizer, ParametersOfSeveralTypes) {
  Graph graph = ParseAndVerify(R"(
graph @g(%dw: f32[4], %db: f64[6]) -> (grad.w: %dw, grad.b: %db) {
  %w = param "w" : f32[4]
  %b = param "b" : f64[6]
})");
  AddOptimizer(graph, {.kind = "sgd", .rate = {.lr = 0.5}, .clip_norm = 1});
  CheckGraph(graph, R"(
    CHECK: = sum_squares %dw
    CHECK-NEXT: = cast %_ {to="f64"
    CHECK: = sgd %w, %dw, %_, %_
    CHECK: = sgd %b, %db, %_, %_)");
}

// Of halves they are f32; those of a piece are the same piece of a tensor.
TEST(Optimizer, StatesOfHalvesAndOfPieces) {
  Graph graph = ParseAndVerify(R"(
graph @g(%dw: f32[4, 3]) -> (grad.w: %dw) {
  %w = param "w" {piece_dim=0, piece_of="all", piece_start=4, whole_size=8} : bf16[4, 3]
})");
  AddOptimizer(graph, {.kind = "adamw"});
  CheckGraph(graph, R"(
    CHECK: state "w.adamw.m" {dtype="f32", init=0.0, piece_dim=0, piece_of="all.adamw.m", piece_start=4, shape=[4, 3], whole_size=8
    CHECK: state "w.adamw.v" {dtype="f32", init=0.0, piece_dim=0, piece_of="all.adamw.v", piece_start=4, shape=[4, 3], whole_size=8)");
}

TEST(Optimizer, SgdWithoutMomentumHasNoState) {
  Check({.kind = "sgd", .rate = {.lr = 0.5}, .weight_decay = 0.25}, R"(
    CHECK-NOT: momentum"
    CHECK: %_ = sgd %w, %dw, %_, %_ {dampening=0.0, momentum=0.0, nesterov=false, weight_decay=0.25,
    CHECK-NEXT: update "w" %_
    CHECK-NEXT: sgd %b, %db, %_, %_ {dampening=0.0, momentum=0.0, nesterov=false, weight_decay=0.0)");
  Check({.kind = "sgd", .momentum = 0.5}, R"(
    CHECK: %_ = state "w.sgd.momentum" {dtype="f32", init=0.0, shape=[4, 6], phase="optimizer", site="w"} : f32[4, 6@tp]
    CHECK-NEXT: %_, %_ = sgd %w, %dw, %_, %_, %_, %_ {dampening=0.0, momentum=0.5
    CHECK-NEXT: update "w" %_
    CHECK-NEXT: update "w.sgd.momentum" %_)");
}

TEST(Optimizer, AScheduleIsAnOutput) {
  Check({.kind = "sgd", .rate = {.lr = 0.5, .warmup_steps = 4}}, R"(
    CHECK: grad_norm: %5, learning_rate: %17)
    CHECK: %10 = state "optimizer.step"
    CHECK: %12 = cast %10 {to="f32"
    CHECK: %14 = div %12, %13
    CHECK: %17 = mul %11, %16
    CHECK: sgd %w, %dw, %8, %17 {)");
}

TEST(Optimizer, NoneDoesNothing) {
  Check({.kind = "", .rate = {.lr = -1}}, "CHECK-NOT: optimizer\nCHECK-NOT: grad_norm");
}

TEST(Optimizer, RefusesImpossibleValues) {
  double nan = std::numeric_limits<double>::quiet_NaN();
  Refused({.kind = "adam"}, "--optimizer: unknown optimizer 'adam'; use adamw or sgd");
  Refused({.kind = "sgd", .rate = {.lr = -1}}, "learning rate -1 is not a number from 0 on");
  Refused({.kind = "adamw", .momentum = 0.9}, "--momentum: momentum is sgd's");
  Refused({.kind = "sgd", .momentum = 1}, "--momentum: 1 is not in [0, 1)");
  Refused({.kind = "adamw", .beta1 = 1}, "--betas: 1, 0.999 are not in [0, 1)");
  Refused({.kind = "adamw", .beta2 = -0.5}, "are not in [0, 1)");
  Refused({.kind = "adamw", .eps = -1}, "is not a number from 0 on");
  Refused({.kind = "sgd", .momentum = nan}, "is not a number from 0 on");
  Refused({.kind = "sgd", .weight_decay = -1}, "is not a number from 0 on");
  Refused({.kind = "sgd", .clip_norm = -1}, "is not a number from 0 on");
  Refused({.kind = "sgd", .loss_scale_window = 0},
          "--loss-scale-window: the number of steps, 0, is");
}

TEST(Optimizer, RefusesAGraphWithoutGradients) {
  ExpectThrown(
      [] {
        Graph graph = ParseAndVerify("graph @g(%x: f32[4]) -> (%x) {\n}");
        AddOptimizer(graph, {.kind = "sgd"});
      },
      "E6102", "there is no gradient to step along");
}

}  // namespace
}  // namespace shardc::testing
