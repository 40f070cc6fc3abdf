#include "passes/differentiate.h"

#include <algorithm>

#include "ir/builder.h"
#include "ir/counted.h"
#include "ir/diagnostic.h"
#include "ir/merge_equal.h"
#include "ir/op_def.h"
#include "passes/added_output.h"
#include "passes/numbering.h"

namespace shardc {
namespace {

// By Value::id, what depends on one of `values`, by floats alone.
std::vector<bool> DependentOn(const Graph& graph, std::span<Value* const> values,
                              size_t num_values) {
  std::vector<bool> depends(num_values);
  for (const Value* v : values) depends[v->id] = true;
  for (const auto& op : graph.ops()) {
    const bool any = std::ranges::any_of(op->operands, [&](Value* v) { return depends[v->id]; });
    for (const Value* r : op->results) {
      if (any && IsFloat(r->type.dtype)) depends[r->id] = true;
    }
  }
  return depends;
}

// The gradients that have arrived so far, by Value::id.
class Accumulator {
 public:
  Accumulator(Builder& builder, size_t num_values) : builder_(builder), grads_(num_values) {}

  Value* Get(const Value* v) const { return grads_[v->id]; }

  void Add(const Value* v, Value* grad) {
    SHARDC_CHECK(grad->type.SameTensor(v->type), v->producer ? v->producer->name() : v->name,
                 ": gradient of another type");
    Value*& slot = grads_[v->id];
    slot = slot ? builder_.Add(slot, grad) : grad;
  }

 private:
  Builder& builder_;
  std::vector<Value*> grads_;
};

// As Differentiate; null where the scalar does not depend on the value.
std::vector<Value*> GradientsOf(Graph& graph, Value* scalar, std::span<Value* const> values,
                                Value* scale) {
  SHARDC_CHECK(scalar->type.shape.empty() && IsFloat(scalar->type.dtype));
  const size_t num_values = NumberValues(graph);
  const std::vector<bool> depends = DependentOn(graph, values, num_values);
  const std::vector<Op*> order = OpsOf(graph);

  Builder builder(graph);
  builder.phase = Phase::kBackward;
  Accumulator grads(builder, num_values);
  if (depends[scalar->id]) {
    grads.Add(scalar, scale ? scale : builder.Scalar(scalar->type.dtype, 1));
  }

  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    Op* op = *it;
    std::vector<Value*> arrived;
    for (const Value* r : op->results) arrived.push_back(grads.Get(r));
    std::vector<bool> wanted;
    for (const Value* v : op->operands) wanted.push_back(depends[v->id]);
    const bool any = std::ranges::any_of(arrived, [](Value* grad) { return grad != nullptr; });
    if (!any || std::ranges::count(wanted, true) == 0) continue;
    if (!op->def->gradient) {
      if (op->def->gradient_is_zero) continue;
      throw Diagnostic(
          "E1104", ExitCode::kBadModel,
          StrCat("op '", op->name(), "'", op->site.empty() ? "" : " at ", op->site),
          StrCat("the loss depends on a parameter through it, but it has no gradient: ",
                 op->def->no_gradient),
          "compile with --loss none, or change the model");
    }
    builder.BelongWith(*op);
    std::vector<Value*> result = op->def->gradient({builder, *op, arrived, wanted});
    for (size_t i = 0; i < result.size(); ++i) {
      if (result[i] && wanted[i]) grads.Add(op->operands[i], result[i]);
    }
  }

  std::vector<Value*> out;
  for (Value* v : values) out.push_back(grads.Get(v));
  return out;
}

Value* Zeros(Builder& b, const TensorType& type) {
  return b.BroadcastTo(b.Scalar(type.dtype, 0), type.shape);
}

void NoteUnreached(Graph& graph, const Strings& params) {
  if (params.empty()) return;
  graph.notes.push_back(StrCat(
      "the loss does not depend on ", Counted(std::ssize(params), "parameter"), ", '", params[0],
      params.size() > 1 ? "' the first: an optimizer leaves them" : "': an optimizer leaves it",
      params.size() > 1 ? " as they were" : " as it was"));
}

}  // namespace

std::vector<Value*> Differentiate(Graph& graph, Value* scalar, std::span<Value* const> values,
                                  Value* scale) {
  std::vector<Value*> grads = GradientsOf(graph, scalar, values, scale);
  Builder builder(graph);
  builder.phase = Phase::kBackward;
  for (size_t i = 0; i < grads.size(); ++i) {
    if (grads[i] == nullptr) grads[i] = Zeros(builder, values[i]->type);
  }
  return grads;
}

void AddGradients(Graph& graph, Value* loss, Value* scale) {
  std::vector<Value*> params;
  for (Op* op : graph.Params()) {
    if (IsFloat(op->out().dtype) && op->attrs.Bool("trained", true)) {
      params.push_back(op->result());
    }
  }
  std::vector<Value*> grads = GradientsOf(graph, loss, params, scale);
  Strings unreached;
  Builder builder(graph);
  builder.phase = Phase::kBackward;
  for (size_t i = 0; i < params.size(); ++i) {
    Op& param = *params[i]->producer;
    builder.BelongWith(param);
    if (grads[i] == nullptr) {
      // PyTorch has no gradient of it, and its optimizers pass it over.
      grads[i] = Zeros(builder, param.out());
      param.attrs.Set("decay", false);
      unreached.push_back(param.attrs.String("name"));
    }
    if (IsHalf(grads[i]->type.dtype)) grads[i] = builder.Cast(grads[i], DType::kF32);
    if (scale) grads[i] = builder.Div(grads[i], builder.Cast(scale, grads[i]->type.dtype));
    AddOutput(graph, GradientName(param.attrs.String("name")), grads[i]);
  }
  NoteUnreached(graph, unreached);
  graph.EraseDead();
  // What the gradients of several layers ask of one mask.
  MergeEqual(graph);
}

}  // namespace shardc
