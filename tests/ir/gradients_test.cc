// Every gradient by machine: each sample of each op, in f64, against central differences of sum(c *
// op(x...)), for each operand and for the results one by one and together.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "ir/builder.h"
#include "ir/op_def.h"
#include "passes/differentiate.h"
#include "tests/ir/interpreter.h"
#include "tests/ir/op_samples.h"
#include "tests/ir/thrown.h"

namespace shardc::testing {
namespace {

constexpr double kStep = 1e-5;

// The results that get a weight, and so a gradient.
std::vector<int> DifferentiableResults(const OpSample& sample, const Op& op) {
  if (!sample.differentiable_results.empty()) return sample.differentiable_results;
  std::vector<int> results;
  for (size_t i = 0; i < op.results.size(); ++i) {
    if (IsFloat(op.results[i]->type.dtype)) results.push_back(static_cast<int>(i));
  }
  return results;
}

std::vector<int> DifferentiableOperands(const OpSample& sample) {
  std::vector<int> operands;
  for (size_t i = 0; i < sample.operands.size(); ++i) {
    int id = static_cast<int>(i);
    const auto& fixed = sample.fixed_operands;
    bool varies = std::find(fixed.begin(), fixed.end(), id) == fixed.end();
    if (varies && IsFloat(sample.operands[i].dtype())) operands.push_back(id);
  }
  return operands;
}

// loss = the sum over the chosen results of weight * result. Operands in `params` are params of the
// names "x0", "x1", ..., the others inputs.
struct LossGraph {
  Graph graph;
  Values given;
  std::vector<const Value*> operands;

  LossGraph(const OpSample& sample, const std::vector<int>& params,
            const std::vector<int>& results) {
    Builder builder(graph);
    std::vector<Value*> values;
    for (size_t i = 0; i < sample.operands.size(); ++i) {
      const HostTensor& t = sample.operands[i];
      bool param = std::find(params.begin(), params.end(), static_cast<int>(i)) != params.end();
      std::string name = StrCat("x", i);
      values.push_back(param ? builder.Param(name, t.dtype(), t.shape())
                             : graph.AddInput(name, TensorType(t.dtype(), t.shape())));
      given[values.back()] = t;
    }
    operands.assign(values.begin(), values.end());
    Op* op = builder.Create(sample.op, values, sample.attrs);
    Value* loss = nullptr;
    for (int r : results) {
      Value* y = op->result(r);
      HostTensor weight = RandomFloats(y->type.shape, 900 + static_cast<uint64_t>(r));
      Value* term = builder.Mul(y, builder.Constant(weight));
      Ints axes;
      for (int d = 0; d < y->type.rank(); ++d) axes.push_back(d);
      term = builder.ReduceSum(term, axes);
      loss = loss ? builder.Add(loss, term) : term;
    }
    graph.outputs.push_back({"loss", loss});
  }

  double Loss() const { return Interpret(graph, given).at(graph.FindOutput("loss")).AsDouble(0); }

