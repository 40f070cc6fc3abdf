// Every sharding rule by machine, once more: each sample of each op, run for one piece after the
// other of each dim that its rule lets be cut so, against the op on the whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "ir/op_def.h"
#include "passes/piecewise.h"
#include "tests/ir/interpreter.h"
#include "tests/ir/op_samples.h"

namespace shardc::testing {
namespace {

Values Given(const SampleGraph& g, const OpSample& sample) {
  Values given;
  for (size_t i = 0; i < sample.operands.size(); ++i) {
    given.emplace(g.graph.inputs()[i].get(), sample.operands[i]);
  }
  return given;
}

std::vector<HostTensor> OutputsOf(const SampleGraph& g, const OpSample& sample) {
  Values values = Interpret(g.graph, Given(g, sample));
  std::vector<HostTensor> outputs;
  for (const Output& o : g.graph.outputs) outputs.push_back(values.at(o.value));
  return outputs;
}

SampleGraph WithOutputs(const OpSample& sample) {
  SampleGraph g = BuildSample(sample);
  g.op->id = 0;
  g.graph.outputs.clear();
  for (Value* r : g.op->results) g.graph.outputs.push_back({std::to_string(r->index), r});
  return g;
}

// In how many ways the op runs in pieces.
int Check(const OpSample& sample) {
  SampleGraph whole = WithOutputs(sample);
  if (!whole.op->def->rule || whole.op->def->communicates) return 0;
  std::vector<HostTensor> want = OutputsOf(whole, sample);
  std::vector<const Value*> values(whole.op->operands.begin(), whole.op->operands.end());
  values.insert(values.end(), whole.op->results.begin(), whole.op->results.end());
  int ways = 0;
  for (size_t v = 0; v < values.size(); ++v) {
    for (int d = 0; d < values[v]->type.rank(); ++d) {
      for (int pieces : {2, 3}) {
        SampleGraph g = WithOutputs(sample);
        size_t operands = g.op->operands.size();
        Value* seed = v < operands ? g.op->operands[v] : g.op->results[v - operands];
        Piecewise chain(g.graph, seed, d);
        if (!chain.Include(g.op) || !chain.Fits(pieces)) continue;
        chain.Apply(pieces);
        ++ways;
        std::vector<HostTensor> got = OutputsOf(g, sample);
        for (size_t i = 0; i < want.size(); ++i) {
          EXPECT_LE(MaxError(got[i], want[i]), 1e-12)
              << sample.Name() << ": dim " << d << " of value " << v << " in " << pieces
              << " pieces, result " << i;
        }
      }
    }
  }
  return ways;
}

class Pieces : public ::testing::TestWithParam<const OpDef*> {};

TEST_P(Pieces, GiveWhatTheWholeGives) {
  int ways = 0;
  for (const OpSample& sample : OpSamples()) {
    if (sample.op == GetParam()->name) ways += Check(sample);
  }
  static const std::set<std::string_view> can = {"matmul",          "matmul_nt",
                                                 "matmul_tn",       "linear",
                                                 "attention",       "slice",
                                                 "reshape",         "broadcast_to",
                                                 "softmax_stats",   "attention_grad",
                                                 "embedding",       "gather",
                                                 "gather_nd",       "concat",
                                                 "cross_entropy",   "cross_entropy_grad",
                                                 "layer_norm_grad", "packed_attention",
                                                 "dropout"};
  if (GetParam()->elementwise || can.contains(GetParam()->name)) {
    EXPECT_GT(ways, 0);
  }
}

// Rows of a table are other ranks', a mean divides by the size of the whole, and labels are places.
TEST(Piecewise, RefusesWhatMustKnowThePlace) {
  for (auto [op, operand, dim] : {std::tuple{"embedding", 0, 0},
                                  {"embedding_grad", 1, 0},
                                  {"gather_grad", 1, 0},
                                  {"reduce_mean", 0, 0},
                                  {"cross_entropy", 0, -1},
                                  {"cross_entropy_grad", 1, -1},
                                  {"softmax_stats", 0, -1}}) {
    auto sample = std::find_if(OpSamples().begin(), OpSamples().end(),
                               [&, name = op](const OpSample& s) { return s.op == name; });
    ASSERT_NE(sample, OpSamples().end()) << op;
    SampleGraph g = WithOutputs(*sample);
    Value* v = g.op->operands[operand];
    if (op == std::string_view("reduce_mean")) {
      dim = static_cast<int>(g.op->attrs.IntList("axes")[0]);
    }
    Piecewise chain(g.graph, v, dim < 0 ? v->type.rank() + dim : dim);
    EXPECT_FALSE(chain.Include(g.op)) << op;
  }
}

std::vector<const OpDef*> Defs() {
  std::vector<const OpDef*> defs;
  for (const OpDef* def : AllOpDefs()) {
    if (def->rule && def->reference && !def->communicates) defs.push_back(def);
  }
  return defs;
}
INSTANTIATE_TEST_SUITE_P(Ops, Pieces, ::testing::ValuesIn(Defs()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace shardc::testing
