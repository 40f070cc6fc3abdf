#include "passes/numbered_modules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shardc::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

using Modules = std::vector<std::string>;

// Where they begin and end.
std::vector<std::pair<size_t, size_t>> Stretches(
    const Modules& modules,
    const std::function<bool(size_t, size_t)>& fits = [](size_t, size_t) { return true; }) {
  std::vector<std::pair<size_t, size_t>> stretches;
  for (const auto& s : NumberedStretches(modules, fits)) stretches.emplace_back(s.from, s.to);
  return stretches;
}

TEST(NumberedModules, MembersOfAList) {
  EXPECT_THAT(Stretches({"wte", "h.0.attn", "h.0.mlp", "h.1.attn", "h.1.mlp", "norm"}),
              ElementsAre(Pair(1, 3), Pair(3, 5)));
  EXPECT_THAT(Stretches({"block_1.attn", "block_1", "block_2"}),
              ElementsAre(Pair(0, 2), Pair(2, 3)));
  EXPECT_THAT(Stretches({"", "h.0", "conv1d", "h.10"}), ElementsAre(Pair(1, 2), Pair(3, 4)));
}

// An inner list is of the member, not of the model.
TEST(NumberedModules, TheOutermost) {
  EXPECT_THAT(Stretches({"block.0.layer.0", "block.0.layer.1", "block.1.layer.0"}),
              ElementsAre(Pair(0, 2), Pair(2, 3)));
}

TEST(NumberedModules, NoneOfOne) {
  EXPECT_THAT(Stretches({"h.0.attn", "h.0.mlp", "block.1"}), IsEmpty());
  EXPECT_THAT(Stretches({"model.0.h.0", "model.0.h.1"}), ElementsAre(Pair(0, 1), Pair(1, 2)));
}

// [embedding, [block, block], head]; and stages, of which the first ends with another width.
TEST(NumberedModules, InsideOfWhatDoesNotFit) {
  auto one_step = [](size_t from, size_t to) { return to - from == 1; };
  EXPECT_THAT(
      Stretches({"stages.0.blocks.0", "stages.0.blocks.1", "stages.0.down", "stages.1.blocks.0"},
                one_step),
      ElementsAre(Pair(0, 1), Pair(1, 2)));
}

}  // namespace
}  // namespace shardc::testing
