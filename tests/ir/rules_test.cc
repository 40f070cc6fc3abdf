// Every sharding rule by machine: each sample of each op, cut in each way that its rule allows on
// 2, 3, 8, 2x2, 4x2 and 3x2 ranks, against the serial op. Padding is garbage wherever nothing
// promises that it is zero.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>

#include "ir/builder.h"
#include "ir/op_def.h"
#include "passes/clear_padding.h"
#include "passes/insert_reshards.h"
#include "passes/layout.h"
#include "passes/lower.h"
#include "tests/ir/interpreter.h"
#include "tests/ir/op_samples.h"
#include "tests/ir/placements.h"
#include "tests/ir/spmd_interpreter.h"

namespace shardc::testing {
namespace {

// What a run of one sample under one placement needs to know.
struct Case {
  const OpSample& sample;
  const Mesh& mesh;
  const Placed& placed;
  const std::vector<HostTensor>& expected;
  bool garbage;  // the padding of the operands
};

// The same value; no pass knows that its padding is zero, so it is not.
Value* WithGarbage(Builder& builder, Value* v) {
  Value* always = builder.Constant(HostTensor::Scalar(true));
  Value* out = builder.Make("where", {always, v, v});
  out->type.sharding = v->type.sharding;
  return out;
}

// The op as placed, between inputs that are cut so and reshards to whole outputs.
Op* Build(const Case& c, Graph& graph) {
  graph.mesh = c.mesh;
  Builder builder(graph);
  std::vector<Value*> operands;
  for (size_t i = 0; i < c.sample.operands.size(); ++i) {
    const HostTensor& t = c.sample.operands[i];
    TensorType type(t.dtype(), t.shape(), c.placed.operands[i]);
    operands.push_back(graph.AddInput(StrCat("x", i), type));
  }
  if (c.garbage) {
    for (Value*& v : operands) {
      if (HasPadding(v->type, c.mesh) && !v->type.sharding.partial()) v = WithGarbage(builder, v);
    }
  }
  Op* op = builder.Create(c.sample.op, operands, c.sample.attrs);
  for (size_t i = 0; i < op->results.size(); ++i) {
    Value* r = op->results[i];
    r->type.sharding = c.placed.results[i];
    r->type.sharding = Canonical(r->type, c.mesh);
    Value* whole = builder.Make("reshard", {r});
    graph.outputs.push_back({StrCat("y", i), whole});
  }
  return op;
}

// Elements that collectives move before the first of the reshards at the end.
int64_t LargestCollective(const Graph& graph) {
  int64_t largest = 0;
  for (const auto& op : graph.ops()) {
    bool last = false;
    for (const Value* r : op->results) last = last || graph.IsOutput(r);
    if (!op->def->communicates || last) continue;
    for (const Value* v : op->operands) largest = std::max(largest, v->type.num_elements());
  }
  return largest;
}

void RunCase(const Case& c) {
  Graph graph;
  const Op* op = Build(c, graph);
  InsertReshards(graph);
  if (!c.placed.expands) {
    for (size_t i = 0; i < op->operands.size(); ++i) {
      EXPECT_EQ(ShardingToString(op->in(i), c.mesh),
                ShardingToString({op->in(i).dtype, op->in(i).shape, c.placed.operands[i]}, c.mesh))
          << "operand " << i << " was meant to stay";
    }
    for (size_t i = 0; i < op->results.size(); ++i) {
      EXPECT_EQ(ShardingToString(op->out(i), c.mesh),
                ShardingToString({op->out(i).dtype, op->out(i).shape, c.placed.results[i]}, c.mesh))
          << "result " << i << " was meant to be so";
    }
  } else if (c.mesh.num_axes() == 1) {
    EXPECT_LT(LargestCollective(graph), c.sample.operands[0].num_elements())
        << "only statistics shall travel";
  }
  LowerReshards(graph);
  ClearPadding(graph);
  std::map<const Value*, HostTensor> given;
  for (size_t i = 0; i < c.sample.operands.size(); ++i) {
    given[graph.inputs()[i].get()] = c.sample.operands[i];
  }
  std::vector<HostTensor> results = InterpretSpmd(graph, given);
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_LT(MaxError(results[i], c.expected[i]), 1e-10) << "result " << i;
  }
}

class RulesTest : public ::testing::TestWithParam<const OpDef*> {
 protected:
  // All ways on one mesh; returns how many were legal.
  int RunMesh(const OpSample& sample, const std::string& mesh_text) {
    Mesh mesh = Mesh::Parse(mesh_text);
    SampleGraph serial = BuildSample(sample);
    Values given;
    for (size_t i = 0; i < sample.operands.size(); ++i) {
      given[serial.graph.inputs()[i].get()] = sample.operands[i];
    }
    Values values = Interpret(serial.graph, std::move(given));
    std::vector<HostTensor> expected;
    for (const Value* r : serial.op->results) expected.push_back(values.at(r));
    int legal = 0;
    for (const std::vector<Way>& each : WaysOn(mesh, *serial.op)) {
      std::optional<Placed> placed = Place(*serial.op, mesh, each);
      if (!placed) continue;
      ++legal;
      for (bool garbage : {false, true}) {
        std::string trace = sample.Name() + " on " + mesh_text + (garbage ? ", garbage" : "");
        for (const Way& w : each) trace += ", " + w.ToString();
        SCOPED_TRACE(trace);
        try {
          RunCase({sample, mesh, *placed, expected, garbage});
        } catch (const std::exception& e) {
          ADD_FAILURE() << e.what();
        }
        if (HasFailure()) return legal;
      }
    }
    return legal;
  }
};

// A constraint is gone when it has done what it is for.
bool HasRule(const OpDef* def) { return def->rule != nullptr && !def->constrains; }

std::vector<const OpDef*> OpsWithRules() {
  std::vector<const OpDef*> all = AllOpDefs(), out;
  std::copy_if(all.begin(), all.end(), std::back_inserter(out), HasRule);
  return out;
}

TEST_P(RulesTest, CutOpsAgreeWithSerial) {
  int legal = 0;
  for (const OpSample& sample : OpSamples()) {
    if (sample.op != GetParam()->name) continue;
    for (const char* mesh : {"a=2", "a=3", "a=8", "a=2,b=2", "a=4,b=2", "a=3,b=2"})
      legal += RunMesh(sample, mesh);
  }
  // A constant is whole everywhere, and no more.
  RecordProperty("legal", legal);
  EXPECT_EQ(legal > 0, GetParam()->name != "constant");
}

// What passes take for granted about a rule, whatever the op.
TEST_P(RulesTest, RulesFitTheirOps) {
  for (const OpSample& sample : OpSamples()) {
    if (sample.op != GetParam()->name) continue;
    SCOPED_TRACE(sample.Name());
    SampleGraph g = BuildSample(sample);
    ShardingRule rule = g.op->def->rule(*g.op);
    ASSERT_EQ(rule.operands.size(), g.op->operands.size());
    ASSERT_EQ(rule.results.size(), g.op->results.size());
    auto check = [&](const std::vector<DimFactors>& dims, const TensorType& type) {
      ASSERT_EQ(static_cast<int>(dims.size()), type.rank());
      std::set<int> seen;
      for (int d = 0; d < type.rank(); ++d) {
        const DimFactors& f = dims[d];
        int64_t product = 1, sum = 0;
        for (int id : f.factors) {
          ASSERT_LT(id, static_cast<int>(rule.factors.size()));
          EXPECT_TRUE(seen.insert(id).second) << "factor " << id << " is in two dims";
          product *= rule.factors[id].size;
        }
        for (int64_t n : f.segments) sum += n;
        if (!f.segments.empty()) {
          EXPECT_EQ(f.factors.size(), 1u);
          EXPECT_EQ(sum, type.shape[d]);
        } else if (!f.factors.empty()) {
          EXPECT_GE(type.shape[d], product) << "dim " << d;
        }
      }
    };
    for (size_t i = 0; i < rule.operands.size(); ++i) check(rule.operands[i], g.op->in(i));
    for (size_t i = 0; i < rule.results.size(); ++i) check(rule.results[i], g.op->out(i));
    for (const Factor& f : rule.factors) {
      EXPECT_TRUE(f.kind != FactorKind::kExpandable || g.op->def->expand);
    }
    for (const auto& group : rule.linear) {
      EXPECT_FALSE(group.empty());
      for (int i : group) EXPECT_LT(i, static_cast<int>(g.op->operands.size()));
    }
  }
}

std::string ParamName(const ::testing::TestParamInfo<const OpDef*>& info) {
  return std::string(info.param->name);
}

INSTANTIATE_TEST_SUITE_P(Ops, RulesTest, ::testing::ValuesIn(OpsWithRules()), ParamName);

}  // namespace
}  // namespace shardc::testing
