#include "passes/propagate.h"

#include <gtest/gtest.h>

#include <string>

#include "ir/diagnostic.h"
#include "passes/provenance.h"
#include "tests/ir/cpu_time.h"
#include "tests/ir/thrown.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

// Columns, rows, their gradients: section 4 of the design, over dp as well.
TEST(Propagate, ColumnAndRowParallelMlp) {
  CheckPasses(R"(mesh [dp=2, tp=2]
  graph @g(%x: f32[8@dp, 6], %dy: f32[8, 6]) -> (%y, grad.w: %dw, grad.v: %dv, %dx) {
    %w = param "w" : f32[6, 12@tp]
    %v = param "v" : f32[12@tp, 6]
    %a = matmul %x, %w : f32[8, 12]
    %h = gelu %a {approximate="tanh"} : f32[8, 12]
    %y = matmul %h, %v : f32[8, 6]
    %dv = matmul_tn %h, %dy {batch=0} : f32[12, 6]
    %dh = matmul_nt %dy, %v : f32[8, 12]
    %da = gelu_grad %dh, %a {approximate="tanh"} : f32[8, 12]
    %dw = matmul_tn %x, %da {batch=0} : f32[6, 12]
    %dx = matmul_nt %da, %w : f32[8, 6]
  })",
              "propagate", R"(
    CHECK: %dy: f32[8, 6])
    CHECK: %a = matmul %x, %w : f32[8@dp, 12@tp]
    CHECK-NEXT: %h = gelu %a {approximate="tanh"} : f32[8@dp, 12@tp]
    CHECK-NEXT: %y = matmul %h, %v : f32[8@dp, 6]
    CHECK-NEXT: %dv = matmul_tn %h, %dy {batch=0} : f32[12@tp, 6]
    CHECK-NEXT: %dh = matmul_nt %dy, %v : f32[8@dp, 12@tp]
    CHECK-NEXT: %da = gelu_grad %dh, %a {approximate="tanh"} : f32[8@dp, 12@tp]
    CHECK-NEXT: %dw = matmul_tn %x, %da {batch=0} : f32[6, 12@tp]
    CHECK-NEXT: %dx = matmul_nt %da, %w : f32[8@dp, 6])");
}

TEST(Propagate, AConstraintThatCannotBe) {
  auto refused = [](const std::string& x, const std::string& whole, const std::string& cut,
                    const std::string& what) {
    ExpectThrown(
        [&] {
          Graph graph = ParseAndVerify("mesh [dp=2, tp=2]\ngraph @g(%x: " + x + ") -> (%y) {\n" +
                                       "  %0 = exp %x {site=\"h.0\"} : " + whole + "\n" +
                                       "  %y = sharding_constraint %0 {axes=[\"tp\"], why=[\"spec "
                                       "s:1:1\"], site=\"h.0\"} : " +
                                       cut + "\n}");
          PropagateShardings(graph);
        },
        "E2106", what);
  };
  refused("f32[2@dp, 4]", "f32[2, 4]", "f32[2@tp, 4]",
          "dim 0 of f32[2@dp, 4] at h.0 cannot be cut over tp too: dp and tp make 4 parts, and it "
          "has 2 elements");
  refused("f32[18@dp%6]", "f32[18]", "f32[18@tp]",
          "cannot be cut over tp too: dp and tp make 4 parts, and it is cut between blocks of 6 "
          "(heads, say), of which it has 3");
}

