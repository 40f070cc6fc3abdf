#include "specs/annotations.h"

#include <gmock/gmock.h>

#include "ir/diagnostic.h"
#include "tests/ir/thrown.h"

namespace shardc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TensorPlacement Placed(const std::string& tensor, std::vector<TensorPlacement::Dim> dims,
                       std::vector<std::vector<int64_t>> devices, bool made = false) {
  return {tensor, "the node of " + tensor, made, std::move(dims), std::move(devices)};
}
DeviceConfiguration Devices(int64_t n, std::vector<TensorPlacement> tensors) {
  return {"test", n, std::move(tensors), false};
}

// "w: 0 over dp, 1 over tp".
std::vector<std::string> Rules(const DeviceConfiguration& c, const std::string& mesh = "") {
  std::vector<std::string> out;
  for (const SpecRule& r : SpecOfAnnotations(c, "m.onnx", Mesh::Parse(mesh)).tensors) {
    std::string text = r.match + ":";
    for (const CutDim& cut : r.cuts) {
      text += StrCat(" ", cut.dim, " over ", cut.axis);
      if (cut.granule > 1) text += StrCat(" %", cut.granule);
      for (int64_t s : cut.segments) text += StrCat(" /", s);
    }
    out.push_back(std::move(text));
  }
  return out;
}
std::string MeshOf(const DeviceConfiguration& c) {
  return Mesh(SpecOfAnnotations(c, "m.onnx", {}).mesh).ToString();
}
Diagnostic Refusal(const DeviceConfiguration& c, const std::string& mesh = "") {
  Diagnostic d = testing::Thrown([&] { SpecOfAnnotations(c, "m.onnx", Mesh::Parse(mesh)); });
  EXPECT_EQ(d.id(), "E2130");
  return d;
}

TEST(Annotations, AMeshIsFoundThatTheShardsFollow) {
  EXPECT_EQ(MeshOf(Devices(1, {})), "");
  EXPECT_EQ(MeshOf(Devices(2, {})), "d0=2");
  auto outer = Placed("x", {{0, {{0, 2}}}}, {{0, 1, 2, 3}, {4, 5, 6, 7}});
  auto inner = Placed("w", {{1, {{0, 2}}}}, {{0, 2, 4, 6}, {1, 3, 5, 7}});
  EXPECT_EQ(MeshOf(Devices(8, {outer})), "d0=2,d1=4");
  auto both = Devices(8, {outer, inner});
  EXPECT_EQ(MeshOf(both), "d0=2,d1=2,d2=2");
  EXPECT_THAT(Rules(both), ElementsAre("x: 0 over d0", "w: 1 over d2"));
  // One dim over two axes: 4 shards, the second digit and the third.
  auto four = Placed("v", {{0, {{0, 4}}}}, {{0, 4}, {1, 5}, {2, 6}, {3, 7}});
  EXPECT_THAT(Rules(Devices(8, {outer, inner, four})),
              ElementsAre("x: 0 over d0", "w: 1 over d2", "v: 0 over d1 0 over d2"));
}

TEST(Annotations, AMeshThatIsGivenNamesTheAxes) {
  auto c = Devices(4, {Placed("x", {{0, {{0, 2}}}}, {{0, 1}, {2, 3}}),
                       Placed("w", {{-1, {{0, 2}}}}, {{0, 2}, {1, 3}}),
                       Placed("y", {{0, {{0, 2}}}, {1, {{0, 2}}}}, {{0}, {1}, {2}, {3}})});
  EXPECT_THAT(Rules(c, "dp=2,tp=2"),
              ElementsAre("x: 0 over dp", "w: -1 over tp", "y: 0 over dp 1 over tp"));
  // Shards against the order of the devices lie along no digit, but along these axes.
  auto turned = Devices(4, {Placed("v", {{0, {{0, 4}}}}, {{0}, {2}, {1}, {3}})});
  EXPECT_THAT(Rules(turned, "dp=2,tp=2"), ElementsAre("v: 0 over tp 0 over dp"));
  EXPECT_THAT(Refusal(turned).message(), HasSubstr("do not lie on the devices as along an axis"));
  EXPECT_THAT(Refusal(c, "tp=4").message(), HasSubstr("do not lie along axes of the mesh tp=4"));
  EXPECT_THAT(Refusal(c, "tp=2").message(), HasSubstr("has 2 ranks"));
}

