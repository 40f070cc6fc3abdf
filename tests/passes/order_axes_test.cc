#include "passes/order_axes.h"

#include <gtest/gtest.h>

#include "passes/provenance.h"
#include "tests/ir/thrown.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

std::string OrderOf(const std::string& graph) {
  Graph g = ParseAndVerify(graph);
  OrderAxes(g);
  return g.mesh.ToString();
}

TEST(OrderAxes, MeshOrderWhereNothingElseIsSaid) {
  EXPECT_EQ(OrderOf("mesh [a=2, b=3, c=5]\ngraph @g(%x: f32[30@(a,c), 3@b]) -> (%x) {\n}"),
            "a=2,b=3,c=5");
}

TEST(OrderAxes, AsDimsAreCut) {
  EXPECT_EQ(OrderOf("mesh [a=2, b=3, c=5]\ngraph @g(%x: f32[30@(c,a), 3]) -> (%x) {\n}"),
            "b=3,c=5,a=2");
}

// Heads are cut over tp by the weights and over cp besides, wherever cp is in the mesh.
TEST(OrderAxes, WeightsBeforeWhatIsMadeOfThem) {
  Graph graph = ParseAndVerify(R"(mesh [cp=2, tp=3]
  graph @g(%x: f32[4@cp, 6]) -> (%z) {
    %w = param "w" : f32[6, 12@tp]
    %y = matmul %x, %w : f32[4, 12]
    %z = sharding_constraint %y {axes=["cp"], why=["spec s:1:1"]} : f32[4, 12@cp]
  })");
  const Mesh mesh = graph.mesh;
  Value* w = graph.ops().front()->result();
  SetProvenance(w, 1, AddProvenance(graph, -1, "of tp"));
  OrderAxes(graph);
  CheckGraph(graph, R"(
    CHECK: mesh [tp=3, cp=2]
    CHECK: f32[6, 12@tp]
    CHECK: f32[4, 12@cp])");
  EXPECT_EQ(ProvenanceChain(graph, ProvenanceOf(w, 0)), Strings{"of tp"});
  RestoreAxes(graph, mesh);
  CheckGraph(graph, R"(
    CHECK: mesh [cp=2, tp=3]
    CHECK: f32[6, 12@tp]
    CHECK: f32[4, 12@cp])");
  EXPECT_EQ(ProvenanceChain(graph, ProvenanceOf(w, 1)), Strings{"of tp"});
}

TEST(OrderAxes, ASplitAxisGoesWhereItWas) {
  Graph graph = ParseAndVerify(
      "mesh [tp=3, cp.0=2, cp.1=2]\ngraph @g(%x: f32[12@(tp,cp.0,cp.1)]) -> (%x) {\n}");
  RestoreAxes(graph, Mesh::Parse("cp=4,tp=3"));
  CheckGraph(graph, "CHECK: mesh [cp.0=2, cp.1=2, tp=3]\nCHECK: f32[12@(tp,cp.0,cp.1)]");
}

TEST(OrderAxes, RefusesTwoOrders) {
  ExpectThrown(
      [] { OrderOf("mesh [a=2, b=2]\ngraph @g(%x: f32[8@(b,a)], %y: f32[8@(a,b)]) -> (%x) {\n}"); },
      "E2105", "is cut over a before b, and another dim the other way round");
}

}  // namespace
}  // namespace shardc::testing
