#include "ir/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/ir/file_testing.h"
#include "tests/ir/thrown.h"

namespace shardc {
namespace {

using ::testing::HasSubstr;
using testing::IdThrownBy;
using testing::ReadBytes;
using testing::TemporaryFolder;
using testing::TextThrownBy;
using testing::WriteBytes;

Manifest Sample() {
  Manifest m;
  m.model = "gpt \"é\"\n";
  m.spec = "megatron";
  m.loss = "lm";
  m.mesh = Mesh::Parse("dp=2,tp=4");
  m.has_weights = true;
  m.weights_bytes = 1;
  m.gradients_bytes = 2;
  m.activations_bytes = int64_t{1} << 40;
  m.arena_bytes = 4;
  m.optimizer_bytes = 5;
  m.inputs_bytes = 6;
  m.kernels_bytes = 7;
  m.notes = {"folded 3 constants"};
  m.fixed["norm.mean"] = {DType::kBF16, "00ff"};
  ManifestState w;
  w.name = "h.0.attn.c_attn.weight";
  w.is_param = true;
  w.aliases = {"attn", "qkv"};
  w.unlike_aliases = {"qkv"};
  w.transpose_of = "qkv";
  w.merged = {"norm.mean", "norm.weight"};
  w.piece_of = "h.0.attn.weight";
  w.role = "QKV";
  w.dtype = DType::kBF16;
  w.shape = {8, 30};
  TensorType type(w.dtype, w.shape);
  type.sharding.dims[1].axes = {1};
  type.sharding.dims[1].segments = {16, 8, 6};
  type.sharding.dims[1].granule = 2;
  w.sharding = type.sharding;
  w.local_shape = LocalShape(type, m.mesh);
  w.layout = ShardingToString(type, m.mesh);
  w.why = {"spec a:3", "role QKV"};
  ManifestState s;
  s.name = "step";
  s.init = 0.1;
  ManifestState partial;
  partial.name = "sum";
  partial.shape = partial.local_shape = {2};
  partial.sharding = Sharding(1);
  partial.sharding.partial_sum = {1};
  partial.sharding.partial_max = {0};
  m.states = {w, s, partial};
  m.files = {{"rank0000.program", 123, "00ff"}, {"weights/rank0000.safetensors", 0, ""}};
  return m;
}

class ManifestTest : public ::testing::Test {
 protected:
  std::string Error(const std::string& text) {
    WriteBytes(path_, text);
    return TextThrownBy([&] { ReadManifest(path_); });
  }
  // The sample's text with one piece replaced.
  std::string With(const std::string& from, const std::string& to) {
    WriteManifest(Sample(), path_);
    std::string text = ReadBytes(path_);
    size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from << " in\n" << text;
    return at == std::string::npos ? text : text.replace(at, from.size(), to);
  }
  TemporaryFolder folder_;
  std::string path_ = ManifestPath(folder_.path());
};

TEST_F(ManifestTest, RoundTrip) {
  Manifest m = Sample();
  WriteManifest(m, path_);
  Manifest r = ReadManifest(path_);
  EXPECT_EQ(std::tie(r.model, r.spec, r.loss, r.mesh, r.has_weights, r.notes),
            std::tie(m.model, m.spec, m.loss, m.mesh, m.has_weights, m.notes));
  EXPECT_EQ(std::tie(r.weights_bytes, r.gradients_bytes, r.activations_bytes, r.arena_bytes),
            std::tie(m.weights_bytes, m.gradients_bytes, m.activations_bytes, m.arena_bytes));
  EXPECT_EQ(r.optimizer_bytes, 5);
  EXPECT_EQ(r.inputs_bytes, 6);
  EXPECT_EQ(r.kernels_bytes, 7);
  EXPECT_EQ(r.total_bytes(), 1 + 4 + 5 + 6 + 7);
  ASSERT_EQ(r.states.size(), m.states.size());
  for (size_t i = 0; i < m.states.size(); ++i) {
    const ManifestState &a = m.states[i], &b = r.states[i];
    EXPECT_EQ(std::tie(a.name, a.is_param, a.aliases, a.role, a.dtype, a.shape, a.local_shape,
                       a.layout, a.init, a.why),
              std::tie(b.name, b.is_param, b.aliases, b.role, b.dtype, b.shape, b.local_shape,
                       b.layout, b.init, b.why));
    EXPECT_EQ(a.sharding, b.sharding) << a.name;
    EXPECT_EQ(a.piece_of, b.piece_of);
    EXPECT_EQ(a.unlike_aliases, b.unlike_aliases);
    EXPECT_EQ(a.transpose_of, b.transpose_of);
    EXPECT_EQ(a.merged, b.merged);
  }
  EXPECT_EQ(r.fixed, m.fixed);
  ASSERT_EQ(r.files.size(), m.files.size());
  for (size_t i = 0; i < m.files.size(); ++i) {
    EXPECT_EQ(std::tie(m.files[i].path, m.files[i].bytes, m.files[i].checksum),
              std::tie(r.files[i].path, r.files[i].bytes, r.files[i].checksum));
  }
}

TEST_F(ManifestTest, ReadsWell) {
  WriteManifest(Sample(), path_);
  std::string text = ReadBytes(path_);
  EXPECT_THAT(text,
              ::testing::StartsWith("version: 2\nmodel: \"gpt \\\"é\\\"\\n\"\nspec: \"megatron\"\n"
                                    "mesh: \"dp=2,tp=4\"\n"));
  EXPECT_THAT(text, HasSubstr("  shape: [8, 30]\n"));
  EXPECT_THAT(text, HasSubstr("    axes: \"tp\"\n"));
}

TEST_F(ManifestTest, SyntaxErrorsHaveAPlace) {
  EXPECT_THAT(Error("version: 2\nmodle: \"a\"\n"), HasSubstr("E3005 " + path_ + ":2:6: "));
  EXPECT_THAT(Error("version: 2\nmodel: \"a\n"), HasSubstr("E3005 " + path_ + ":2:"));
}

TEST_F(ManifestTest, WrongContentsHaveAPlace) {
  EXPECT_THAT(Error(""), HasSubstr("E3005 " + path_ + ": is empty, or says no version"));
  EXPECT_THAT(Error(With("version: 2", "\nversion: 3")),
              HasSubstr("E3005 " + path_ + ":2:1: a plan of version 3"));
  EXPECT_THAT(Error(With("dp=2,tp=4", "dp=2,dp=4")), HasSubstr("E3005 " + path_ + ":4:1"));
  EXPECT_THAT(Error(With("\"bf16\"", "\"bf17\"")), HasSubstr("E3005 " + path_ + ":16:1: 'bf17'"));
}

TEST_F(ManifestTest, Bounds) {
  for (auto [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"shape: [8, 30]", "shape: [8, -30]"},
           {"shape: [8, 30]", "shape: [9223372036854775807, 30]"},
           {"shape: [8, 30]", "shape: [8]"},
           {"shape: [8, 30]", "shape: [8, 32]"},
           {"local_shape: [8, ", "local_shape: [9, "},
           {"segments: [16, 8, 6]", "segments: [16, 8]"},
           {"segments: [16, 8, 6]", "segments: [16, 8, -6, 12]"},
           {"segments: [16, 8, 6]", "segments: [9223372036854775807, 9223372036854775807]"},
           {"granule: 2", "granule: 0"},
           {"axes: \"tp\"", "axes: \"pp\""},
           {"axes: \"tp\"", "axes: [\"tp\", \"tp\"]"},
           {"partial_sum: \"tp\"", "partial_sum: \"dp\""},
           {"name: \"step\"", "name: \"step\" transpose_of: \"pets\""},
           {"name: \"step\"", "name: \"\""}}) {
    EXPECT_THAT(Error(With(from, to)), HasSubstr("E3005")) << from << " -> " << to;
  }
  EXPECT_THAT(Error(""), HasSubstr("E3005"));
}

TEST_F(ManifestTest, FilesThatAreNotThere) {
  EXPECT_EQ(IdThrownBy([&] { ReadManifest(path_); }), "E5001");
  EXPECT_EQ(IdThrownBy([&] { ReadManifest(folder_.path()); }), "E5001");
  EXPECT_EQ(IdThrownBy([&] { WriteManifest(Sample(), folder_.File("no/such")); }), "E5003");
  EXPECT_EQ(IdThrownBy([&] { WriteManifest(Sample(), "/dev/full"); }), "E5004");
}

TEST(Manifest, Paths) {
  EXPECT_EQ(ProgramPath("plan", 3), "plan/rank0003.program");
  EXPECT_EQ(ProgramPath("plan", 12345), "plan/rank12345.program");
  EXPECT_EQ(WeightsPath("plan", 0), "plan/weights/rank0000.safetensors");
  EXPECT_EQ(ManifestPath("plan"), "plan/manifest.textproto");
}

}  // namespace
}  // namespace shardc