TEST(Annotations, BlocksOfBlocksAreSegmentsOrGranules) {
  std::vector<std::vector<int64_t>> two = {{0}, {1}};
  auto c = Devices(2, {Placed("segments", {{1, {{3, 1}, {8, 2}}}}, two),
                       Placed("granules", {{0, {{5, 2}, {4, 1}}}}, two),
                       Placed("both", {{0, {{2, 1}, {5, 2}, {4, 1}}}}, two)});
  EXPECT_THAT(Rules(c), ElementsAre("segments: 1 over d0 /8 /8 /8", "granules: 0 over d0 %4",
                                    "both: 0 over d0 %4 /20 /20"));
  auto levels = Devices(4, {Placed("w", {{0, {{4, 2}, {4, 2}}}}, {{0}, {1}, {2}, {3}})});
  EXPECT_THAT(Refusal(levels).message(), HasSubstr("cut at two levels"));
  auto huge = Devices(2, {Placed("w", {{0, {{int64_t{1} << 40, 1}, {2, 2}}}}, two)});
  EXPECT_THAT(Refusal(huge).message(), HasSubstr("is too large"));
  // A size that is not given hides none of the others.
  constexpr int64_t k = int64_t{1} << 40;
  for (const std::vector<TensorPlacement::Factor>& factors :
       {std::vector<TensorPlacement::Factor>{{0, 1}, {k, 1}, {1 << 23, 1}, {1, 2}},
        {{0, 2}, {k, 1}, {k, 1}}}) {
    const auto hidden = Devices(2, {Placed("w", {{0, factors}}, two)});
    EXPECT_THAT(Refusal(hidden).message(), HasSubstr("is too large"));
  }
  auto many = Devices(2, {Placed("w", {{0, {{int64_t{1} << 20, 1}, {2, 2}}}}, two)});
  EXPECT_THAT(Refusal(many).message(), HasSubstr("is cut in 1048576 parts"));
  auto unknown = Devices(2, {Placed("w", {{0, {{2, 1}, {0, 2}}}}, two)});
  EXPECT_THAT(Refusal(unknown).message(), HasSubstr("whose size is not given"));
}

TEST(Annotations, ATensorMayLieElsewhereWhereItIsRead) {
  auto made = Placed("x", {{0, {{0, 2}}}}, {{0}, {1}}, true), used = Placed("x", {}, {{0, 1}});
  EXPECT_THAT(Rules(Devices(2, {made, used, used})), ElementsAre("x: 0 over d0", "x:"));
  EXPECT_THAT(Rules(Devices(2, {used, used})), ElementsAre("x:"));
  auto other = Placed("x", {{1, {{0, 2}}}}, {{0}, {1}});
  EXPECT_THAT(Refusal(Devices(2, {made, used, other})).message(), HasSubstr("elsewhere than"));
}

TEST(Annotations, ATensorOnSomeDevicesIsRefused) {
  auto some = Devices(4, {Placed("w", {{0, {{0, 2}}}}, {{0}, {1}})});
  EXPECT_THAT(Refusal(some).message(), HasSubstr("is on 2 of 4 devices"));
  EXPECT_THAT(Refusal(some, "tp=4").message(), HasSubstr("is on 2 of 4 devices"));
}

TEST(Annotations, TheConfigurationIsChosenByName) {
  std::vector<DeviceConfiguration> have = {{"pair", 2, {}, false}, {"grid", 4, {}, false}};
  EXPECT_EQ(ChooseConfiguration(have, "grid", "m.onnx").num_devices, 4);
  EXPECT_EQ(ChooseConfiguration({have.data(), have.data() + 1}, "", "m.onnx").name, "pair");
  auto refused = [](const std::vector<DeviceConfiguration>& have, const std::string& name,
                    std::string_view text) {
    testing::ExpectThrown([&] { ChooseConfiguration(have, name, "m.onnx"); }, "E2131", text);
  };
  refused({}, "", "has no annotations");
  refused(have, "", "one of: pair, grid");
  refused(have, "grd", "did you mean 'grid'");
}

}  // namespace
}  // namespace shardc