  // By differences, of the loss with respect to element i of an operand.
  double Slope(int operand, int64_t i) {
    HostTensor& x = given.at(operands[operand]);
    double at = x.AsDouble(i);
    x.SetDouble(i, at + kStep);
    double above = Loss();
    x.SetDouble(i, at - kStep);
    double below = Loss();
    x.SetDouble(i, at);
    return (above - below) / (2 * kStep);
  }
};

std::map<int, HostTensor> Gradients(const OpSample& sample, const std::vector<int>& params,
                                    const std::vector<int>& results) {
  LossGraph g(sample, params, results);
  AddGradients(g.graph, g.graph.FindOutput("loss"));
  Values values = Interpret(g.graph, g.given);
  std::map<int, HostTensor> grads;
  for (int p : params) grads[p] = values.at(g.graph.FindOutput(StrCat("grad.x", p)));
  return grads;
}

void CompareWithSlopes(const OpSample& sample, const std::vector<int>& params,
                       const std::vector<int>& results) {
  std::map<int, HostTensor> grads = Gradients(sample, params, results);
  LossGraph plain(sample, {}, results);
  for (const auto& [p, grad] : grads) {
    ASSERT_EQ(grad.shape(), sample.operands[p].shape());
    for (int64_t i = 0; i < grad.num_elements(); ++i) {
      double slope = plain.Slope(p, i), tolerance = 2e-7 * std::max(1.0, std::fabs(slope));
      ASSERT_NEAR(grad.AsDouble(i), slope, tolerance) << "operand " << p << ", element " << i;
    }
  }
}

class GradientsTest : public ::testing::TestWithParam<const OpDef*> {};

TEST_P(GradientsTest, AgreeWithDifferences) {
  int compared = 0;
  for (const OpSample& sample : OpSamples()) {
    if (sample.op != GetParam()->name) continue;
    SCOPED_TRACE(sample.Name());
    std::vector<int> params = DifferentiableOperands(sample);
    std::vector<int> results = DifferentiableResults(sample, *BuildSample(sample).op);
    if (params.empty() || results.empty()) continue;
    CompareWithSlopes(sample, params, results);
    if (HasFailure()) return;
    ++compared;
    for (int r : results) {
      if (results.size() > 1) CompareWithSlopes(sample, params, {r});
    }
    // What else is wanted must not matter.
    std::map<int, HostTensor> all = Gradients(sample, params, results);
    for (int p : params) {
      if (params.size() == 1) break;
      EXPECT_LT(MaxError(Gradients(sample, {p}, results).at(p), all.at(p)), 1e-12) << p;
    }
  }
  EXPECT_GT(compared, 0);
}

// Of sum(op(x)).
double GradientAt(std::string_view op, double x) {
  Graph graph;
  Builder b(graph);
  Value* param = b.Param("x", DType::kF64, {1});
  graph.outputs.push_back({"loss", b.ReduceSum(b.Make(op, {param}), {0})});
  AddGradients(graph, graph.FindOutput("loss"));
  return Interpret(graph, {{param, HostTensor::Of<double>({1}, {x})}})
      .at(graph.FindOutput("grad.x"))
      .AsDouble(0);
}

// As PyTorch's.
TEST(Gradients, WhereADomainEnds) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (double x : {-1, 1}) {
    EXPECT_EQ(GradientAt("asin", x), kInfinity) << x;
    EXPECT_EQ(GradientAt("acos", x), -kInfinity) << x;
    EXPECT_EQ(GradientAt("atanh", x), kInfinity) << x;
  }
  EXPECT_EQ(GradientAt("acosh", 1), kInfinity);
}

// Ops without a gradient: nothing comes through, or the loss is refused with the op's reason.
class NoGradientTest : public ::testing::TestWithParam<const OpDef*> {};

TEST_P(NoGradientTest, IsZeroOrRefused) {
  const OpDef& def = *GetParam();
  for (const OpSample& sample : OpSamples()) {
    if (sample.op != def.name) continue;
    SCOPED_TRACE(sample.Name());
    std::vector<int> params = DifferentiableOperands(sample);
    std::vector<int> results = DifferentiableResults(sample, *BuildSample(sample).op);
    if (params.empty() || results.empty()) continue;
    if (def.gradient_is_zero) {
      for (const auto& [p, grad] : Gradients(sample, params, results)) {
        for (int64_t i = 0; i < grad.num_elements(); ++i) EXPECT_EQ(grad.AsDouble(i), 0) << p;
      }
      continue;
    }
    const Diagnostic d = Thrown([&] { Gradients(sample, params, results); });
    EXPECT_EQ(d.id(), "E1104");
    EXPECT_NE(std::string(d.what()).find(def.no_gradient), std::string::npos) << d.what();
  }
}

std::vector<const OpDef*> OpsWithGradient(bool gradient) {
  std::vector<const OpDef*> ops;
  for (const OpDef* def : AllOpDefs()) {
    bool has = def->gradient != nullptr;
    if (has == gradient && def->max_operands != 0 && !def->side_effect) ops.push_back(def);
  }
  return ops;
}

std::string ParamName(const ::testing::TestParamInfo<const OpDef*>& info) {
  return std::string(info.param->name);
}

INSTANTIATE_TEST_SUITE_P(Ops, GradientsTest, ::testing::ValuesIn(OpsWithGradient(true)), ParamName);
INSTANTIATE_TEST_SUITE_P(Ops, NoGradientTest, ::testing::ValuesIn(OpsWithGradient(false)),
                         ParamName);

}  // namespace
}  // namespace shardc::testing
