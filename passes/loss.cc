#include "passes/loss.h"

#include <algorithm>
#include <numeric>

#include "ir/builder.h"
#include "ir/choices.h"
#include "ir/diagnostic.h"
#include "specs/spec.h"

namespace shardc {
namespace {

constexpr int64_t kIgnore = -100;

Diagnostic NoOutput(const Graph& graph, std::string what) {
  std::string have;
  for (const Output& o : graph.outputs) {
    have += (have.empty() ? "the model has " : ", ") + o.name + " " +
            TypeToString(o.value->type, graph.mesh);
  }
  return Diagnostic("E1601", ExitCode::kBadModel, "--loss", std::move(what), have);
}

Value* FloatOutput(const Graph& graph, const std::string& name) {
  if (!name.empty()) {
    if (Value* v = graph.FindOutput(name)) return v;
    throw NoOutput(graph, StrCat("the model has no output '", name, "'"));
  }
  if (Value* v = graph.FindOutput("logits")) return v;
  Value* found = nullptr;
  for (const Output& o : graph.outputs) {
    if (!IsFloat(o.value->type.dtype)) continue;
    if (found)
      throw NoOutput(graph, "the model has several float outputs; say with --loss-output which");
    found = o.value;
  }
  if (!found) throw NoOutput(graph, "the model has no float output");
  return found;
}

Value* LossInput(Graph& graph, const std::string& name, TensorType type) {
  if (Value* v = graph.FindInput(name)) {
    if (v->type.SameTensor(type)) return v;
    throw NoOutput(
        graph, StrCat("the model's own input '", name, "' is ", TypeToString(v->type, graph.mesh),
                      ", the loss needs ", TypeToString(type, graph.mesh)));
  }
  return graph.AddInput(name, std::move(type));
}

Value* SumAll(Builder& b, Value* v) {
  Ints axes(v->type.shape.size());
  std::iota(axes.begin(), axes.end(), 0);
  return b.ReduceSum(v, axes);
}

// Halves in f32: a mean over many tokens, their number and their sum, leaves the range of f16 and
// the digits of both.
Value* Widened(Builder& b, Value* v) { return IsHalf(v->type.dtype) ? b.Cast(v, DType::kF32) : v; }

// labels[..., i] = labels[..., i + 1], the last one ignored.
Value* ShiftLeft(Builder& b, Value* labels) {
  const Shape& shape = labels->type.shape;
  Value* tail = b.Slice(labels, labels->type.rank() - 1, 1, shape.back());
  Ints low(shape.size(), 0), high = low;
  high.back() = 1;
  return b.Make("pad", {tail},
                {{"low", low}, {"high", high}, {"value", static_cast<double>(kIgnore)}});
}

Value* TokenLoss(Graph& graph, Builder& b, const std::string& kind, Value* logits) {
  Shape tokens(logits->type.shape.begin(), logits->type.shape.end() - 1);
  Value* labels = LossInput(graph, "labels", TensorType(DType::kI64, tokens));
  logits = Widened(b, logits);
  DType dtype = logits->type.dtype;
  if (kind == "lm" && tokens.back() <= 1) {
    throw NoOutput(graph,
                   "a sequence of one token has no next one to predict: bind a longer one, "
                   "or use --loss ce");
  }
  if (kind == "lm") labels = ShiftLeft(b, labels);
  Value* loss = b.Create("cross_entropy", {logits, labels}, {{"ignore_index", kIgnore}})->result();
  Value* weight;
  if (kind == "masked_lm") {
    weight = b.Cast(LossInput(graph, "loss_mask", TensorType(DType::kF32, tokens)), dtype);
    loss = b.Mul(loss, weight);
  } else {
    weight = b.Cast(b.Make("not_equal", {labels, b.Scalar(DType::kI64, kIgnore)}), dtype);
  }
  Value* sum = SumAll(b, loss);
  return b.Div(sum, SumAll(b, weight));
}

// What is called "loss" is what gradients are of, and an output: else it would be dead, and its
// gradient zero.
void MakeOutput(Graph& graph, const std::string& kind, Value* loss) {
  const auto own = graph.outputs.Find("loss");
  if (own == graph.outputs.end()) {
    graph.outputs.insert(graph.outputs.begin(), {"loss", loss});
  } else if (kind == "output:loss") {
    graph.outputs.Set(own, loss);
  } else if (own->value != loss) {
    throw Diagnostic("E1601", ExitCode::kBadModel, "--loss",
                     StrCat("the model has an output 'loss' of its own, and ", kind, " is another"),
                     "take that one with --loss output:loss, or leave it out with --drop loss");
  }
}

}  // namespace

Value* AttachLoss(Graph& graph, const std::string& kind, const std::string& output) {
  if (kind == "none") return nullptr;
  Builder b(graph);
  b.site = "loss";
  Value* loss = nullptr;
  if (kind.starts_with("output:")) {
    loss = FloatOutput(graph, kind.substr(7));
    if (loss->type.num_elements() != 1 || !IsFloat(loss->type.dtype)) {
      const bool several = loss->type.num_elements() > 1 && IsFloat(loss->type.dtype);
      throw NoOutput(graph, StrCat("output '", kind.substr(7), "' is not a float scalar",
                                   several ? " (where it is one in PyTorch: dynamo loses, with "
                                             "dynamic shapes, a sum() right behind "
                                             "cross_entropy(reduction='none'); reduction='sum' "
                                             "keeps it)"
                                           : ""));
    }
    loss = b.Reshape(loss, {});
  } else if (kind == "lm" || kind == "ce" || kind == "masked_lm") {
    Value* logits = FloatOutput(graph, output);
    if (logits->type.rank() < 2) throw NoOutput(graph, "logits need a batch and a vocabulary dim");
    loss = TokenLoss(graph, b, kind, logits);
  } else if (kind == "dot") {
    Value* y = FloatOutput(graph, output);
    Value* cotangent = LossInput(graph, "cotangent", y->type);
    loss = SumAll(b, b.Mul(Widened(b, y), Widened(b, cotangent)));
  } else {
    throw Diagnostic("E6101", ExitCode::kUsage, "--loss", StrCat("unknown loss '", kind, "'"),
                     "use lm, ce, masked_lm, dot, none or output:NAME");
  }
  MakeOutput(graph, kind, loss);
  return loss;
}

std::vector<std::string> DropOwnLoss(Graph& graph, const std::string& kind,
                                     std::vector<std::string> names) {
  const auto own = graph.outputs.Find("loss");
  auto is_loss = [](const std::string& name) { return GlobMatch(name, "loss"); };
  if (own == graph.outputs.end() || kind == "output:loss" || std::ranges::none_of(names, is_loss)) {
    return names;
  }
  graph.outputs.erase(own);
  std::erase_if(names, [&](const std::string& name) {
    auto named = [&](const Output& o) { return GlobMatch(name, o.name); };
    return is_loss(name) && std::ranges::none_of(graph.outputs, named);
  });
  return names;
}

void DropOutputs(Graph& graph, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    std::vector<std::string> have;
    std::vector<Output> kept;
    for (const Output& o : graph.outputs) {
      if (o.name != "loss") have.push_back(o.name);
      if (o.name == "loss" || !GlobMatch(name, o.name)) kept.push_back(o);
    }
    if (kept.size() == graph.outputs.size()) {
      throw Diagnostic("E6110", ExitCode::kUsage, "--drop",
                       StrCat("the model has no output '", name, "' to leave out"),
                       Choices(name, "outputs", have));
    }
    graph.outputs = std::move(kept);
  }
  if (!graph.outputs.empty()) return;
  throw Diagnostic("E6110", ExitCode::kUsage, "--drop", "nothing is left for the plan to compute",
                   "keep an output, or choose a loss");
}

}  // namespace shardc
