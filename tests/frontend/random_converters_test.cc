// Ops that draw: distributions by their moments, at four deviations of what is measured.
#include "tests/frontend/converters_testing.h"

namespace shardc {
namespace {

using import_testing::SetFloat;
using import_testing::SetInt;
using import_testing::SetInts;
using onnx::NodeProto;
using onnx::TensorProto;

class RandomConverters : public import_testing::ConverterTest {
 protected:
  // The output y in the first step.
  HostTensor Drawn() {
    Graph graph = Imported({"y"});
    testing::Values given;
    for (const auto& v : graph.inputs()) given[v.get()] = inputs_.at(v->name);
    for (const auto& op : graph.ops()) {
      if (op->name() == "state") given[op->result()] = HostTensor::Scalar(int64_t{0});
    }
    testing::Values values = testing::Interpret(graph, given);
    return values.at(graph.FindOutput("y"));
  }
};

struct Moments {
  double mean = 0, variance = 0, least = 1e30, most = -1e30;
};

Moments MomentsOf(const HostTensor& t) {
  Moments m;
  const auto n = static_cast<double>(t.num_elements());
  for (int64_t i = 0; i < t.num_elements(); ++i) {
    m.mean += t.AsDouble(i) / n;
    m.least = std::min(m.least, t.AsDouble(i));
    m.most = std::max(m.most, t.AsDouble(i));
  }
  for (int64_t i = 0; i < t.num_elements(); ++i) {
    m.variance += (t.AsDouble(i) - m.mean) * (t.AsDouble(i) - m.mean) / n;
  }
  return m;
}

constexpr int64_t kRows = 60, kColumns = 100;
const double kRoot = std::sqrt(static_cast<double>(kRows * kColumns));

TEST_F(RandomConverters, UniformNumbers) {
  for (const std::string op : {"RandomUniform", "RandomUniformLike"}) {
    Restart();
    Input("x", {kRows, kColumns});
    const bool like = op.ends_with("Like");
    NodeProto& node = like ? Node(op, {"x"}) : Node(op, {});
    if (!like) SetInts(node, "shape", {kRows, kColumns});
    SetFloat(node, "low", -1);
    SetFloat(node, "high", 2);
    const HostTensor y = Drawn();
    EXPECT_EQ(y.dtype(), like ? DType::kF64 : DType::kF32);
    const Moments m = MomentsOf(y);
    EXPECT_NEAR(m.mean, 0.5, 4 * 3 / std::sqrt(12.0) / kRoot);
    EXPECT_NEAR(m.variance, 9.0 / 12, 4 * 9 / std::sqrt(180.0) / kRoot);
    EXPECT_GE(m.least, -1);
    EXPECT_LT(m.most, 2);
  }
}

// Not even a bf16 is rounded up to 1.
TEST_F(RandomConverters, HalvesAreLessThanOne) {
  for (const int type : {TensorProto::BFLOAT16, TensorProto::FLOAT16}) {
    Restart();
    Input("x", {kRows, kColumns});
    SetInt(Node("RandomUniformLike", {"x"}), "dtype", type);
    const HostTensor y = Drawn();
    EXPECT_TRUE(IsHalf(y.dtype()));
    const Moments m = MomentsOf(y);
    EXPECT_LT(m.most, 1);
    EXPECT_NEAR(m.mean, 0.5, 4 / std::sqrt(12.0) / kRoot + 1.0 / 512);
  }
}

TEST_F(RandomConverters, NormalNumbers) {
  Input("x", {kRows, kColumns});
  NodeProto& node = Node("RandomNormalLike", {"x"});
  SetFloat(node, "mean", 3);
  SetFloat(node, "scale", 0.5);
  const HostTensor y = Drawn();
  const Moments m = MomentsOf(y);
  EXPECT_NEAR(m.mean, 3, 4 * 0.5 / kRoot);
  EXPECT_NEAR(m.variance, 0.25, 4 * 0.25 * std::sqrt(2.0) / kRoot);
  double fourth = 0;
  int64_t within = 0;
  for (int64_t i = 0; i < y.num_elements(); ++i) {
    const double z = (y.AsDouble(i) - 3) / 0.5;
    fourth += z * z * z * z;
    within += std::fabs(z) < 1;
  }
  const double n = kRows * kColumns, share = std::erf(std::sqrt(0.5));
  EXPECT_NEAR(fourth / n, 3, 4 * std::sqrt(96.0) / kRoot);
  EXPECT_NEAR(static_cast<double>(within), n * share, 4 * std::sqrt(n * share * (1 - share)));
}

TEST_F(RandomConverters, BernoulliHitsAsOftenAsItIsTold) {
  Input("p", {kRows, kColumns});
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    inputs_["p"].SetDouble(i, static_cast<double>(i % 5) / 4);
  }
  SetInt(Node("Bernoulli", {"p"}), "dtype", TensorProto::INT64);
  const HostTensor y = Drawn();
  EXPECT_EQ(y.dtype(), DType::kI64);
  std::vector<int64_t> hits(5);
  for (int64_t i = 0; i < y.num_elements(); ++i) hits[i % 5] += y.AsInt(i);
  const double n = kRows * kColumns / 5.0;
  for (int k = 0; k < 5; ++k) {
    const double share = k / 4.0;
    EXPECT_NEAR(static_cast<double>(hits[k]), n * share, 4 * std::sqrt(n * share * (1 - share)));
  }
}

TEST_F(RandomConverters, MultinomialChoosesByProbability) {
  Input("logits", {1, 4});
  const std::vector<double> logits = {std::log(0.1), std::log(0.6), std::log(0.3), -1e30};
  inputs_["logits"] = HostTensor::Of<double>({1, 4}, logits);
  SetInt(Node("Multinomial", {"logits"}), "sample_size", 6000);
  const HostTensor y = Drawn();
  EXPECT_EQ(y.shape(), (Shape{1, 6000}));
  EXPECT_EQ(y.dtype(), DType::kI32);
  std::vector<int64_t> chosen(4);
  for (int64_t i = 0; i < y.num_elements(); ++i) ++chosen[y.AsInt(i)];
  const double shares[] = {0.1, 0.6, 0.3, 0};
  for (int k = 0; k < 4; ++k) {
    EXPECT_NEAR(static_cast<double>(chosen[k]), 6000 * shares[k],
                4 * std::sqrt(6000 * shares[k] * (1 - shares[k])));
  }
}

// What is drawn twice differs, and so do runs and seeds.
TEST_F(RandomConverters, EachNodeDrawsItsOwn) {
  Input("x", {kRows, kColumns});
  Node("RandomNormalLike", {"x"}, {"a"});
  SetFloat(Node("RandomUniformLike", {"x"}, {"b"}), "seed", 1.5f);
  Node("Add", {"a", "b"}, {"y"});
  std::vector<std::pair<int64_t, int64_t>> drawn;
  for (const Graph graph = Imported({"y"}); const auto& op : graph.ops()) {
    if (op->name() != "random_uniform") continue;
    drawn.emplace_back(op->attrs.Int("stream"), op->attrs.Int("seed"));
  }
  EXPECT_THAT(drawn,
              ::testing::ElementsAre(std::pair(0, 0), std::pair(1, 0), std::pair(2, 0x3fc00000)));
}

TEST_F(RandomConverters, IntegersAreNotDrawn) {
  Input("x", {2});
  SetInt(Node("RandomUniformLike", {"x"}), "dtype", TensorProto::INT64);
  ExpectRefused("E1301", "draws numbers of type i64");
  Restart();
  Node("RandomUniform", {});
  ExpectRefused("E1302", "has no shape");
  Restart();
  Input("x", {2});
  Node("Multinomial", {"x"});
  ExpectRefused("E1303", "two dims");
}

}  // namespace
}  // namespace shardc
