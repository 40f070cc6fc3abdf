#include "passes/note_whole.h"

#include <gtest/gtest.h>

#include "ir/text.h"

namespace shardc::testing {
namespace {

Graph WithMixer(const std::string& x, const std::string& mixer) {
  return ParseGraph(R"(mesh [dp=2, tp=2]
  graph @g(%x: f32[8)" + x +
                        R"(, 8]) -> (%y) {
    %n = param "norm" : f32[8]
    %p = param "positions" {role="POSITION_EMBEDDING"} : f32[8, 8]
    %w = param "up" {role="MLP_UP"} : f32[8, 32@tp]
    %m = param "mixer.in" )" +
                        mixer + R"(
    %0 = mul %x, %n : f32[8, 8]
    %1 = add %0, %p : f32[8, 8]
    %2 = matmul %1, %w : f32[8, 32]
    %3 = matmul %1, %m : f32[8, 32]
    %y = mul %2, %3 : f32[8, 32]
  })",
                    "test");
}

TEST(NoteWhole, AMatrixThatNoRuleMeans) {
  Graph graph = WithMixer("@dp", ": f32[8, 32]");
  NoteWhole(graph);
  EXPECT_EQ(graph.notes, Strings{"no role is known of 'mixer.in', 43% of the weights: it is whole "
                                 "on each rank of tp (a rule by name can cut it)"});
}

TEST(NoteWhole, NothingToSay) {
  for (const auto& [x, mixer] : {std::pair("@dp", ": f32[8, 32@tp]"),
                                 {"@dp", "{whole=true} : f32[8, 32]"},
                                 {"@dp", "{role=\"MLP_GATE\"} : f32[8, 32]"},
                                 // Its ranks have the same weights.
                                 {"@tp", ": f32[8, 32]"}}) {
    Graph graph = WithMixer(x, mixer);
    NoteWhole(graph);
    EXPECT_TRUE(graph.notes.empty()) << x << " " << mixer;
  }
}

// Weights without elements are no part that counts, even of no others.
TEST(NoteWhole, WeightsWithoutElements) {
  Graph graph = ParseGraph(R"(mesh [tp=2]
  graph @g(%x: f32[8]) -> (%y) {
    %a = param "a" : f32[8@tp, 0]
    %b = param "b" : f32[0, 3, 3]
    %y = exp %x : f32[8]
  })",
                           "test");
  NoteWhole(graph);
  EXPECT_TRUE(graph.notes.empty());
}

}  // namespace
}  // namespace shardc::testing
