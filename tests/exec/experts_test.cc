// Experts that are dealt out to the ranks, which share the batch or not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "frontend/recover.h"
#include "ir/text.h"
#include "tests/exec/harness.h"
#include "tests/ir/data_source.h"

namespace shardc::testing {
namespace {

// As in GShard: masks say which token of an example goes to which of three places of four experts,
// and with what weight it comes back.
constexpr char kExperts[] =
    R"(graph @g(%x: f32[4, 6, 8], %send: f32[4, 12, 6], %back: f32[4, 6, 12]) -> (loss: %loss, y: %y) {
  %w1 = param "w1" : f32[4, 8, 5]
  %w2 = param "w2" : f32[4, 5, 8]
  %in = param "in" : f32[8, 8]
  %h = matmul %x, %in : f32[4, 6, 8]
  %sent = matmul %send, %h : f32[4, 12, 8]
  %0 = reshape %sent {shape=[4, 4, 3, 8]} : f32[4, 4, 3, 8]
  %1 = transpose %0 {perm=[1, 0, 2, 3]} : f32[4, 4, 3, 8]
  %2 = reshape %1 {shape=[4, 12, 8]} : f32[4, 12, 8]
  %3 = matmul %2, %w1 : f32[4, 12, 5]
  %4 = relu %3 : f32[4, 12, 5]
  %5 = matmul %4, %w2 : f32[4, 12, 8]
  %6 = reshape %5 {shape=[4, 4, 3, 8]} : f32[4, 4, 3, 8]
  %7 = transpose %6 {perm=[1, 0, 2, 3]} : f32[4, 4, 3, 8]
  %8 = reshape %7 {shape=[4, 12, 8]} : f32[4, 12, 8]
  %9 = matmul %back, %8 : f32[4, 6, 8]
  %y = add %9, %h : f32[4, 6, 8]
  %10 = mul %y, %y : f32[4, 6, 8]
  %loss = reduce_sum %10 {axes=[0, 1, 2], keepdims=false} : f32[]
}
)";

// Each of twelve tokens looks up the weights of two of four experts, and takes a share of each.
constexpr char kLookedUp[] =
    R"(graph @g(%x: f32[12, 8], %dy: f32[12, 8]) -> (loss: %loss, y: %y) {
  %router = param "router" : f32[8, 4]
  %w1 = param "w1" : f32[4, 8, 10]
  %w2 = param "w2" : f32[4, 5, 8]
  %scores = matmul %x, %router : f32[12, 4]
  %shares = softmax %scores {axis=1} : f32[12, 4]
  %chosen = top_k %shares {axis=1, k=2, largest=true} : i64[12, 2]
  %at = reshape %chosen {shape=[12, 2, 1]} : i64[12, 2, 1]
  %share = gather_nd %shares, %at {batch_dims=1} : f32[12, 2]
  %ids = reshape %chosen {shape=[24]} : i64[24]
  %0 = reshape %x {shape=[12, 1, 8]} : f32[12, 1, 8]
  %1 = broadcast_to %0 {shape=[12, 2, 8]} : f32[12, 2, 8]
  %2 = reshape %1 {shape=[24, 1, 8]} : f32[24, 1, 8]
  %up = gather %w1, %ids {axis=0} : f32[24, 8, 10]
  %3 = matmul %2, %up : f32[24, 1, 10]
  %gate, %4 = split %3 {axis=2, sizes=[5, 5]} : f32[24, 1, 5], f32[24, 1, 5]
  %5 = silu %gate : f32[24, 1, 5]
  %6 = mul %5, %4 : f32[24, 1, 5]
  %down = gather %w2, %ids {axis=0} : f32[24, 5, 8]
  %7 = matmul %6, %down : f32[24, 1, 8]
  %8 = reshape %share {shape=[24, 1, 1]} : f32[24, 1, 1]
  %9 = mul %7, %8 : f32[24, 1, 8]
  %10 = reshape %9 {shape=[12, 2, 8]} : f32[12, 2, 8]
  %y = reduce_sum %10 {axes=[1], keepdims=false} : f32[12, 8]
  %11 = mul %y, %dy : f32[12, 8]
  %loss = reduce_sum %11 {axes=[0, 1], keepdims=false} : f32[]
}
)";

// Changes the data of a parameter or an input.
using Change = std::function<void(const std::string& name, HostTensor& data)>;