// 6 heads over 2 x 4 ranks. By name it is asked for, and refused; of a role others may be cut.
TEST(Propagate, AConstraintThatReadersDoNotTake) {
  auto graph = [](const std::string& role) {
    return ParseAndVerify(R"(mesh [tp=2, cp=4]
  graph @g(%x: f32[2, 8@cp, 6], %k: f32[2, 8, 6, 2], %v: f32[2, 8, 6, 2]) -> (%o) {
    %w = param "q" : f32[6, 12@tp]
    %0 = matmul %x, %w : f32[2, 8, 12]
    %1 = sharding_constraint %0 {axes=["cp"], )" +
                          role +
                          R"(why=["spec s:1:1"], site="q"} : f32[2, 8, 12@cp%4]
    %2 = reshape %1 {shape=[2, 8, 6, 2]} : f32[2, 8, 6, 2]
    %o, %lse = attention %2, %k, %v {causal=true, layout="bshd", scale=0.5} : f32[2, 8, 6, 2], f32[2, 6, 8]
  })");
  };
  Graph refused = graph("");
  ExpectThrown([&] { PropagateShardings(refused); }, "E2106",
               "cannot be cut over cp too: tp and cp make 8 parts, and what reads it does not take "
               "them; cp=3 would do");
  Graph dropped = graph("role=\"QKV\", ");
  PropagateShardings(dropped);
  CheckGraph(dropped, R"(
    CHECK: sharding_constraint %_ {axes=[], role="QKV", why=["spec s:1:1"], site="q"} : f32[2, 8@cp, 12@tp])");
  EXPECT_EQ(dropped.notes, Strings{"the result of matmul is not cut over cp: tp and cp make 8 "
                                   "parts, and what reads it does not take them; cp=3 would do"});
}

// A weight behind the value would like it cut over tp, and then nothing is left to cut over cp.
TEST(Propagate, AConstraintComesBeforeWhatReadersLike) {
  CheckPasses(R"(mesh [tp=2, cp=2]
  graph @g(%x: f32[6, 2]) -> (%y) {
    %w = param "w" : f32[2@tp, 3]
    %0 = exp %x : f32[6, 2]
    %1 = sharding_constraint %0 {axes=["cp"], why=["spec s:1:1"], site="h.0"} : f32[6, 2@cp]
    %y = matmul %1, %w : f32[6, 3]
  })",
              "propagate", R"(
    CHECK: %1 = sharding_constraint %0 {axes=["cp"], why=["spec s:1:1"], site="h.0"} : f32[6, 2@cp])");
}

// The same where another reader cuts the weight that the value is made with.
TEST(Propagate, AConstraintComesBeforeWhatOtherReadersLike) {
  CheckPasses(R"(mesh [tp=2, cp=2]
  graph @g(%x: f32[6, 2]) -> (%1, %y) {
    %u = param "u" : f32[2, 2]
    %v = param "v" : f32[2, 2@tp]
    %w = exp %u : f32[2, 2]
    %0 = matmul %x, %w : f32[6, 2]
    %1 = sharding_constraint %0 {axes=["cp"], why=["spec s:1:1"], site="h.0"} : f32[6, 2@cp]
    %y = add %w, %v : f32[2, 2]
  })",
              "propagate", R"(
    CHECK: %1 = sharding_constraint %0 {axes=["cp"], why=["spec s:1:1"], site="h.0"} : f32[6, 2@cp])");
}

TEST(Propagate, AConstraintOverAnUnknownAxis) {
  ExpectThrown(
      [] {
        Graph graph = ParseAndVerify(R"(mesh [tp=2]
          graph @g(%x: f32[2, 4]) -> (%y) {
            %y = sharding_constraint %x {axes=["zz"]} : f32[2, 4]
          })");
        PropagateShardings(graph);
      },
      "E2104", "axis 'zz' is not in the mesh tp=2");
}

// A row-cut weight asks what it is contracted with to be cut, back to where that is made.
TEST(Propagate, Backward) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[8, 12]) -> (%y) {
    %v = param "v" : f32[12@tp, 6]
    %0 = exp %x : f32[8, 12]
    %1 = neg %0 : f32[8, 12]
    %y = matmul %1, %v : f32[8, 6]
  })",
              "propagate", R"(
    CHECK: %x: f32[8, 12])
    CHECK: exp %x : f32[8, 12@tp]
    CHECK-NEXT: neg %0 : f32[8, 12@tp]
    CHECK-NEXT: matmul %1, %v : f32[8, 6])");
}

