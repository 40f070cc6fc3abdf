// Annotations for several devices: what the onnx package wrote (tests/data/annotated), and what we
// write.
#include "frontend/annotations.h"

#include <algorithm>

#include "ir/text.h"
#include "tests/frontend/import_testing.h"
#include "tests/ir/thrown.h"

namespace shardc::import_testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Devices = std::vector<std::vector<int64_t>>;

const std::string kAnnotated =
    std::string(SHARDC_SOURCE_DIR) + "/tests/data/annotated/annotated.onnx";

TensorPlacement Of(const DeviceConfiguration& c, const std::string& tensor) {
  for (const TensorPlacement& p : c.tensors) {
    if (p.tensor == tensor) return p;
  }
  throw InternalError(tensor);
}

class Annotations : public ImportTest {
 protected:
  // The diagnostic of reading a copy of the model in which one placement is like this.
  Diagnostic Reading(const TensorPlacement& p, int64_t num_devices = 2) const {
    DeviceConfiguration c{"pair", num_devices, {p}, false};
    WriteAnnotated(kAnnotated, c, Path());
    return testing::Thrown([&] { ReadAnnotations(Path()); });
  }
};

TEST_F(Annotations, WhatTheOnnxPackageWroteIsRead) {
  auto found = ReadAnnotations(kAnnotated);
  ASSERT_EQ(found.size(), 2u);
  const DeviceConfiguration &pair = found[0], &grid = found[1];
  EXPECT_EQ(pair.name, "pair");
  EXPECT_EQ(pair.num_devices, 2);
  EXPECT_EQ(grid.name, "grid");
  EXPECT_EQ(grid.num_devices, 4);
  EXPECT_FALSE(pair.has_stages);

  const TensorPlacement w1 = Of(pair, "w1");
  EXPECT_EQ(w1.node, "up");
  EXPECT_FALSE(w1.made);
  EXPECT_THAT(w1.dims, ElementsAre(TensorPlacement::Dim{1, {{32, 2}}}));
  EXPECT_EQ(w1.devices, (Devices{{0}, {1}}));
  EXPECT_THAT(Of(pair, "wq").dims, ElementsAre(TensorPlacement::Dim{1, {{3, 1}, {8, 2}}}));
  const TensorPlacement m = Of(pair, "m");
  EXPECT_TRUE(m.made);
  EXPECT_THAT(m.dims, IsEmpty());
  EXPECT_EQ(m.devices, (Devices{{0, 1}}));
  EXPECT_EQ(Of(grid, "w2").devices, (Devices{{0, 2}, {1, 3}}));
  EXPECT_EQ(Of(grid, "y").num_shards(), 4);
}

TEST_F(Annotations, WhatIsWrittenIsReadAgain) {
  auto before = ReadAnnotations(kAnnotated);
  DeviceConfiguration mine = before[1];
  mine.name = "mine";
  WriteAnnotated(kAnnotated, mine, Path());
  auto after = ReadAnnotations(Path());
  ASSERT_EQ(after.size(), 3u) << "others stay";
  EXPECT_EQ(after[2].name, "mine");
  for (const TensorPlacement& p : mine.tensors) {
    EXPECT_TRUE(Of(after[2], p.tensor).SamePlace(p)) << p.tensor;
  }
  // Every node that has the tensor says it: x is read by two.
  auto of_x = [](const TensorPlacement& p) { return p.tensor == "x"; };
  EXPECT_EQ(std::count_if(after[2].tensors.begin(), after[2].tensors.end(), of_x), 2);

  // A configuration takes the place of the one of its name.
  mine.tensors.resize(1);
  WriteAnnotated(Path(), mine, Path("again.onnx"));
  after = ReadAnnotations(Path("again.onnx"));
  ASSERT_EQ(after.size(), 3u);
  EXPECT_EQ(std::count_if(after[2].tensors.begin(), after[2].tensors.end(), of_x),
            after[2].tensors.size());
  EXPECT_EQ(PrintGraph(ImportOnnx(Path("again.onnx"), {})), PrintGraph(ImportOnnx(kAnnotated, {})));
}

TEST_F(Annotations, OldFilesHaveNone) {
  EXPECT_THAT(ReadAnnotations(std::string(SHARDC_SOURCE_DIR) +
                              "/tests/data/models/mlp/torchscript_static.onnx"),
              IsEmpty());
}

TEST_F(Annotations, WhatMakesNoSenseIsE1309) {
  auto says = [&](const TensorPlacement& p, const std::string& what, int64_t devices = 2) {
    Diagnostic d = Reading(p, devices);
    EXPECT_EQ(d.id(), "E1309");
    EXPECT_THAT(d.message(), HasSubstr(what));
  };
  says({"w1", "", false, {{0, {{0, 2}}}}, {{0}}}, "2 shards and 1 devices");
  says({"w1", "", false, {{0, {{0, 2}}}}, {{0}, {2}}}, "is on device 2 of 2");
  says({"w1", "", false, {{0, {{0, 2}}}}, {{0}, {0}}}, "device 0 has two shards");
  says({"w1", "", false, {{0, {{0, 0}}}}, {}}, "has 0 shards");
  says({"w1", "", false, {{0, {{int64_t{1} << 50, 1}}}}, {{0, 1}}}, "has the size");
  says({"w1", "", false, {{0, {{0, 1 << 20}, {0, 1 << 20}}}}, {}}, "has 1099511627776 shards");
  says({"w1", "", false, {}, {{0}}}, "has 0 devices", 0);
}

TEST_F(Annotations, ExternalDataStaysBesideTheModelOrElseE1403) {
  const std::string path =
      std::string(SHARDC_SOURCE_DIR) + "/tests/data/models/mlp/dynamo_dynamic.onnx";
  const Diagnostic d = testing::Thrown([&] {
    WriteAnnotated(path, {"one", 1, {}, false}, Path());
  });
  EXPECT_EQ(d.id(), "E1403");
  EXPECT_FALSE(std::filesystem::exists(Path()));
  // Nor over the data.
  namespace fs = std::filesystem;
  const fs::path folder = Path() + ".d";
  fs::create_directory(folder);
  fs::copy(path, folder / "dynamo_dynamic.onnx");
  fs::copy(path + ".data", folder / "dynamo_dynamic.onnx.data");
  testing::ExpectThrown(
      [&] {
        WriteAnnotated(folder / "dynamo_dynamic.onnx", {"one", 1, {}, false},
                       folder / "dynamo_dynamic.onnx.data");
      },
      "E1403", "would be overwritten");
  EXPECT_EQ(fs::file_size(folder / "dynamo_dynamic.onnx.data"), fs::file_size(path + ".data"));
  WriteAnnotated(folder / "dynamo_dynamic.onnx", {"one", 1, {}, false}, folder / "other.onnx");
  fs::remove_all(folder);
}

}  // namespace
}  // namespace shardc::import_testing
