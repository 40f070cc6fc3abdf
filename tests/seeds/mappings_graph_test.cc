// The mappings of tensor parallelism (design: the seeds' numbers) as they fall out of sharding a
// serial graph: 8 ranks, TP=2, PP=2, pair (a, b) = ranks (2i, 2i + 1). Row i of every tensor
// belongs to pair i.
#include <gtest/gtest.h>

#include "ir/builder.h"
#include "passes/differentiate.h"
#include "tests/exec/harness.h"

namespace shardc {
namespace {

using testing::Tensors;

constexpr const char* kMesh = "pp=2,dp=2,tp=2";
constexpr int kPp = 0, kDp = 1, kTp = 2;

// r as [pair, member of the pair].
HostTensor Ranks() { return HostTensor::Of<float>({4, 2}, {0, 1, 2, 3, 4, 5, 6, 7}); }

TensorType Type(bool cut_by_tp) {
  TensorType t(DType::kF32, {4, 2});
  t.sharding.dims[0].axes = {kPp, kDp};
  if (cut_by_tp) t.sharding.dims[1].axes = {kTp};
  return t;
}

struct Source : TensorSource {
  explicit Source(HostTensor v) : value(std::move(v)) {}
  void Read(const Shape&, const Shape&, void* out) const override {
    std::copy_n(value.raw(), value.bytes(), static_cast<std::byte*>(out));
  }
  HostTensor value;
};

struct Mapping {
  Graph graph;
  Builder b;
  Value* r;

  Mapping() : graph("mapping"), b(graph), r(nullptr) {
    graph.mesh = Mesh::Parse(kMesh);
    r = graph.AddInput("r", Type(true));
  }

  Value* Param(HostTensor value, bool cut_by_tp) {
    Value* x = b.Param("x", DType::kF32, {4, 2});
    x->type = Type(cut_by_tp);
    graph.sources["x"] = std::make_shared<Source>(std::move(value));
    return x;
  }

  // Differentiates the sum of the values of `loss`, shards, and runs.
  Tensors Run(Value* loss) {
    graph.outputs.push_back({"losses", loss});
    Ints axes;
    for (int i = 0; i < loss->type.rank(); ++i) axes.push_back(i);
    Value* total = b.ReduceSum(loss, axes);
    graph.outputs.push_back({"loss", total});
    for (const char* pass : {"differentiate", "propagate", "insert_reshards", "optimize_reshards",
                             "lower_reshards", "clear_padding"}) {
      RunPass(graph, pass);
    }
    std::vector<Program> programs = testing::ProgramsFor(graph);
    Session session(programs, {}, testing::ReaderFor(graph));
    session.SetInput("r", Ranks());
    session.Step();
    Tensors out;
    for (const std::string& name : session.OutputNames()) out[name] = session.Output(name);
    for (const Collective& c : programs[0].collectives) kinds.push_back(c.kind);
    return out;
  }

  std::vector<CollectiveKind> kinds;
};

std::vector<float> Values(const HostTensor& t) {
  return {t.data<float>(), t.data<float>() + t.num_elements()};
}

// copy: x is whole on both members of a pair, each multiplies it by its r. The gradient of each
// alone is r; the all_reduce behind it makes it a + b.
TEST(Mappings, Copy) {
  Mapping m;
  Value* x = m.b.Param("x", DType::kF32, {4, 1});
  x->type.sharding.dims[0].axes = {kPp, kDp};
  m.graph.sources["x"] = std::make_shared<Source>(HostTensor::Of<float>({4, 1}, {1, 1, 1, 1}));
  Tensors out = m.Run(m.b.Mul(x, m.r));
  EXPECT_EQ(Values(out["losses"]), (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7}));  // r * x
  EXPECT_EQ(Values(out["grad.x"]), (std::vector<float>{1, 5, 9, 13}));             // a + b
}

// reduce_from: loss = 2 * sum(r * x_r) with x_r = r.
TEST(Mappings, ReduceFrom) {
  Mapping m;
  Value* x = m.Param(Ranks(), true);
  Value* sum = m.b.ReduceSum(m.b.Mul(x, m.r), {1});
  Tensors out = m.Run(m.b.Mul(sum, m.b.Scalar(DType::kF32, 2)));
  EXPECT_EQ(Values(out["losses"]), (std::vector<float>{2, 26, 82, 170}));
  EXPECT_EQ(Values(out["grad.x"]), (std::vector<float>{0, 2, 4, 6, 8, 10, 12, 14}));
}

// scatter: [1, 2] whole on both, each takes its part and multiplies by r; the gradient is gathered:
// [a, b].
TEST(Mappings, Scatter) {
  Mapping m;
  Value* x = m.Param(HostTensor::Of<float>({4, 2}, {1, 2, 1, 2, 1, 2, 1, 2}), false);
  Tensors out = m.Run(m.b.Mul(x, m.r));
  EXPECT_EQ(Values(out["losses"]), (std::vector<float>{0, 2, 2, 6, 4, 10, 6, 14}));
  EXPECT_EQ(Values(out["grad.x"]), Values(Ranks()));
  EXPECT_NE(std::find(m.kinds.begin(), m.kinds.end(), CollectiveKind::kAllGather), m.kinds.end());
}

// gather_from: x_r = r is gathered to [a, b] on both; each takes the gradient of its own part: r.
TEST(Mappings, GatherFrom) {
  Mapping m;
  Value* x = m.Param(Ranks(), true);
  Op* gathered = m.b.Create("reshard", {x});
  gathered->result()->type.sharding.dims[0].axes = {kPp, kDp};
  m.graph.outputs.push_back({"gathered", gathered->result()});
  Tensors out = m.Run(m.b.Mul(gathered->result(), m.r));
  EXPECT_EQ(Values(out["gathered"]), Values(Ranks()));
  EXPECT_EQ(Values(out["grad.x"]), Values(Ranks()));
  EXPECT_NE(std::find(m.kinds.begin(), m.kinds.end(), CollectiveKind::kAllGather), m.kinds.end());
}

}  // namespace
}  // namespace shardc