TEST(Propagate, ThroughReshapesTransposesAndSplits) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[2, 3, 8]) -> (%q, %k) {
    %w = param "w" : f32[8, 24@tp/[16,8]]
    %0 = matmul %x, %w : f32[2, 3, 24]
    %1, %2 = split %0 {axis=2, sizes=[16, 8]} : f32[2, 3, 16], f32[2, 3, 8]
    %3 = reshape %1 {shape=[2, 3, 4, 4]} : f32[2, 3, 4, 4]
    %q = transpose %3 {perm=[0, 2, 1, 3]} : f32[2, 4, 3, 4]
    %k = reshape %2 {shape=[6, 2, 4]} : f32[6, 2, 4]
  })",
              "propagate", R"(
    CHECK: matmul %x, %w : f32[2, 3, 24@tp/[16,8]]
    CHECK-NEXT: : f32[2, 3, 16@tp], f32[2, 3, 8@tp]
    CHECK-NEXT: : f32[2, 3, 4@tp, 4]
    CHECK-NEXT: : f32[2, 4@tp, 3, 4]
    CHECK-NEXT: : f32[6, 2@tp, 4])");
}

// A mesh axis cuts one dim; the weight's word goes before that of other operands.
TEST(Propagate, WeightsGoFirst) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[8@tp, 6]) -> (%y) {
    %w = param "w" : f32[6, 12@tp]
    %y = matmul %x, %w : f32[8, 12]
  })",
              "propagate", "CHECK: matmul %x, %w : f32[8, 12@tp]");
}

// What is given stays: params, inputs and what a reshard pins.
// What b cuts of y it cuts behind a. Of x, which a does not cut along the rows, those would be
// others.
TEST(Propagate, AMinorAxisDoesNotCutWithoutItsMajor) {
  CheckPasses(R"(mesh [a=2, b=2]
  graph @g(%dy: f32[8, 6]) -> (%z) {
    %w = param "w" : f32[6@a, 4]
    %x = exp %dy : f32[8, 6]
    %y = matmul %x, %w : f32[8, 4]
    %z = sharding_constraint %y {axes=["a", "b"], why=["spec s:1:1"]} : f32[8@(a,b), 4]
  })",
              "propagate", R"(
    CHECK: %x = exp %dy : f32[8, 6@a]
    CHECK-NEXT: %y = matmul %x, %w : f32[8@(a,b), 4])");
}

TEST(Propagate, PinnedValuesStay) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[6, 8]) -> (%z) {
    %w = param "w" : f32[8, 12@tp]
    %b = param "b" : f32[12]
    %0 = matmul %x, %w : f32[6, 12]
    %1 = add %0, %b : f32[6, 12]
    %2 = reshard %1 : f32[6, 12]
    %z = neg %2 : f32[6, 12]
  })",
              "propagate", R"(
    CHECK: param "b" : f32[12]
    CHECK-NEXT: %0 = matmul %x, %w : f32[6, 12@tp]
    CHECK-NEXT: %1 = add %0, %b : f32[6, 12@tp]
    CHECK-NEXT: %2 = reshard %1 : f32[6, 12]
    CHECK-NEXT: neg %2 : f32[6, 12])");
}

// h may be cut for the row-cut weight, but the slice needs it whole: a cut costs a gather, and
// taking the part of a whole value nothing.
TEST(Propagate, ValuesThatAreNeededWholeStayWhole) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[8, 12]) -> (%y, %s) {
    %v = param "v" : f32[12@tp, 6]
    %h = exp %x : f32[8, 12]
    %y = matmul %h, %v : f32[8, 6]
    %s = slice %h {limits=[8, 3], starts=[0, 0], steps=[1, 1]} : f32[8, 3]
  })",
              "propagate", "CHECK: %h = exp %x : f32[8, 12]");
}

