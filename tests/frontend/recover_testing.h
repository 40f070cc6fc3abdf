// Small graphs for recovery: each is built twice, evaluated as written and as recovered, and must
// give the same numbers.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <string>

#include "frontend/recover.h"
#include "ir/builder.h"
#include "ir/graph.h"
#include "ir/host_tensor.h"
#include "ir/op_def.h"
#include "tests/ir/data_source.h"
#include "tests/ir/interpreter.h"

namespace shardc::recover_testing {

using testing::DataSource;
using Tensors = std::map<std::string, HostTensor>;

// The outputs of the graph by the ops' reference semantics.
inline Tensors Evaluate(const Graph& graph, const Tensors& inputs) {
  testing::Values values;
  for (const auto& input : graph.inputs()) values[input.get()] = inputs.at(input->name);
  for (const auto& op : graph.ops()) {
    if (!op->def->is_state) continue;
    HostTensor& t = values[op->result()] = HostTensor(op->out().dtype, op->out().shape);
    if (op->name() != "param") continue;
    const TensorSource& source = *graph.sources.at(op->attrs.String("name"));
    source.Read(Shape(t.shape().size(), 0), t.shape(), t.raw());
  }
  values = testing::Interpret(graph, std::move(values));
  Tensors outputs;
  for (const Output& o : graph.outputs) outputs[o.name] = values.at(o.value);
  return outputs;
}

inline HostTensor Random(const std::string& name, const Shape& shape) {
  std::mt19937 generator(static_cast<unsigned>(std::hash<std::string>()(name)));
  std::normal_distribution<double> normal;
  HostTensor t(DType::kF64, shape);
  for (int64_t i = 0; i < t.num_elements(); ++i) t.SetDouble(i, normal(generator));
  return t;
}

// A graph in the making, f64 but for data that is given, with random data for everything it names.
struct TestGraph : Builder {
  Graph g;
  Tensors inputs;
  TestGraph() : Builder(g) {}

  Value* In(const std::string& name, const Shape& shape) {
    inputs[name] = Random(name, shape);
    return g.AddInput(name, TensorType(DType::kF64, shape));
  }
  Value* In(const std::string& name, HostTensor data) {
    TensorType type(data.dtype(), data.shape());
    inputs[name] = std::move(data);
    return g.AddInput(name, type);
  }
  Value* P(const std::string& name, const Shape& shape) { return P(name, Random(name, shape)); }
  Value* P(const std::string& name, HostTensor data) {
    const TensorType type(data.dtype(), data.shape());
    g.sources[name] = std::make_shared<DataSource>(std::move(data));
    return Param(name, type.dtype, type.shape);
  }
  Value* C(double value, const Shape& shape = {}) {
    HostTensor t(DType::kF64, shape);
    for (int64_t i = 0; i < t.num_elements(); ++i) t.SetDouble(i, value);
    return Constant(std::move(t));
  }
  Value* Op1(const std::string& op, Value* a) { return Make(op, {a}); }
  Value* Pow(Value* a, double n) { return Make("pow", {a, C(n)}); }
  Value* Mean(Value* a) {
    return Make("reduce_mean", {a}, {{"axes", Ints{a->type.rank() - 1}}, {"keepdims", true}});
  }
  Value* Softmax(Value* a) { return Make("softmax", {a}, {{"axis", int64_t{a->type.rank() - 1}}}); }
  Value* Where(Value* c, Value* a, Value* b) { return Make("where", {c, a, b}); }
  Value* Slice(Value* a, Ints starts, Ints limits) {
    return Make("slice", {a},
                {{"starts", starts}, {"limits", limits}, {"steps", Ints(starts.size(), 1)}});
  }
  void Out(Value* v, const std::string& name = "y") { g.outputs.push_back({name, v}); }
};

inline void ExpectNear(const Tensors& expected, const Tensors& actual, double tolerance) {
  ASSERT_EQ(expected.size(), actual.size());
  for (const auto& [name, e] : expected) {
    const HostTensor& a = actual.at(name);
    ASSERT_EQ(e.shape(), a.shape()) << name;
    double scale = 1e-3;
    for (int64_t i = 0; i < e.num_elements(); ++i) {
      if (std::isfinite(e.AsDouble(i))) scale = std::max(scale, std::fabs(e.AsDouble(i)));
    }
    for (int64_t i = 0; i < e.num_elements(); ++i) {
      double x = e.AsDouble(i), y = a.AsDouble(i);
      if (x == y || (std::isnan(x) && std::isnan(y))) continue;
      ASSERT_NEAR(x, y, tolerance * scale) << name << " element " << i;
    }
  }
}

// Builds, recovers, and compares what the two compute.
inline Graph Recover(const std::function<void(TestGraph&)>& build, double tolerance = 1e-12) {
  TestGraph plain, recovered;
  build(plain);
  build(recovered);
  RecoverPatterns(recovered.g);
  ExpectNear(Evaluate(plain.g, plain.inputs), Evaluate(recovered.g, plain.inputs), tolerance);
  return std::move(recovered.g);
}

inline std::map<std::string, int> Counts(const Graph& graph) {
  std::map<std::string, int> counts;
  for (const auto& op : graph.ops()) ++counts[std::string(op->name())];
  return counts;
}

// Names of all ops but params and constants, in order.
inline std::vector<std::string> Ops(const Graph& graph) {
  std::vector<std::string> names;
  for (const auto& op : graph.ops()) {
    if (op->name() != "param" && op->name() != "constant") names.emplace_back(op->name());
  }
  return names;
}

inline const Op* Find(const Graph& graph, std::string_view name) {
  for (const auto& op : graph.ops()) {
    if (op->name() == name) return op.get();
  }
  return nullptr;
}

inline std::string DimsText(const Op& param, const char* attr) {
  std::string text;
  if (!param.attrs.Has(attr)) return text;
  for (int64_t d : param.attrs.IntList(attr)) text += StrCat(text.empty() ? "" : ",", d);
  return "[" + text + "]";
}

// "[1] [0]"; empty where these are the last two dims.
inline std::string RowsAndColumns(const Op& param) {
  const std::string rows = DimsText(param, "rows"), columns = DimsText(param, "columns");
  return rows + (rows.empty() ? "" : " ") + columns;
}

// The roles by name, each with its rows and columns.
inline std::map<std::string, std::string> RolesOf(const Graph& g) {
  std::map<std::string, std::string> roles;
  for (const Op* p : g.Params()) {
    const std::string dims = RowsAndColumns(*p);
    roles[p->attrs.String("name")] =
        p->attrs.String("role", "none") + (dims.empty() ? "" : " ") + dims;
  }
  return roles;
}

}  // namespace shardc::recover_testing