RunResult RunExperts(const std::string& mesh, const std::string& spec, const char* text = kExperts,
                     bool recover = false, const Change& change = nullptr) {
  Graph graph = ParseGraph(text, "experts");
  for (const Op* param : graph.Params()) {
    HostTensor data(DType::kF32, param->out().shape);
    for (int64_t i = 0; i < data.num_elements(); ++i) {
      data.SetDouble(i, static_cast<double>((i * 37 + 11) % 29) / 20 - 0.7);
    }
    if (change) change(param->attrs.String("name"), data);
    graph.sources[param->attrs.String("name")] = std::make_shared<DataSource>(std::move(data));
  }
  if (recover) RecoverPatterns(graph);
  Tensors inputs = RandomInputs(graph, 1, 7);
  if (change) {
    for (auto& [name, data] : inputs) change(name, data);
  }
  RunSetup setup;
  setup.mesh = mesh;
  setup.spec = spec;
  setup.pipeline.loss = "output:loss";
  return CompileAndRun(std::move(graph), setup, inputs);
}

// What goes to the experts is exchanged for what the ranks' own examples sent, and back: a layer
// has two all_to_alls forward and two backward, and no gradient of an expert travels.
TEST(Experts, DealtOutOverTheBatchExchangeTokens) {
  const std::string spec = R"(mesh { axis { name: "ep" } }
    param { match: "w*" shard_spec { dims: 0 axes: "ep" } }
    input { match: "*" shard_spec { dims: 0 axes: "ep" } }
  )";
  const RunResult serial = RunExperts("", "serial");
  for (const char* mesh : {"ep=2", "ep=4"}) {
    SCOPED_TRACE(mesh);
    const RunResult r = RunExperts(mesh, spec);
    for (const auto& [name, expected] : serial.outputs) {
      EXPECT_LE(WorstDifference(r.outputs.at(name), expected), 1e-5) << name;
    }
    int64_t exchanges = 0;
    for (const Collective& c : r.collectives) {
      exchanges += c.kind == CollectiveKind::kAllToAll;
      const bool loss = c.elements == 1, gradient_of_in = c.elements == 8 * 8;
      EXPECT_TRUE(loss || gradient_of_in || c.kind == CollectiveKind::kAllToAll) << c.op;
    }
    EXPECT_EQ(exchanges, 4);
  }
}

// Each rank runs its experts on all tokens: what they make is added up, and so are the gradients of
// the shares; x has no gradient. No weight travels, nor a copy of one for each token.
TEST(Experts, LookedUpByTokensStayWhereTheyAre) {
  const std::string spec = R"(mesh { axis { name: "ep" } }
    param { match: "w*" shard_spec { dims: 0 axes: "ep" } }
  )";
  const RunResult plain = RunExperts("", "serial", kLookedUp);
  for (const char* mesh : {"", "ep=2", "ep=4"}) {
    SCOPED_TRACE(mesh);
    const RunResult r = RunExperts(mesh, *mesh ? spec : "serial", kLookedUp, /*recover=*/true);
    EXPECT_EQ(r.outputs.size(), plain.outputs.size());
    for (const auto& [name, expected] : plain.outputs) {
      EXPECT_LE(WorstDifference(r.outputs.at(name), expected), 1e-5) << name;
    }
    for (const Collective& c : r.collectives) {
      EXPECT_EQ(c.kind, CollectiveKind::kAllReduce);
      EXPECT_LE(c.elements, 12 * 8) << c.op;
    }
    EXPECT_EQ(r.collectives.size(), *mesh ? 3 : 0);  // y, the loss and the shares
  }
}

// An expert that gives infinity for whatever token it is asked about is asked by none.
TEST(Experts, WhatATokenDidNotChooseMayOverflow) {
  const Change change = [](const std::string& name, HostTensor& data) {
    if (name == "x") {
      for (int64_t token = 0; token < 12; ++token) data.SetDouble(token * 8, 1);
    } else if (name == "router") {
      data.SetDouble(3, -100);
    } else if (name == "w1") {
      for (int64_t i = 3 * 8 * 10; i < 4 * 8 * 10; ++i) data.SetDouble(i, 1e30);
    }
  };
  const std::string experts = R"(mesh { axis { name: "ep" } }
    param { match: "w*" shard_spec { dims: 0 axes: "ep" } }
  )";
  const RunResult plain = RunExperts("", "serial", kLookedUp, /*recover=*/false, change);
  for (const char* mesh : {"", "ep=2"}) {
    SCOPED_TRACE(mesh);
    const RunResult r =
        RunExperts(mesh, *mesh ? experts : "serial", kLookedUp, /*recover=*/true, change);
    for (const auto& [name, expected] : plain.outputs) {
      const HostTensor& got = r.outputs.at(name);
      for (int64_t i = 0; i < got.num_elements(); ++i) {
        ASSERT_TRUE(std::isfinite(got.AsDouble(i))) << name;
      }
      EXPECT_LE(WorstDifference(got, expected), 1e-5) << name;
    }
  }
}

