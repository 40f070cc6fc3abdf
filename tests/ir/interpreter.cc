#include "tests/ir/interpreter.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ir/run_reference.h"

namespace shardc::testing {

TensorView View(const HostTensor& tensor) {
  return {const_cast<std::byte*>(tensor.raw()), tensor.dtype(), tensor.shape(), nullptr};
}

Values Interpret(const Graph& graph, Values given) {
  Values values = std::move(given);
  for (const auto& v : graph.inputs()) {
    SHARDC_CHECK(values.contains(v.get()), "no value for input ", v->name);
  }
  for (const auto& op : graph.ops()) {
    if (op->results.empty() || values.contains(op->results[0])) continue;
    if (op->def->communicates) {
      for (size_t i = 0; i < op->results.size(); ++i) {
        values[op->results[i]] = values.at(op->operands[i]);
      }
      continue;
    }
    std::vector<const HostTensor*> operands;
    std::vector<TensorType> types;
    for (const Value* v : op->operands) operands.push_back(&values.at(v));
    for (const Value* v : op->results) types.push_back(v->type);
    std::vector<HostTensor> results = RunReference(*op->def, op->attrs, operands, types);
    for (size_t i = 0; i < results.size(); ++i) values[op->results[i]] = std::move(results[i]);
  }
  return values;
}

Values ByName(const Graph& graph, const std::map<std::string, HostTensor>& data) {
  Values values;
  for (const auto& input : graph.inputs()) values[input.get()] = data.at(input->name);
  for (const auto& op : graph.ops()) {
    if (!op->def->is_state) continue;
    const auto found = data.find(op->attrs.String("name"));
    values[op->result()] =
        found == data.end() ? HostTensor(op->out().dtype, op->out().shape) : found->second;
  }
  return values;
}

std::vector<HostTensor> RunOp(std::string_view op, std::span<const HostTensor> operands,
                              const Attributes& attrs) {
  const OpDef& def = GetOpDef(op);
  std::vector<TensorType> types;
  for (const HostTensor& t : operands) types.emplace_back(t.dtype(), t.shape());
  std::vector<const TensorType*> type_pointers;
  for (const TensorType& t : types) type_pointers.push_back(&t);
  std::vector<const HostTensor*> pointers;
  for (const HostTensor& t : operands) pointers.push_back(&t);
  return RunReference(def, attrs, pointers, def.infer({type_pointers, attrs}));
}

double Dot(const HostTensor& a, const HostTensor& b) {
  double sum = 0;
  for (int64_t i = 0; i < a.num_elements(); ++i) sum += a.AsDouble(i) * b.AsDouble(i);
  return sum;
}

double MaxError(const HostTensor& a, const HostTensor& b) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return kInfinity;
  double worst = 0;
  for (int64_t i = 0; i < a.num_elements(); ++i) {
    double x = a.AsDouble(i), y = b.AsDouble(i);
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    double error = std::fabs(x - y) / std::max(1.0, std::fabs(y));
    worst = std::isnan(error) ? kInfinity : std::max(worst, error);
  }
  return worst;
}

}  // namespace shardc::testing
