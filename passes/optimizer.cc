#include "passes/optimizer.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "ir/builder.h"
#include "ir/op_def.h"
#include "passes/added_output.h"
#include "passes/home_stages.h"
#include "passes/loss_scale.h"
#include "passes/numbering.h"

namespace shardc {
namespace {

// A persistent tensor of a parameter: of its type and sharding, and a piece where it is one. Of
// halves in f32: the square of a gradient of 1e-4 is zero in f16.
Value* StateOf(Builder& b, const Op& param, const std::string& suffix) {
  TensorType type = param.out();
  if (IsHalf(type.dtype)) type.dtype = DType::kF32;
  Value* state = b.State(param.attrs.String("name") + suffix, type);
  Attributes& attrs = state->producer->attrs;
  if (param.attrs.Has("transpose_of")) {
    attrs.Set("transpose_of", param.attrs.String("transpose_of") + suffix);
  }
  if (param.attrs.Has("piece_of")) {
    attrs.Set("piece_of", param.attrs.String("piece_of") + suffix);
    for (const char* key : {"piece_dim", "piece_start", "whole_size"}) {
      attrs.Set(key, param.attrs.Int(key));
    }
  }
  return state;
}

Value* GradientNorm(Builder& b, const std::vector<std::pair<Op*, Value*>>& grads, DType dtype) {
  // Keyed by the axes that cut the parameter: sums of equal keys are partial over the same axes;
  // and by the stage of a pipeline that has the gradient: one value of each leaves it.
  std::map<std::pair<std::vector<int>, int>, Value*> sums;
  std::vector<int> homes;
  if (!b.graph().pipeline_axis.empty()) homes = HomeStages(b.graph());
  auto stage_of = [&](const Value* v) {
    return homes.empty() || !v->producer ? kAnyStage : homes[v->producer->id];
  };
  for (auto& [param, grad] : grads) {
    std::vector<int> axes;
    for (const DimSharding& d : param->out().sharding.dims) {
      axes.insert(axes.end(), d.axes.begin(), d.axes.end());
    }
    std::sort(axes.begin(), axes.end());
    Value* squares = b.Cast(b.Make("sum_squares", {grad}), dtype);
    Value*& sum = sums[{axes, stage_of(grad)}];
    sum = sum ? b.Add(sum, squares) : squares;
  }
  std::map<std::vector<int>, Value*> by_axes;
  for (auto& [key, sum] : sums) {
    Value*& all = by_axes[key.first];
    all = all ? b.Add(all, sum) : sum;
  }
  Value* total = nullptr;
  for (auto& [axes, sum] : by_axes) total = total ? b.Add(total, sum) : sum;
  return b.Make("sqrt", {total});
}

DType WidestOf(const std::vector<std::pair<Op*, Value*>>& grads) {
  auto size = [](const auto& g) { return DTypeSize(g.second->type.dtype); };
  return std::ranges::max_element(grads, {}, size)->second->type.dtype;
}

DType RateType(DType of_gradient) { return IsHalf(of_gradient) ? DType::kF32 : of_gradient; }

Diagnostic Bad(const char* flag, const std::string& what, const std::string& fix) {
  return Diagnostic("E6102", ExitCode::kUsage, flag, what, fix);
}

void CheckOptions(const OptimizerOptions& o) {
  if (o.kind != "adamw" && o.kind != "sgd") {
    throw Bad("--optimizer", StrCat("unknown optimizer '", o.kind, "'"), "use adamw or sgd");
  }
  CheckLearningRate(o.rate);
  if (o.loss_scale_window < 1) {
    throw Bad("--loss-scale-window",
              StrCat("the number of steps, ", o.loss_scale_window, ", is not 1 or more"),
              "give 1 or more");
  }
  for (const auto& [option, v] : {std::pair("--eps", o.eps),
                                  {"--weight-decay", o.weight_decay},
                                  {"--momentum", o.momentum},
                                  {"--clip-norm", o.clip_norm}}) {
    if (v >= 0 && v <= std::numeric_limits<float>::max()) continue;
    throw Bad(option, StrCat(v, " is not a number from 0 on that f32 can hold"), "give one");
  }
  if (o.kind == "adamw" && o.momentum > 0) {
    throw Bad("--momentum", "momentum is sgd's", "leave it out, or give adamw's --betas");
  }
  if (!(o.momentum < 1)) {
    throw Bad("--momentum", StrCat(o.momentum, " is not in [0, 1): past gradients would not fade"),
              "give one below 1, for example 0.9");
  }
  if (!(o.beta1 >= 0 && o.beta1 < 1 && o.beta2 >= 0 && o.beta2 < 1)) {
    throw Bad("--betas", StrCat(o.beta1, ", ", o.beta2, " are not in [0, 1)"),
              "give two from 0 to below 1, for example 0.9,0.999");
  }
}

// States and parameters are told apart by their names, in the plan and in checkpoints.
void CheckNames(const Graph& graph) {
  std::set<std::string> params;
  for (const Op* param : graph.Params()) params.insert(param->attrs.String("name"));
  for (const auto& op : graph.ops()) {
    if (op->name() != "state" || !params.contains(op->attrs.String("name"))) continue;
    throw Diagnostic("E6102", ExitCode::kUsage, "--optimizer",
                     StrCat("keeps a state '", op->attrs.String("name"),
                            "', and the model has a parameter of that name"),
                     "rename the parameter");
  }
}

void CheckOwnUpdates(const Graph& graph, const std::vector<std::pair<Op*, Value*>>& grads) {
  std::set<std::string> updated;
  for (const auto& op : graph.ops()) {
    if (op->name() == "update") updated.insert(op->attrs.String("name"));
  }
  for (const auto& [param, grad] : grads) {
    const std::string& name = param->attrs.String("name");
    if (!updated.contains(name)) continue;
    throw Diagnostic("E6102", ExitCode::kUsage, "--optimizer",
                     StrCat("the model itself updates parameter '", name, "'"),
                     "leave it out, or freeze the parameter with --freeze " + name);
  }
}

void NoteHalves(Graph& graph, const std::vector<std::pair<Op*, Value*>>& grads) {
  for (const auto& [param, grad] : grads) {
    const DType type = param->out().dtype;
    if (!IsHalf(type)) continue;
    graph.notes.push_back(StrCat(
        "parameters are in ", DTypeName(type),
        ", where an update much smaller than what it is added to is lost; a model in f32 with "
        "--precision ",
        DTypeName(type), " keeps it"));
    return;
  }
}

// What the updates of all parameters read.
struct Shared {
  Value *step, *scale, *rate;
};

void Update(Builder& b, const OptimizerOptions& options, const Op& param, Value* grad,
            const Shared& shared) {
  const std::string& name = param.attrs.String("name");
  const bool decays = param.attrs.Bool("decay", param.out().rank() >= 2);
  const double decay = decays ? options.weight_decay : 0;
  if (options.kind == "adamw") {
    Value* m = StateOf(b, param, ".adamw.m");
    Value* v = StateOf(b, param, ".adamw.v");
    Op* op = b.Create("adamw", {param.result(), grad, m, v, shared.step, shared.scale, shared.rate},
                      {{"beta1", options.beta1},
                       {"beta2", options.beta2},
                       {"eps", options.eps},
                       {"weight_decay", decay}});
    b.Update(name, op->result(0));
    b.Update(name + ".adamw.m", op->result(1));
    b.Update(name + ".adamw.v", op->result(2));
    return;
  }
  std::vector<Value*> operands = {param.result(), grad, shared.scale, shared.rate};
  if (options.momentum > 0) {
    operands.push_back(StateOf(b, param, ".sgd.momentum"));
    operands.push_back(shared.step);
  }
  Op* op = b.Create("sgd", operands,
                    {{"momentum", options.momentum},
                     {"dampening", 0.0},
                     {"nesterov", false},
                     {"weight_decay", decay}});
  b.Update(name, op->result(0));
  if (options.momentum > 0) b.Update(name + ".sgd.momentum", op->result(1));
}

}  // namespace

Diagnostic NoGradients() {
  return Diagnostic("E6102", ExitCode::kUsage, "--optimizer", "there is no gradient to step along",
                    "choose a loss (--loss lm), with gradients, for a model with parameters");
}

void AddOptimizer(Graph& graph, const OptimizerOptions& options) {
  if (options.kind.empty()) return;
  CheckOptions(options);
  std::vector<std::pair<Op*, Value*>> grads;
  for (Op* op : graph.Params()) {
    Value* gradient = graph.FindOutput(GradientName(op->attrs.String("name")));
    if (gradient) grads.emplace_back(op, gradient);
  }
  if (grads.empty()) throw NoGradients();
  CheckOwnUpdates(graph, grads);
  Builder b(graph);
  b.phase = Phase::kOptimizer;
  b.site = "optimizer";
  const DType dtype = WidestOf(grads);
  NoteHalves(graph, grads);

  Value* norm = GradientNorm(b, grads, dtype);
  Value* scale = b.Scalar(dtype, 1);
  if (options.clip_norm > 0) {
    Value* sum = b.Add(norm, b.Scalar(dtype, 1e-6));
    scale = b.Make("min", {b.Div(b.Scalar(dtype, options.clip_norm), sum), scale});
  }
  // NaN, of which the updates make nothing, where the norm is no finite number. All that depends on
  // that is made of the scale: in a pipeline nothing else travels.
  scale = b.Add(scale, b.Sub(norm, norm));
  Value* finite = b.Make("equal", {scale, scale});
  Value* steps = b.State("optimizer.step", TensorType(DType::kI64, {}));
  Value* rate = LearningRate(b, options.rate, steps, RateType(dtype));
  Value* step = b.Add(steps, b.Cast(finite, DType::kI64));
  b.Update("optimizer.step", step);
  FollowOverflows(b, finite, options.loss_scale_window);

  for (auto& [param, grad] : grads) {
    b.BelongWith(*param);
    if (b.site.empty()) b.site = param->attrs.String("name");
    const DType own = grad->type.dtype;
    Update(b, options, *param, grad, {step, b.Cast(scale, own), b.Cast(rate, RateType(own))});
  }
  CheckNames(graph);
  AddOutput(graph, "grad_norm", norm);
  if (!IsConstant(options.rate)) AddOutput(graph, "learning_rate", rate);
}

}  // namespace shardc
