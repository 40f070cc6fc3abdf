// The GPT builder: configs, sizes, names, and weights that any shard can draw by itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "frontend/builder/random_source.h"
#include "frontend/gpt_config.h"
#include "ir/graph.h"
#include "ir/host_tensor.h"
#include "ir/op_def.h"
#include "ir/philox.h"
#include "tests/ir/cpu_time.h"
#include "tests/ir/thrown.h"

namespace shardc {
namespace {

Graph Gpt(const std::string& text, const std::map<std::string, int64_t>& bind = {}) {
  return BuildGpt(ParseBuiltin(text, bind));
}

int64_t NumParameters(const Graph& graph) {
  int64_t n = 0;
  for (Op* p : graph.Params()) n += p->out().num_elements();
  return n;
}

std::map<std::string, int> OpCounts(const Graph& graph) {
  std::map<std::string, int> counts;
  for (const auto& op : graph.ops()) ++counts[std::string(op->name())];
  return counts;
}

std::string ErrorOf(const std::string& text, const std::map<std::string, int64_t>& bind = {}) {
  return testing::TextThrownBy([&] { ParseBuiltin(text, bind); });
}

std::vector<float> ReadBox(const TensorSource& source, const Shape& offset, const Shape& size) {
  std::vector<float> out(NumElements(size));
  source.Read(offset, size, out.data());
  return out;
}

// Random123's kat_vectors for philox4x32-10.
TEST(Philox, KnownAnswers) {
  using A = std::array<uint32_t, 4>;
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}), (A{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t f = 0xffffffff;
  EXPECT_EQ(Philox4x32({f, f, f, f}, {f, f}), (A{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (A{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(BuildGpt, DropsWhereGpt2Does) {
  auto counts = OpCounts(Gpt("builtin:gpt?layers=3,dropout=0.1"));
  EXPECT_EQ(counts["dropout"], 7);  // of the embeddings, and two of each layer
  EXPECT_EQ(counts["attention"], 3);
  EXPECT_EQ(counts["update"], 1);
  const Graph both = Gpt("builtin:gpt?layers=3,dropout=0.1,attention_dropout=0.2");
  std::set<int64_t> streams;
  for (const auto& op : both.ops()) {
    if (!Drops(*op)) continue;
    EXPECT_EQ(op->attrs.Float("ratio"), op->name() == "attention" ? 0.2 : 0.1);
    streams.insert(op->attrs.Int("stream"));
  }
  EXPECT_EQ(streams, (std::set<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(OpCounts(Gpt("builtin:gpt?layers=3"))["update"], 0);
  EXPECT_THAT(ErrorOf("builtin:gpt?dropout=1"), ::testing::HasSubstr("E1502"));
  EXPECT_THAT(ErrorOf("builtin:gpt?layers=2,dropout=0.1,layers=3"),
              ::testing::HasSubstr("'layers' is given twice"));
  EXPECT_THAT(ErrorOf("builtin:gpt?attention_dropout=-0.1"), ::testing::HasSubstr("not in [0, 1)"));
}

TEST(NormalSource, AnyBoxIsTheSliceOfTheWhole) {
  const Shape shape = {7, 5, 9};
  auto source = NormalSource("w", DType::kF32, shape, 11, 0.5);
  std::vector<float> whole = ReadBox(*source, {0, 0, 0}, shape);
  for (const auto& [offset, size] : std::vector<std::pair<Shape, Shape>>{{{3, 1, 2}, {2, 4, 6}},
                                                                         {{6, 4, 8}, {1, 1, 1}},
                                                                         {{0, 0, 3}, {7, 5, 5}},
                                                                         {{2, 2, 2}, {0, 1, 1}}}) {
    std::vector<float> box = ReadBox(*source, offset, size), expected;
    for (int64_t i = 0; i < size[0]; ++i) {
      for (int64_t j = 0; j < size[1]; ++j) {
        for (int64_t k = 0; k < size[2]; ++k) {
          expected.push_back(whole[((offset[0] + i) * 5 + offset[1] + j) * 9 + offset[2] + k]);
        }
      }
    }
    EXPECT_EQ(box, expected);
  }
}

TEST(NormalSource, DependsOnNameAndSeedAndHasTheMoments) {
  const Shape shape = {100000};
  auto read = [&](const char* name, uint64_t seed) {
    return ReadBox(*NormalSource(name, DType::kF32, shape, seed, 0.5), {0}, shape);
  };
  std::vector<float> a = read("a", 1);
  EXPECT_EQ(a, read("a", 1));
  EXPECT_NE(a, read("b", 1));
  EXPECT_NE(a, read("a", 2));
  double sum = 0, squares = 0, neighbours = 0, fourth = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += a[i], squares += a[i] * a[i], fourth += std::pow(a[i], 4);
    if (i > 0) neighbours += a[i] * a[i - 1];
  }
  double n = static_cast<double>(a.size());
  EXPECT_NEAR(sum / n, 0, 5 * 0.5 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 0.25, 5 * 0.25 * std::sqrt(2 / n));
  EXPECT_NEAR(fourth / n, 3 * 0.0625, 5 * 0.0625 * std::sqrt(96 / n));
  EXPECT_NEAR(neighbours / n, 0, 5 * 0.25 / std::sqrt(n));
}

TEST(NormalSource, EveryTypeHasTheSameValues) {
  auto narrow = ReadBox(*NormalSource("w", DType::kF32, {33}, 3, 0.02), {0}, {33});
  std::vector<double> wide(33);
  NormalSource("w", DType::kF64, {33}, 3, 0.02)->Read({0}, {33}, wide.data());
  for (int i = 0; i < 33; ++i) EXPECT_EQ(wide[i], narrow[i]);
}

TEST(ParseBuiltin, Presets) {
  EXPECT_EQ(NumParameters(Gpt("builtin:gpt2")), 124439808);
  EXPECT_EQ(NumParameters(Gpt("builtin:gpt2-medium")), 354823168);
  EXPECT_EQ(NumParameters(Gpt("builtin:gpt2-large")), 774030080);
  EXPECT_EQ(NumParameters(Gpt("builtin:gpt2-xl")), 1557611200);
}

TEST(ParseBuiltin, SeedModelsHaveTheirParameterCounts) {
  const std::string form = ",heads=4,vocab=100,seq=64,tied=false";
  EXPECT_EQ(NumParameters(Gpt("builtin:gpt?layers=10,hidden=512" + form)), 31660032);
  EXPECT_EQ(NumParameters(Gpt("builtin:gpt?layers=2,hidden=12" + form)), 6960);
}

TEST(ParseBuiltin, BindWinsAndSeqDefaultsToThePositions) {
  GptConfig c = ParseBuiltin("builtin:gpt2");
  EXPECT_EQ(std::pair(c.batch, c.seq), std::pair(int64_t{1}, int64_t{1024}));
  c = ParseBuiltin("builtin:gpt?seq=32,batch=3", {{"seq", 8}});
  EXPECT_EQ(c.batch, 3);
  EXPECT_EQ(c.seq, 8);
  EXPECT_EQ(c.max_positions, 32);
}

TEST(ParseBuiltin, UnknownThingsAreNamedWithSuggestions) {
  using ::testing::AllOf;
  using ::testing::HasSubstr;
  EXPECT_THAT(ErrorOf("builtin:gpt2-xxl"), AllOf(HasSubstr("E1501"), HasSubstr("gpt2-xl")));
  EXPECT_THAT(ErrorOf("builtin:gpt?hiden=3"), AllOf(HasSubstr("E1501"), HasSubstr("'hidden'")));
  EXPECT_THAT(ErrorOf("builtin:gpt?norm=rmsnorm"),
              AllOf(HasSubstr("E1501"), HasSubstr("'rms_norm'")));
  EXPECT_THAT(ErrorOf("builtin:gpt?layers=two"), HasSubstr("E1501"));
  EXPECT_THAT(ErrorOf("builtin:gpt?layers"), HasSubstr("E1501"));
  EXPECT_THAT(ErrorOf("builtin:gpt2", {{"sequence", 3}}),
              AllOf(HasSubstr("E1501"), HasSubstr("known: batch, seq")));
}

TEST(ParseBuiltin, SizesThatDoNotFit) {
  using ::testing::HasSubstr;
  for (const char* text :
       {"hidden=65", "heads=4,kv_heads=3", "layers=0", "hidden=-64", "vocab=99999999999", "seq=0",
        "hidden=12,heads=4,positions=rope", "seq=64,max_positions=32", "eps=0", "eps=1e39",
        "init_std=inf", "rope_theta=inf"}) {
    EXPECT_THAT(ErrorOf(std::string("builtin:gpt?") + text), HasSubstr("E1502")) << text;
  }
  EXPECT_THAT(ErrorOf("builtin:gpt2", {{"seq", 1025}}), HasSubstr("E1502"));
}

TEST(BuildGpt, NamesRolesAndPartsOfAGpt2Layer) {
  Graph g = Gpt("builtin:gpt?layers=1,hidden=8,heads=2,vocab=11,seq=4");
  std::vector<std::string> lines;
  for (Op* p : g.Params()) {
    lines.push_back(p->attrs.String("name") + " " + ShapeToString(p->out().shape) + " " +
                    p->attrs.String("role") + " " + p->attrs.String("part"));
  }
  EXPECT_THAT(
      lines,
      ::testing::ElementsAre(
          "transformer.wte.weight [11, 8] TOKEN_EMBEDDING weight",
          "transformer.wpe.weight [4, 8] POSITION_EMBEDDING weight",
          "transformer.h.0.ln_1.weight [8] NORM weight", "transformer.h.0.ln_1.bias [8] NORM bias",
          "transformer.h.0.attn.c_attn.weight [8, 24] QKV weight",
          "transformer.h.0.attn.c_attn.bias [24] QKV bias",
          "transformer.h.0.attn.c_proj.weight [8, 8] ATTENTION_OUT weight",
          "transformer.h.0.attn.c_proj.bias [8] ATTENTION_OUT bias",
          "transformer.h.0.ln_2.weight [8] NORM weight", "transformer.h.0.ln_2.bias [8] NORM bias",
          "transformer.h.0.mlp.c_fc.weight [8, 32] MLP_UP weight",
          "transformer.h.0.mlp.c_fc.bias [32] MLP_UP bias",
          "transformer.h.0.mlp.c_proj.weight [32, 8] MLP_DOWN weight",
          "transformer.h.0.mlp.c_proj.bias [8] MLP_DOWN bias",
          "transformer.ln_f.weight [8] NORM weight", "transformer.ln_f.bias [8] NORM bias"));
  EXPECT_EQ(g.FindOutput("logits")->type.shape, (Shape{1, 4, 11}));
  EXPECT_EQ(g.FindOutput("logits")->producer->site, "lm_head");
  for (Op* p : g.Params()) EXPECT_TRUE(g.sources.contains(p->attrs.String("name")));
}

TEST(BuildGpt, OpsOfALlamaLikeConfig) {
  Graph g =
      Gpt("builtin:gpt?layers=3,hidden=48,heads=6,kv_heads=2,ffn=100,vocab=31,seq=5,norm=rms_norm,"
          "positions=rope,activation=swiglu,bias=false,tied=false,qkv=separate",
          {{"batch", 2}});
  auto counts = OpCounts(g);
  EXPECT_EQ(counts["attention"], 3);
  EXPECT_EQ(counts["rms_norm"], 7);
  EXPECT_EQ(counts["silu"], 3);
  EXPECT_EQ(counts["matmul"], 3 * 7);
  EXPECT_EQ(counts["matmul_nt"], 1);
  EXPECT_EQ(NumParameters(g),
            31 * 48 * 2 + 3 * (48 * 48 * 2 + 2 * 48 * 16 + 3 * 48 * 100 + 96) + 48);
  for (const auto& op : g.ops()) {
    if (op->name() != "attention") continue;
    EXPECT_EQ(op->in(1).shape, (Shape{2, 5, 2, 8}));
  }
}

TEST(BuildGpt, WeightsAreDrawnAsGpt2DrawsThem) {
  Graph g = Gpt("builtin:gpt?layers=8,hidden=64,heads=4,init_std=0.1");
  auto deviation = [&](const std::string& name) {
    const Shape& shape = g.FindState(name)->out().shape;
    double squares = 0;
    for (float v : ReadBox(*g.sources.at(name), Shape(shape.size(), 0), shape)) squares += v * v;
    return std::sqrt(squares / NumElements(shape));
  };
  EXPECT_NEAR(deviation("transformer.h.3.mlp.c_fc.weight"), 0.1, 0.003);
  EXPECT_NEAR(deviation("transformer.h.3.mlp.c_proj.weight"), 0.1 / 4, 0.001);
  EXPECT_EQ(deviation("transformer.h.3.mlp.c_fc.bias"), 0);
  EXPECT_EQ(deviation("transformer.ln_f.weight"), 1);
}

TEST(BuildGpt, A175BModelCostsNothingUntilItIsRead) {
  const double start = testing::CpuSeconds();
  Graph g = Gpt("builtin:gpt3-175b");
  const double seconds = testing::CpuSeconds() - start;
  EXPECT_NEAR(static_cast<double>(NumParameters(g)), 174.6e9, 1e9);
  EXPECT_LT(g.num_ops(), 3500u);
  EXPECT_LT(seconds, 0.5);  // a few ms; generous for sanitizers
  std::vector<float> corner =
      ReadBox(*g.sources.at("transformer.h.95.mlp.c_fc.weight"), {12287, 49151}, {1, 1});
  EXPECT_NE(corner[0], 0);
}

}  // namespace
}  // namespace shardc
