#include "passes/set_mesh.h"

#include <gtest/gtest.h>

#include "tests/ir/thrown.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

Graph On(const std::string& mesh, const char* type) {
  Graph graph = ParseAndVerify(StrCat("mesh [a=2, b=3]\ngraph @g(%x: ", type, ") -> (%x) {\n}"));
  SetMesh(graph, Mesh::Parse(mesh));
  return graph;
}

TEST(SetMesh, AxesGoByTheirNames) {
  CheckGraph(On("c=2,b=2,a=5", "f32[12@b, 10@a]"), "CHECK: f32[12@b, 10@a]");
  CheckGraph(On("b=1,a=2", "f32[12@b, 10@a]"), "CHECK: f32[12, 10@a]");
  CheckGraph(On("b=2,a=2", "f32[12@b] partial(a)"), "CHECK: f32[12@b] partial(a)");
  CheckGraph(On("b=3,a=2", "f32[12@(a,b)]"), "CHECK: f32[12@(a,b)]");
}

TEST(SetMesh, LayoutsAreDescribedInOneWay) {
  CheckGraph(On("a=2,b=3", "f32[12@a%3]"), "CHECK: f32[12@a]");
  CheckGraph(On("a=5,b=3", "f32[12@a%3]"), "CHECK: f32[12@a%3]");
}

TEST(SetMesh, Refuses) {
  auto refused = [](const char* mesh, const char* id, const char* what) {
    ExpectThrown([&] { On(mesh, "f32[12@(a,b), 4]"); }, id, what);
  };
  refused("a=2", "E2104", "axis 'b' of f32[12@(a,b), 4] is not in the mesh a=2");
}

TEST(SetMesh, RefusesAnotherNumberOfStages) {
  for (const char* mesh : {"a=2", "pp=3"}) {
    Graph graph = ParseAndVerify("mesh [pp=2]\npipeline pp\ngraph @g(%x: f32[2]) -> (%x) {\n}");
    ExpectThrown([&] { SetMesh(graph, Mesh::Parse(mesh)); }, "E2104",
                 "2 stages over 'pp', and the mesh is " + std::string(mesh));
  }
}

}  // namespace
}  // namespace shardc::testing