// Experts one behind the other in matrices, cut inside of each, or dealt out: as if each were
// apart.
TEST(Experts, OneBehindTheOtherInAMatrix) {
  std::string stacked = kLookedUp;
  const auto replace = [&](const std::string& what, const std::string& with) {
    stacked.replace(stacked.find(what), what.size(), with);
  };
  replace(R"(%w1 = param "w1" : f32[4, 8, 10])", R"(%m1 = param "w1" : f32[40, 8]
  %v1 = reshape %m1 {shape=[4, 10, 8]} : f32[4, 10, 8]
  %w1 = transpose %v1 {perm=[0, 2, 1]} : f32[4, 8, 10])");
  replace(R"(%w2 = param "w2" : f32[4, 5, 8])", R"(%m2 = param "w2" : f32[20, 8]
  %w2 = reshape %m2 {shape=[4, 5, 8]} : f32[4, 5, 8])");
  const RunResult plain = RunExperts("", "serial", stacked.c_str());
  const std::string spec = R"(mesh { axis { name: "ep" } axis { name: "tp" } }
    param { role: MLP_UP shard_spec { dims: AXIS1 } }
    param { role: MLP_DOWN shard_spec { dims: AXIS2 } }
  )";
  for (const char* mesh : {"tp=2", "tp=3", "ep=2", "ep=3"}) {
    SCOPED_TRACE(mesh);
    std::string cut = spec;
    const bool tp = mesh[0] == 't';
    cut.replace(cut.find("AXIS1"), 5, tp ? "-1 axes: 'tp'" : "0 axes: 'ep'");
    cut.replace(cut.find("AXIS2"), 5, tp ? "-2 axes: 'tp'" : "0 axes: 'ep'");
    const RunResult r = RunExperts(mesh, cut, stacked.c_str(), /*recover=*/true);
    for (const auto& [name, expected] : plain.outputs) {
      EXPECT_LE(WorstDifference(r.outputs.at(name), expected), 1e-5) << name;
    }
    for (const Collective& c : r.collectives) {
      EXPECT_EQ(c.kind, CollectiveKind::kAllReduce);
      EXPECT_LE(c.elements, 12 * 8) << c.op;
    }
    EXPECT_EQ(r.collectives.size(), 3);  // y, the loss and the shares
  }
}

// Experts cut as matrices, tokens as by sequence parallelism: what travels is as large as the
// tokens, not as what each expert reads or makes of them.
TEST(Experts, CutAsMatricesGatherTokensAndScatterTheirSums) {
  const std::string spec = R"(mesh { axis { name: "tp" } }
    param { role: MLP_UP shard_spec { dims: -1 axes: "tp" } }
    param { role: MLP_DOWN shard_spec { dims: -2 axes: "tp" } }
    input { match: "*" shard_spec { dims: 0 axes: "tp" } }
  )";
  const RunResult plain = RunExperts("", "serial", kLookedUp);
  for (const char* mesh : {"tp=2", "tp=3"}) {
    SCOPED_TRACE(mesh);
    const RunResult r = RunExperts(mesh, spec, kLookedUp, /*recover=*/true);
    for (const auto& [name, expected] : plain.outputs) {
      EXPECT_LE(WorstDifference(r.outputs.at(name), expected), 1e-5) << name;
    }
    int64_t large = 0;
    for (const Collective& c : r.collectives) {
      EXPECT_LE(c.elements, 12 * 8) << c.op;
      large += c.elements == 12 * 8 && IsFloat(c.dtype);
    }
    EXPECT_EQ(large, 3);  // x and the gradient of y are gathered, y is scattered
  }
}

// Experts dealt out to ranks that share the tokens, as Megatron-LM has them: tokens are gathered
// before each expert reads them, and so are gradients; sums over all experts are scattered.
TEST(Experts, DealtOutOverTheTokensGatherThem) {
  const std::string spec = R"(mesh { axis { name: "ep" } }
    param { match: "w*" shard_spec { dims: 0 axes: "ep" } }
    input { match: "*" shard_spec { dims: 0 axes: "ep" } }
  )";
  const RunResult plain = RunExperts("", "serial", kLookedUp);
  const RunResult r = RunExperts("ep=2", spec, kLookedUp, /*recover=*/true);
  for (const auto& [name, expected] : plain.outputs) {
    EXPECT_LE(WorstDifference(r.outputs.at(name), expected), 1e-5) << name;
  }
  int64_t large = 0;
  for (const Collective& c : r.collectives) {
    EXPECT_LE(c.elements, 12 * 8) << c.op;
    large += c.elements == 12 * 8 && IsFloat(c.dtype);
  }
  EXPECT_EQ(large, 3);
}

}  // namespace
}  // namespace shardc::testing