// a is made cut by its weight. The gather comes before gelu, not after it.
TEST(Propagate, AGatherThatMustBeComesEarly) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[8, 6]) -> (%s) {
    %w = param "w" : f32[6, 12@tp]
    %a = matmul %x, %w : f32[8, 12]
    %h = gelu %a {approximate="tanh"} : f32[8, 12]
    %s = slice %h {limits=[8, 3], starts=[0, 0], steps=[1, 1]} : f32[8, 3]
  })",
              "propagate", R"(
    CHECK: %a = matmul %x, %w : f32[8, 12@tp]
    CHECK-NEXT: %h = gelu %a {approximate="tanh"} : f32[8, 12])");
}

// New values and gradients are cut like their parameter, also where nothing else says so.
TEST(Propagate, GradientsAndUpdatesFollowTheirParameter) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[6, 8], %dy: f32[6, 12]) -> (grad.w: %dw) {
    %w = param "w" : f32[8, 12@tp]
    %dw = matmul_tn %x, %dy {batch=0} : f32[8, 12]
    %0 = neg %dw : f32[8, 12]
    update "w" %0
  })",
              "propagate", R"(
    CHECK: matmul_tn %x, %dy {batch=0} : f32[8, 12@tp]
    CHECK-NEXT: neg %dw : f32[8, 12@tp])");
}

// What a state that is whole becomes is not cut by choice, whatever it is made of.
TEST(Propagate, UpdatesOfAWholeStateAreWhole) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%x: f32[6, 8@tp]) -> (%y) {
    %s = state "s" {dtype="f32", shape=[8], init=0} : f32[8]
    %0 = reduce_sum %x {axes=[0], keepdims=false} : f32[8]
    %1 = add %s, %0 : f32[8]
    %y = neg %0 : f32[8]
    update "s" %1
  })",
              "propagate", R"(
    CHECK: reduce_sum %x {axes=[0], keepdims=false} : f32[8@tp]
    CHECK-NEXT: add %s, %0 : f32[8]
    CHECK-NEXT: neg %0 : f32[8@tp])");
}

// lm_head and wte: one sharding; the logits are cut along the vocabulary.
TEST(Propagate, TiedWeights) {
  CheckPasses(R"(mesh [tp=2]
  graph @g(%ids: i64[2, 3]) -> (%y) {
    %wte = param "wte" : f32[8@tp, 4]
    %0 = embedding %wte, %ids : f32[2, 3, 4]
    %y = matmul_nt %0, %wte : f32[2, 3, 8]
  })",
              "propagate", R"(
    CHECK: embedding %wte, %ids : f32[2, 3, 4]
    CHECK-NEXT: matmul_nt %0, %wte : f32[2, 3, 8@tp])");
}

// A dim of which some rank would hold nothing is not cut.
TEST(Propagate, DimsTooSmallStayWhole) {
  CheckPasses(R"(mesh [tp=4]
  graph @g(%x: f32[8@tp, 6]) -> (%y) {
    %0 = reshape %x {shape=[2, 4, 6]} : f32[2, 4, 6]
    %y = neg %0 : f32[2, 4, 6]
  })",
              "propagate", "CHECK: reshape %x {shape=[2, 4, 6]} : f32[2, 4, 6]");
}

