// How many collectives, of which size: what the Megatron and ColoTensor specs promise.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "frontend/gpt_config.h"
#include "passes/emit.h"
#include "tests/exec/models.h"

namespace shardc::testing {
namespace {

Program Compile(Graph graph, const std::string& spec_name, const std::string& mesh,
                const std::string& precision = "f32", const std::string& optimizer = "") {
  Spec spec = SpecOf(spec_name);
  PipelineOptions options;
  options.precision.compute = precision;
  options.optimizer.kind = optimizer;
  CompileGraph(graph, spec, MeshFor(spec, Mesh::Parse(mesh)), options);
  return EmitProgram(graph);
}

struct Sizes {
  int64_t layers, batch, sequence, hidden;
  int64_t kv_width = 0;  // of k, and of v, where an axis is split because there are few kv heads
  int64_t tokens() const { return batch * sequence; }
};

// 4L+2 all_reduces of b*s*h, and at most two small ones for the cross entropy. Where kv heads are
// repeated, their gradients, or those of their weights, are summed over the minor axis.
void ExpectMegatron(const Program& program, const Sizes& s) {
  int64_t large = 0, small = 0, small_elements = 0;
  for (const Collective& c : program.collectives) {
    if (c.kind == CollectiveKind::kAllReduce && c.elements == s.tokens() * s.hidden) {
      ++large;
    } else if (s.kv_width > 0 && c.axes == std::vector<int>{1}) {
      EXPECT_EQ(c.kind, CollectiveKind::kAllReduce) << c.op;
      EXPECT_LE(c.elements, s.tokens() * s.kv_width) << c.op;
    } else {
      EXPECT_EQ(c.kind, CollectiveKind::kAllReduce) << c.op;
      ++small;
      small_elements += c.elements;
    }
  }
  EXPECT_EQ(large, 4 * s.layers + 2);
  EXPECT_LE(small, 2);
  EXPECT_LE(small_elements, 3 * s.tokens());
}

class MegatronBuiltin : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(MegatronBuiltin, FourPerLayerAndTwo) {
  auto [tp, layers] = GetParam();
  for (const char* more :
       {"vocab=256", "vocab=257", "vocab=257,tied=false", "vocab=256,qkv=separate",
        "vocab=256,activation=swiglu,norm=rms_norm,positions=rope"}) {
    SCOPED_TRACE(more);
    std::string model =
        StrCat("builtin:gpt?layers=", layers, ",hidden=64,heads=8,seq=16,batch=2,", more);
    for (const char* precision : {"f32", "bf16"}) {
      ExpectMegatron(
          Compile(BuildGpt(ParseBuiltin(model)), "megatron", StrCat("tp=", tp), precision),
          {layers, 2, 16, 64});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, MegatronBuiltin,
                         ::testing::Combine(::testing::Values(2, 4, 8),
                                            ::testing::Values(1, 2, 12, 96)));

// The statistics of more tokens than a bucket of vectors takes still travel together.
TEST(Megatron, ManyTokens) {
  ExpectMegatron(Compile(BuildGpt(ParseBuiltin(
                             "builtin:gpt?layers=1,hidden=64,heads=8,seq=512,batch=64,vocab=257")),
                         "megatron", "tp=2"),
                 {1, 64, 512, 64});
}

// Heads that do not divide, in blocks of those that share a kv head, and fewer than ranks.
TEST(Megatron, UnevenHeads) {
  for (const char* heads : {"heads=9,kv_heads=3", "heads=9", "heads=3"}) {
    for (const char* form : {"qkv=fused", "qkv=separate", "qkv=fused,positions=rope"}) {
      for (const char* tp : {"tp=2", "tp=4", "tp=8"}) {
        SCOPED_TRACE(StrCat(heads, " ", form, " ", tp));
        const std::string model =
            StrCat("builtin:gpt?layers=2,hidden=72,seq=16,batch=2,vocab=257,", heads, ",", form);
        ExpectMegatron(Compile(BuildGpt(ParseBuiltin(model)), "megatron", tp), {2, 2, 16, 72});
      }
    }
  }
}

// Heads stay on their ranks under sequence parallelism, too.
TEST(SequenceParallel, FewerHeadsThanRanks) {
  for (const char* form : {"heads=5,qkv=fused", "heads=6,kv_heads=3,qkv=separate"}) {
    SCOPED_TRACE(form);
    const std::string model =
        StrCat("builtin:gpt?layers=2,hidden=60,seq=16,batch=2,vocab=256,", form);
    int gathers = 0;
    const Program program = Compile(BuildGpt(ParseBuiltin(model)), "megatron_sp", "tp=8");
    for (const Instruction& i : program.instructions) {
      if (i.collective < 0 || i.phase != Phase::kForward) continue;
      const CollectiveKind kind = program.collectives[i.collective].kind;
      EXPECT_NE(kind, CollectiveKind::kAllToAll);
      if (kind == CollectiveKind::kAllGather) ++gathers;
    }
    EXPECT_EQ(gathers, 2 * 2 + 1);
  }
}

constexpr const char* kFormsOfQkv[] = {"qkv=separate", "qkv=fused", "qkv=separate,positions=rope"};
// Of three layers with one kv head for 8 heads.
Program OfOneKvHead(const std::string& form, const std::string& spec) {
  const std::string model =
      "builtin:gpt?layers=3,hidden=64,heads=8,kv_heads=1,seq=16,batch=2,vocab=256,";
  return Compile(BuildGpt(ParseBuiltin(model + form)), spec, "tp=4");
}

// One kv head for all: the gradients of k and v are summed by one collective a layer.
TEST(Megatron, OneKvHead) {
  for (const char* form : kFormsOfQkv) {
    SCOPED_TRACE(form);
    const Program program = OfOneKvHead(form, "megatron");
    int64_t of_k_and_v = 0;
    for (const Collective& c : program.collectives) of_k_and_v += c.elements == 2 * 2 * 16 * 8;
    EXPECT_EQ(of_k_and_v, 3);
    EXPECT_EQ(program.collectives.size(), 4u * 3 + 2 + 2 + 3);
  }
}

// The gradients of what is repeated are summed; everything else is as with enough heads.
TEST(Megatron, FewerKvHeadsThanRanks) {
  for (const char* form : {"qkv=separate", "qkv=fused", "qkv=fused,positions=rope"}) {
    for (int layers : {1, 3}) {
      std::string model = StrCat("builtin:gpt?layers=", layers,
                                 ",hidden=64,heads=16,kv_heads=2,seq=16,batch=16,vocab=256,", form);
      for (const auto& [tp, precision] :
           {std::pair("tp=4", "f32"), {"tp=8", "f32"}, {"tp=4", "bf16"}, {"tp=8", "bf16"}}) {
        SCOPED_TRACE(StrCat(form, " ", layers, " ", tp, " ", precision));
        Program program = Compile(BuildGpt(ParseBuiltin(model)), "megatron", tp, precision);
        int64_t large = 0, weights = 0;
        for (const Collective& c : program.collectives) {
          EXPECT_EQ(c.kind, CollectiveKind::kAllReduce);
          if (c.elements == 256 * 64) {
            ++large;
            EXPECT_EQ(c.axes.size(), 2u);
          } else if (c.axes == std::vector<int>{1}) {
            weights += c.elements;
          }
        }
        EXPECT_EQ(large, 4 * layers + 2);
        // k and v of a kv head of 4: weights [64, 4] and biases.
        EXPECT_EQ(weights, layers * 2 * (64 * 4 + 4));
      }
    }
  }
}

// Sequence parallelism: each of these all_reduces is a reduce_scatter and an all_gather. Smaller
// are the gradients of what is used for each token: norms, biases behind row cuts, positions.
void ExpectSequenceParallel(const Program& program, const Sizes& s) {
  const int64_t tp = program.mesh.num_ranks();
  const int64_t elements = s.batch * ((s.sequence + tp - 1) / tp * tp) * s.hidden;  // with padding
  int64_t scatters = 0, gathers = 0;
  for (const Collective& c : program.collectives) {
    if (c.kind == CollectiveKind::kAllReduce) {
      EXPECT_NE(c.elements, s.tokens() * s.hidden) << c.op;
    } else if (c.elements == elements) {
      ++(c.kind == CollectiveKind::kAllGather ? gathers : scatters);
    } else {
      EXPECT_LT(c.elements, elements) << c.op;
    }
  }
  EXPECT_EQ(scatters, 4 * s.layers + 2);
  EXPECT_EQ(gathers, 4 * s.layers + 2);
}

TEST(SequenceParallel, AReduceScatterAndAnAllGatherForEachAllReduce) {
  for (int layers : {1, 2, 12}) {
    for (int tp : {2, 4, 8}) {
      for (const char* more : {"vocab=256", "vocab=257,tied=false", "vocab=256,qkv=separate",
                               "vocab=256,activation=swiglu,norm=rms_norm,positions=rope"}) {
        SCOPED_TRACE(StrCat("L=", layers, " tp=", tp, " ", more));
        std::string model =
            StrCat("builtin:gpt?layers=", layers, ",hidden=64,heads=8,seq=16,batch=2,", more);
        for (const char* precision : {"f32", "bf16"}) {
          ExpectSequenceParallel(
              Compile(BuildGpt(ParseBuiltin(model)), "megatron_sp", StrCat("tp=", tp), precision),
              {layers, 2, 16, 64});
        }
      }
    }
  }
}

// The gradients of kv heads that several ranks share are summed, as small as they are; the
// reduce_scatters are as with enough heads.
TEST(SequenceParallel, FewerKvHeadsThanRanks) {
  for (const char* form : kFormsOfQkv) {
    for (int tp : {4, 8}) {
      for (int kv_heads : {1, 2}) {
        SCOPED_TRACE(StrCat(form, " tp=", tp, " kv_heads=", kv_heads));
        const std::string model = StrCat("builtin:gpt?layers=2,hidden=64,heads=8,seq=16,batch=2,",
                                         "vocab=256,kv_heads=", kv_heads, ",", form);
        for (const char* precision : {"f32", "bf16"}) {
          const Program program =
              Compile(BuildGpt(ParseBuiltin(model)), "megatron_sp", StrCat("tp=", tp), precision);
          ExpectSequenceParallel(program, {2, 2, 16, 64});
          // What goes between blocks is f32, but products give halves, and these travel.
          for (const Collective& c : program.collectives) {
            if (c.elements != 2 * 16 * 64 || c.op.starts_with("embedding")) continue;
            EXPECT_EQ(DTypeName(c.dtype), precision) << c.op;
          }
        }
      }
    }
  }
}

// Positions are whole, and their gradient comes cut along the sequence: it is gathered, and not
// what the update makes of it. Nothing but the norm is left to the optimizer.
TEST(SequenceParallel, UpdatesGatherNothing) {
  for (const char* optimizer : {"adamw", "sgd"}) {
    for (const char* mesh : {"tp=2", "tp=4", "dp=2,tp=2"}) {
      SCOPED_TRACE(StrCat(optimizer, " ", mesh));
      const Program program =
          Compile(BuildGpt(ParseBuiltin("builtin:gpt?layers=2,hidden=64,heads=8,seq=16,batch=6")),
                  "megatron_sp", mesh, "f32", optimizer);
      int64_t gathers = 0;
      for (const Instruction& i : program.instructions) {
        if (i.collective < 0) continue;
        const Collective& c = program.collectives[i.collective];
        gathers += c.elements == 16 * 64 && c.kind == CollectiveKind::kAllGather;
        if (i.phase != Phase::kOptimizer) continue;
        EXPECT_EQ(c.kind, CollectiveKind::kAllReduce) << c.op;
        EXPECT_EQ(c.elements, 1) << c.op;
      }
      EXPECT_EQ(gathers, 1);
    }
  }
}

// With one kv head for all each rank makes k and v of what was gathered for q.
TEST(SequenceParallel, KeysOfAllAreNotGathered) {
  for (const char* form : kFormsOfQkv) {
    SCOPED_TRACE(form);
    const Program program = OfOneKvHead(form, "megatron_sp");
    int64_t gathers = 0;
    for (const Instruction& i : program.instructions) {
      if (i.collective < 0 || i.phase != Phase::kForward) continue;
      const Collective& c = program.collectives[i.collective];
      if (c.kind != CollectiveKind::kAllGather) continue;
      ++gathers;
      EXPECT_EQ(c.elements, 2 * 16 * 64) << c.op;
    }
    EXPECT_EQ(gathers, 2 * 3 + 1);
  }
}

// By kind and axes, how many elements travel.
std::map<std::string, int64_t> Traffic(const Program& program) {
  std::map<std::string, int64_t> traffic;
  for (const Collective& c : program.collectives) {
    std::vector<std::string> axes = program.mesh.Names(c.axes);
    std::ranges::sort(axes);
    traffic[StrCat(CollectiveKindName(c.kind), " ", Join(axes, ","))] += c.elements;
  }
  return traffic;
}

// The mesh numbers the ranks; in which order heads and sequences are dealt out follows from the
// spec.
TEST(Meshes, OtherOrdersSendTheSame) {
  for (const char* spec : {"ulysses", "megatron_sp", "megatron"}) {
    for (const char* kv_heads : {"2", "4", "8"}) {
      SCOPED_TRACE(StrCat(spec, " ", kv_heads));
      auto on = [&](const char* mesh) {
        const std::string model = StrCat(
            "builtin:gpt?layers=2,hidden=64,heads=16,seq=64,batch=4,vocab=256,kv_heads=", kv_heads);
        return Traffic(Compile(BuildGpt(ParseBuiltin(model)), spec, mesh));
      };
      const auto usual = on("dp=2,tp=2,cp=4");
      EXPECT_EQ(on("dp=2,cp=4,tp=2"), usual);
      EXPECT_EQ(on("cp=4,tp=2,dp=2"), usual);
    }
  }
}

class MegatronImported : public ::testing::TestWithParam<Export> {
 protected:
  static void Run(const char* spec, void (*expect)(const Program&, const Sizes&));
};

TEST_P(MegatronImported, FourPerLayerAndTwo) { Run("megatron", ExpectMegatron); }
TEST_P(MegatronImported, WithSequencesCut) { Run("megatron_sp", ExpectSequenceParallel); }

void MegatronImported::Run(const char* spec, void (*expect)(const Program&, const Sizes&)) {
  const Export& e = GetParam();
  const bool gpt2 = e.model == "hf_gpt2", fresh = e.model == "hf_gpt2_fresh";
  const int64_t layers = gpt2 ? 3 : 2, hidden = gpt2 ? 64 : fresh ? 32 : 48;
  const bool gqa = e.model == "gqa_swiglu";  // 6 query heads and 2 kv heads of 8
  const int64_t heads = gpt2 ? 4 : e.model == "nanogpt" ? 3 : gqa ? 6 : 2;
  for (int64_t tp : {2, 4}) {
    if (heads < tp) continue;
    for (const std::string& batch : e.batches) {
      SCOPED_TRACE(StrCat("tp=", tp, " ", batch));
      Graph graph = ImportFor(e, batch);
      const Shape ids = graph.FindInput("input_ids")->type.shape;
      expect(Compile(std::move(graph), spec, StrCat("tp=", tp)),
             {layers, ids[0], ids[1], hidden, gqa && tp > 2 ? 16 : 0});
    }
  }
}

std::vector<Export> Transformers() {
  std::vector<Export> exports;
  for (const Export& e : AllExports()) {
    if (e.model != "mlp") exports.push_back(e);
  }
  return exports;
}

INSTANTIATE_TEST_SUITE_P(All, MegatronImported, ::testing::ValuesIn(Transformers()),
                         [](const auto& info) { return info.param.model + "_" + info.param.name; });

// What a ring moves per rank, in units of elements / group size * (group size - 1).
int64_t Weight(const Collective& c) {
  return c.elements * (c.kind == CollectiveKind::kAllReduce ? 2 : 1);
}

TEST(ColoTensor, NotMoreThanItsOwnBytes) {
  for (int layers : {1, 2, 12}) {
    for (int tp : {2, 4}) {
      SCOPED_TRACE(StrCat("L=", layers, " tp=", tp));
      const int64_t b = 2, s = 16, h = 64, v = 256, n = b * s * h;
      std::string model =
          StrCat("builtin:gpt?layers=", layers, ",hidden=64,heads=8,seq=16,batch=2,vocab=256");
      Program program =
          Compile(BuildGpt(ParseBuiltin(model)), "colotensor_tutorial", StrCat("tp=", tp));
      int64_t moved = 0;
      for (const Collective& c : program.collectives) moved += Weight(c);
      // Forward: all_gather 3n and n, all_reduce n a layer; backward: three all_reduces of n;
      // embeddings: all_gather n and s*h; head: all_reduce b*s*v forward, all_gather n backward.
      int64_t theirs = layers * (3 * n + n + 2 * n + 3 * 2 * n) + n + s * h + 2 * b * s * v + n;
      EXPECT_LE(moved, theirs);
    }
  }
}

// What a spec says over tp leaves the batch cut over dp.
TEST(ColoTensor, GathersNothingOverDp) {
  Program program = Compile(
      BuildGpt(ParseBuiltin("builtin:gpt?layers=2,hidden=64,heads=8,seq=16,batch=4,vocab=256")),
      "colotensor_tutorial", "dp=2,tp=2");
  for (const Collective& c : program.collectives) {
    EXPECT_TRUE(c.axes == std::vector<int>{1} || c.kind == CollectiveKind::kAllReduce) << c.op;
  }
}

TEST(Serial, NoCommunication) {
  for (auto [spec, mesh] : {std::pair("serial", ""),
                            {"serial", "tp=2"},
                            {"megatron", "tp=1"},
                            {"megatron", "dp=1,tp=1"},
                            {"dp", "dp=1"}}) {
    Program program = Compile(BuildGpt(ParseBuiltin("builtin:gpt?layers=2")), spec, mesh);
    EXPECT_TRUE(program.collectives.empty()) << spec << " " << mesh;
  }
}

TEST(DataParallel, EachGradientOnceAndTheLoss) {
  for (const char* model :
       {"builtin:gpt?layers=2,batch=4", "builtin:gpt?layers=2,batch=4,tied=false,qkv=separate"}) {
    Graph graph = BuildGpt(ParseBuiltin(model));
    int64_t parameters = 0;
    for (const Op* p : graph.Params()) parameters += p->out().num_elements();
    Program program = Compile(std::move(graph), "dp", "dp=4");
    int64_t gradients = 0, scalars = 0;
    for (const Collective& c : program.collectives) {
      EXPECT_EQ(c.kind, CollectiveKind::kAllReduce);
      (c.elements <= 4 ? scalars : gradients) += c.elements;
    }
    EXPECT_EQ(gradients, parameters);
    EXPECT_LE(scalars, 2);  // the loss and the tokens that count
  }
}

}  // namespace
}  // namespace shardc::testing
