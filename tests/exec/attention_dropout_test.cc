// Dropout inside the attention op drops what it drops of probabilities that are written out, on
// every mesh, and moves nothing more between ranks than attention without it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "frontend/dropout.h"
#include "frontend/recover.h"
#include "ir/builder.h"
#include "ir/op_def.h"
#include "ir/safetensors.h"
#include "tests/exec/models.h"
#include "tests/exec/training.h"
#include "tests/ir/op_samples.h"

namespace shardc::testing {
namespace {

constexpr const char* kMqa = "layers=2,hidden=40,heads=5,kv_heads=1,vocab=97,seq=7,batch=4";
constexpr const char* kGqa =
    "layers=2,hidden=32,heads=4,kv_heads=2,vocab=50,seq=6,batch=4,tied=false,qkv=separate,"
    "activation=swiglu,norm=rms_norm,positions=rope";
constexpr const char* kMha = "layers=3,hidden=48,heads=6,vocab=50,seq=8,batch=4,dropout=0.1";

// o of an attention with layout "bshd" by matmul, softmax, dropout, matmul.
Value* WrittenOut(Builder& b, const Op& op) {
  const Shape q = op.in(0).shape, k = op.in(1).shape;
  const int64_t heads = q[2], groups = heads / k[2], s = q[1];
  auto per_head = [&](Value* x) {
    x = b.Transpose(x, {0, 2, 1, 3});
    const Shape shape = x->type.shape;
    if (shape[1] == heads) return x;
    x = b.BroadcastTo(b.Reshape(x, {shape[0], shape[1], 1, shape[2], shape[3]}),
                      {shape[0], shape[1], groups, shape[2], shape[3]});
    return b.Reshape(x, {shape[0], heads, shape[2], shape[3]});
  };
  HostTensor sees(DType::kBool, {s, s});
  for (int64_t i = 0; i < s; ++i) {
    for (int64_t j = 0; j <= i; ++j) sees.data<bool>()[i * s + j] = true;
  }
  const DType dtype = op.in(0).dtype;
  Value* keys = b.Transpose(per_head(op.operands[1]), {0, 1, 3, 2});
  Value* scores =
      b.Mul(b.Matmul(per_head(op.operands[0]), keys), b.Scalar(dtype, op.attrs.Float("scale")));
  Value* hidden = b.Scalar(dtype, -std::numeric_limits<double>::infinity());
  scores = b.Make("where", {b.Constant(std::move(sees)), scores, hidden});
  Value* p = b.Make("softmax", {scores}, {{"axis", int64_t{3}}});
  Attributes attrs;
  for (const char* name : {"ratio", "seed", "stream"}) attrs.Set(name, *op.attrs.Find(name));
  p = b.Make("dropout", {p, op.operands.back()}, attrs);
  return b.Transpose(b.Matmul(p, per_head(op.operands[2])), {0, 2, 1, 3});
}

Graph WriteOut(Graph graph) {
  std::vector<Op*> ops;
  for (const auto& op : graph.ops()) {
    if (op->name() == "attention" && Drops(*op)) ops.push_back(op.get());
  }
  EXPECT_FALSE(ops.empty());
  for (Op* op : ops) {
    Builder b(graph, op, *op);
    graph.ReplaceAllUses(op->result(), WrittenOut(b, *op));
    graph.Erase(op);
  }
  return graph;
}

int64_t Count(const Graph& graph, std::string_view name) {
  return std::count_if(graph.ops().begin(), graph.ops().end(),
                       [&](const auto& op) { return op->name() == name; });
}

Graph Model(const std::string& keys) { return BuildKeys(keys + ",attention_dropout=0.3"); }

RunSetup Training(const std::string& words = "unclipped") {
  RunSetup setup;
  setup.pipeline = TrainingOptions(words);
  setup.steps = 3;
  return setup;
}

void ExpectSame(const RunResult& got, const RunResult& want, double tolerance) {
  EXPECT_EQ(CompareSteps(got.losses, want.losses, tolerance), "");
  EXPECT_EQ(CompareSteps(got.grad_norms, want.grad_norms, tolerance), "");
  for (const auto& [name, value] : want.states) {
    EXPECT_LT(WorstDifference(got.states.at(name), value, 1e-3), 10 * tolerance) << name;
  }
}

// Cuts inputs [b, heads, ..] over the axes that the mesh has.
std::string CutBatchAndHeads(const std::string& mesh) {
  std::string cuts;
  for (auto [axis, dim] : {std::pair{"dp", 0}, {"tp", 1}}) {
    if (mesh.find(axis) == std::string::npos) continue;
    cuts += StrCat("dims: ", dim, " axes: \"", axis, "\" ");
  }
  return StrCat("input { match: \"*\" shard_spec { ", cuts, "} }\n");
}

struct Case {
  const char* spec;
  const char* mesh;
  int zero = 0, microbatches = 0;
  const char* words = "unclipped";
};

void Apply(const Case& c, RunSetup& setup) {
  setup.pipeline = TrainingOptions(c.words);
  setup.spec = c.spec;
  setup.mesh = c.mesh;
  setup.zero = c.zero;
  setup.microbatches = c.microbatches;
}

class AttentionDropout : public ::testing::TestWithParam<Case> {};

TEST_P(AttentionDropout, IsThatOfProbabilitiesWrittenOut) {
  for (const char* keys : {kMqa, kGqa, kMha}) {
    SCOPED_TRACE(keys);
    RunSetup setup = Training();
    const Tensors inputs = TrainingInputs(keys, setup.pipeline);
    const RunResult want = CompileAndRun(WriteOut(Model(keys)), setup, inputs);
    Apply(GetParam(), setup);
    const RunResult got = CompileAndRun(Model(keys), setup, inputs);
    EXPECT_EQ(got.lowered.find("softmax %"), std::string::npos);
    ExpectSame(got, want, 1e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, AttentionDropout,
    ::testing::Values(Case{"serial", ""}, Case{"megatron", "tp=2"}, Case{"megatron", "tp=4"},
                      Case{"megatron", "dp=2,tp=3"}, Case{"megatron_sp", "tp=2"},
                      Case{"dp", "dp=4", 3}, Case{"megatron", "dp=2,tp=2", 1, 2},
                      Case{"serial", "", 0, 4, "unclipped full"},
                      Case{"megatron", "tp=2", 0, 0, "unclipped selective"},
                      Case{"megatron", "pp=2,tp=2", 0, 2}, Case{"megatron", "pp=2,dp=2", 2, 2},
                      Case{"megatron_sp", "tp=3", 0, 2, "unclipped full"},
                      Case{"megatron", "tp=2", 0, 0, "unclipped chunk"}),
    [](const auto& info) {
      return TestName(StrCat(info.param.spec, "_", info.param.mesh, "_", info.index));
    });

TEST(AttentionDropoutVirtualStages, DropsTheSame) {
  const std::string keys = "layers=4,hidden=32,heads=4,vocab=50,seq=8,batch=4,dropout=0.1";
  RunSetup setup = Training();
  const Tensors inputs = TrainingInputs(keys, setup.pipeline);
  const RunResult want = CompileAndRun(WriteOut(Model(keys)), setup, inputs);
  setup.spec = "megatron";
  setup.mesh = "pp=2,tp=2";
  setup.microbatches = 4;
  setup.virtual_stages = 2;
  ExpectSame(CompileAndRun(Model(keys), setup, inputs), want, 1e-5);
}

// The mask is the same bits: with another one losses and gradients are farther away than rounding.
TEST(AttentionDropoutHalves, AreNearToF32) {
  RunSetup setup = Training("unclipped sgd");
  const Tensors inputs = TrainingInputs(kGqa, setup.pipeline);
  const RunResult want = CompileAndRun(WriteOut(Model(kGqa)), setup, inputs);
  auto distance = [&](const RunResult& run) {
    double worst = 0;
    for (const auto& [name, value] : want.states) {
      worst = std::max(worst, WorstDifference(run.states.at(name), value, 1e-3));
    }
    return worst;
  };
  Graph other = Model(kGqa);
  SetDropout(other, {.seed = 5});
  const double far = distance(CompileAndRun(std::move(other), setup, inputs));
  for (const char* words : {"unclipped sgd bf16", "unclipped sgd f16"}) {
    for (const char* mesh : {"", "tp=2", "dp=2,tp=2"}) {
      RunSetup half = setup;
      half.pipeline = TrainingOptions(words);
      half.spec = *mesh ? "megatron" : "serial";
      half.mesh = mesh;
      EXPECT_LT(distance(CompileAndRun(Model(kGqa), half, inputs)), far / 4) << words << mesh;
    }
  }
}

TEST(AttentionDropoutCollectives, AreThoseWithout) {
  for (const char* keys : {kMqa, kGqa, kMha}) {
    for (const char* mesh : {"tp=2", "tp=4", "dp=2,tp=3"}) {
      RunSetup setup = Training();
      setup.spec = "megatron";
      setup.mesh = mesh;
      const Tensors inputs = TrainingInputs(keys, setup.pipeline);
      auto moved = [&](Graph graph) {
        std::map<std::string, std::pair<int, int64_t>> kinds;
        for (const Collective& c : CompileAndRun(std::move(graph), setup, inputs).collectives) {
          auto& [count, elements] = kinds[StrCat(static_cast<int>(c.kind))];
          ++count;
          elements += c.elements;
        }
        return kinds;
      };
      EXPECT_EQ(moved(Model(keys)), moved(BuildKeys(keys))) << keys << " " << mesh;
    }
  }
}

TEST(AttentionDropoutLeftOut, IsAttentionWithout) {
  Graph graph = Model(kGqa);
  SetDropout(graph, {.keep = false});
  graph.EraseDead();
  EXPECT_EQ(graph.ops().size(), BuildKeys(kGqa).ops().size());
  const RunSetup setup = Training();
  const Tensors inputs = TrainingInputs(kGqa, setup.pipeline);
  const RunResult got = CompileAndRun(std::move(graph), setup, inputs);
  EXPECT_FALSE(got.states.contains("dropout.step"));
  const RunResult want = CompileAndRun(BuildKeys(kGqa), setup, inputs);
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.grad_norms, want.grad_norms);
}

// Four heads of k and v, or two that six of q share; made by tests/data/dropout/make.py.
TEST(AttentionDropoutGolden, IsThatOfPyTorch) {
  const SafetensorsFile golden(std::string(SHARDC_SOURCE_DIR) +
                               "/tests/data/dropout/attention.safetensors");
  for (std::string name : {"grouped", "plain"}) {
    auto read = [&](const std::string& what) { return golden.Read(name + "." + what); };
    for (const char* mesh : {"", "tp=2", "dp=2,tp=2", "dp=2"}) {
      for (DType dtype : {DType::kF64, DType::kF32}) {
        SCOPED_TRACE(StrCat(name, " ", mesh, " ", DTypeName(dtype)));
        Graph graph("g");
        Builder b(graph);
        std::vector<Value*> qkv;
        for (const char* what : {"q", "k", "v"}) {
          qkv.push_back(graph.AddInput(what, TensorType(dtype, read(what).shape())));
        }
        Op* attention =
            CreateDropping(b, "attention", qkv, 0.3, (int64_t{1} << 40) + 5,
                           {{"scale", 1 / std::sqrt(8.0)}, {"causal", name == "grouped"}});
        attention->attrs.Set("stream", int64_t{4});
        Value* lse = attention->results[1];
        Value* dout = graph.AddInput("do", TensorType(dtype, read("do").shape()));
        std::vector<Value*> operands = {dout};
        operands.insert(operands.end(), qkv.begin(), qkv.end());
        operands.insert(operands.end(), {attention->result(), lse, attention->operands.back()});
        Op* grad = b.Create("attention_grad", operands, attention->attrs);
        graph.outputs = {{"o", attention->result()}};
        for (size_t i = 0; i < 3; ++i) {
          graph.outputs.push_back({std::string("d") + "qkv"[i], grad -> results[i]});
        }
        Tensors inputs;
        for (const char* what : {"q", "k", "v", "do"}) inputs.emplace(what, As(read(what), dtype));
        RunSetup setup;
        setup.pipeline.loss = "none";
        setup.mesh = mesh;
        if (*mesh) setup.spec = CutBatchAndHeads(mesh);
        const RunResult got = CompileAndRun(std::move(graph), setup, inputs);
        EXPECT_EQ(got.lowered.find("all_"), std::string::npos);
        for (const char* what : {"o", "dq", "dk", "dv"}) {
          EXPECT_LT(WorstDifference(got.outputs.at(what), read(what)),
                    dtype == DType::kF64 ? 1e-12 : 1e-5)
              << what;
        }
      }
    }
  }
}

// What pattern recovery makes of probabilities that drop, in all the spellings that a model may
// have of it, draws what the model would.
TEST(AttentionDropoutRecovered, DrawsAsTheModel) {
  for (const char* keys : {kMqa, kGqa, kMha}) {
    SCOPED_TRACE(keys);
    const RunSetup setup = Training();
    const Tensors inputs = TrainingInputs(keys, setup.pipeline);
    const RunResult want = CompileAndRun(WriteOut(Model(keys)), setup, inputs);
    Graph graph = WriteOut(Model(keys));
    RecoverPatterns(graph);
    EXPECT_EQ(Count(graph, "attention"), Count(Model(keys), "attention"));
    EXPECT_EQ(Count(graph, "softmax"), 0);
    ExpectSame(CompileAndRun(std::move(graph), setup, inputs), want, 1e-5);
  }
}

}  // namespace
}  // namespace shardc::testing