// 3 heads for 4 ranks, as infer_layouts deals them: the last has none of what is made of them,
// either.
TEST(Propagate, FewerHeadsThanRanksOfWhatIsMadeOfThem) {
  CheckPasses(R"(mesh [tp=4]
  graph @g(%x: f32[2, 5, 12]) -> (%y) {
    %w = param "w" : f32[12, 12@tp%4]
    %0 = matmul %x, %w : f32[2, 5, 12]
    %1 = reshape %0 {shape=[2, 5, 3, 1, 4]} : f32[2, 5, 3, 1, 4]
    %2 = broadcast_to %1 {shape=[2, 5, 3, 2, 4]} : f32[2, 5, 3, 2, 4]
    %y = reshape %2 {shape=[2, 5, 6, 4]} : f32[2, 5, 6, 4]
  })",
              "propagate", R"(
    CHECK: %0 = matmul %x, %w : f32[2, 5, 12@tp%4]
    CHECK: f32[2, 5, 3@tp, 1, 4]
    CHECK: f32[2, 5, 3@tp, 2, 4]
    CHECK: f32[2, 5, 6@tp%2, 4])");
}

TEST(Propagate, KeepsProvenance) {
  Graph graph = ParseAndVerify(R"(mesh [tp=2]
  graph @g(%x: f32[8, 6]) -> (%y) {
    %w = param "w" : f32[6, 12@tp]
    %0 = matmul %x, %w {site="fc"} : f32[8, 12]
    %1 = neg %0 : f32[8, 12]
    %y = exp %1 {phase="backward"} : f32[8, 12]
  })");
  SetProvenance(graph.Params()[0]->result(), 0, AddProvenance(graph, -1, "spec s:1:1"));
  PropagateShardings(graph);
  EXPECT_EQ(ProvenanceChain(graph, ProvenanceOf(graph.FindOutput("y"), 0)),
            (std::vector<std::string>{"spec s:1:1", "through matmul at fc", "through neg",
                                      "through exp (backward)"}));
  EXPECT_EQ(ProvenanceOf(graph.FindInput("x"), 0), -1);
}

TEST(Provenance, LongChainsAreShortenedInTheMiddle) {
  Graph graph;
  int step = -1;
  for (int i = 0; i < 7; ++i) step = AddProvenance(graph, step, std::to_string(i));
  EXPECT_EQ(ProvenanceChain(graph, step).size(), 7u);
  for (int i = 7; i < 10; ++i) step = AddProvenance(graph, step, std::to_string(i));
  EXPECT_EQ(ProvenanceChain(graph, step),
            (std::vector<std::string>{"0", "1", "2", "... 4 more ops ...", "7", "8", "9"}));
}

// Seven blocks of 3 over a and b are not what b cuts of each 7 that a has.
TEST(Propagate, BlocksAcrossDimsAreNoCutOfThese) {
  CheckPasses(R"(mesh [a=3, b=2]
  graph @g(%x: f32[7@(a,b), 3]) -> (%y) {
    %0 = reshape %x {shape=[21]} : f32[21]
    %1 = relu %0 : f32[21]
    %2 = reshape %1 {shape=[3, 7]} : f32[3, 7]
    %y = relu %2 : f32[3, 7]
  })",
              "propagate,insert_reshards", R"(
    CHECK: %1 = relu %0 : f32[21@(a,b)%3]
    CHECK-NEXT: %2 = reshard %1
    CHECK: %y = relu %3 : f32[3, 7])");
}

// What joins very many reads each as often as it is there.
TEST(Propagate, AValueThatIsJoinedVeryManyTimes) {
  constexpr int kTimes = 1500;
  std::string joined = "%y";
  for (int i = 1; i < kTimes; ++i) joined += ", %y";
  Graph graph = ParseAndVerify(StrCat(R"(mesh [tp=2]
  graph @g(%x: f32[8, 4]) -> (%c) {
    %w = param "w" : f32[4@tp]
    %y = mul %x, %w : f32[8, 4]
    %c = concat )",
                                      joined, " {axis=0} : f32[", 8 * kTimes, ", 4]\n}"));
  const double start = CpuSeconds();
  RunPasses(graph, "split_axes,infer_layouts,propagate");
  EXPECT_LT(CpuSeconds() - start, 5);
  EXPECT_EQ(TypeToString(graph.outputs[0].value->type, graph.mesh), "f32[12000, 4@tp]");
}

}  // namespace
}  // namespace shardc::testing
