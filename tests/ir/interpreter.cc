#include "tests/ir/interpreter.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace shardc::testing {
namespace {

std::vector<HostTensor> Run(const OpDef& def, const std::vector<TensorView>& in,
                            const std::vector<const TensorType*>& types, const Attributes& attrs) {
  SHARDC_CHECK(def.reference, "op ", def.name, " has no reference");
  std::vector<HostTensor> results;
  std::vector<TensorView> out;
  for (const TensorType* type : types) results.emplace_back(type->dtype, type->shape);
  for (const HostTensor& r : results) out.push_back(View(r));
  KernelCall call;
  call.attrs = &attrs;
  call.in = in;
  call.out = out;
  def.reference(call);
  return results;
}

}  // namespace

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
    std::vector<TensorView> in;
    std::vector<const TensorType*> types;
    for (const Value* v : op->operands) in.push_back(View(values.at(v)));
    for (const Value* v : op->results) types.push_back(&v->type);
    std::vector<HostTensor> results = Run(*op->def, in, types, op->attrs);
    for (size_t i = 0; i < results.size(); ++i) values[op->results[i]] = std::move(results[i]);
  }
  return values;
}

std::vector<HostTensor> RunOp(std::string_view op, std::span<const HostTensor> operands,
                              const Attributes& attrs) {
  const OpDef& def = GetOpDef(op);
  std::vector<TensorType> operand_types;
  for (const HostTensor& t : operands) operand_types.emplace_back(t.dtype(), t.shape());
  std::vector<const TensorType*> pointers;
  for (const TensorType& t : operand_types) pointers.push_back(&t);
  std::vector<TensorType> result_types = def.infer({pointers, attrs});
  std::vector<TensorView> in;
  for (const HostTensor& t : operands) in.push_back(View(t));
  pointers.clear();
  for (const TensorType& t : result_types) pointers.push_back(&t);
  return Run(def, in, pointers, attrs);
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
