// Matrix products, norms, Softmax, losses.
#include <algorithm>

#include "frontend/onnx/convert_util.h"

namespace shardc::onnx_import {
namespace {

// A vector counts as a row on the left and as a column on the right, and its dim is dropped again.
void MatMul(NodeContext& c) { c.SetOutput(0, MatMulOf(c, c.input(0), c.input(1))); }

}  // namespace

Value* MatMulOf(NodeContext& c, Value* a, Value* b) {
  bool row = a->type.rank() == 1, column = b->type.rank() == 1;
  if (row) a = c.Reshape(a, {1, a->type.shape[0]});
  if (column) b = c.Reshape(b, {b->type.shape[0], 1});
  Value* y = c.Make("matmul", {a, b});
  Shape shape = y->type.shape;
  if (column) shape.pop_back();
  if (row) shape.erase(shape.end() - (column ? 1 : 2));
  return c.Reshape(y, std::move(shape));
}

Value* GemmOf(NodeContext& c) {
  Value *a = c.input(0), *b = c.input(1);
  if (a->type.rank() != 2 || b->type.rank() != 2) c.Fail("E1303", "Gemm needs two matrices");
  if (c.Int("transA", 0) != 0) a = c.Transpose(a, {1, 0});
  bool nt = c.Int("transB", 0) != 0;
  Value* y = Times(c, c.Make(nt ? "matmul_nt" : "matmul", {a, b}), c.Float("alpha", 1));
  if (c.has_input(2)) {
    y = Add(c, y, Times(c, InputOnto(c, 2, y->type.shape), c.Float("beta", 1)));
  }
  return y;
}

namespace {

void Gemm(NodeContext& c) { c.SetOutput(0, GemmOf(c)); }

// Over one axis; before opset 13 over all dims from the axis on, together.
void SoftmaxOf(NodeContext& c, Value* (*softmax)(NodeContext&, Value*, int)) {
  constexpr int kOverOneAxis = 13;
  Value* x = c.input(0);
  const Shape shape = x->type.shape;
  const int rank = x->type.rank();
  int axis = Axis(c, c.Int("axis", c.opset() < kOverOneAxis ? 1 : -1), rank);
  if (c.opset() >= kOverOneAxis || axis == rank - 1) return c.SetOutput(0, softmax(c, x, axis));
  Shape rows(shape.begin(), shape.begin() + axis);
  rows.push_back(NumElements(Shape(shape.begin() + axis, shape.end())));
  c.SetOutput(0, c.Reshape(softmax(c, c.Reshape(x, std::move(rows)), axis), shape));
}

void Softmax(NodeContext& c) {
  SoftmaxOf(c, [](NodeContext& node, Value* x, int axis) {
    return node.Make("softmax", {x}, {{"axis", int64_t{axis}}});
  });
}

void LogSoftmaxNode(NodeContext& c) { SoftmaxOf(c, LogSoftmax); }

// The dims from `axis` on as one, for norms that work on the last dim.
struct NormRows {
  Shape shape;       // of x
  Shape rows;        // as [leading..., size]
  Shape statistics;  // as [leading..., 1, ..., 1]
  int64_t size = 1;
};

NormRows RowsOf(NodeContext& c, const Shape& shape) {
  NormRows r;
  r.shape = shape;
  int axis = Axis(c, c.Int("axis", -1), static_cast<int>(shape.size()));
  r.rows.assign(shape.begin(), shape.begin() + axis);
  r.statistics = shape;
  std::fill(r.statistics.begin() + axis, r.statistics.end(), 1);
  r.size = NumElements(Shape(shape.begin() + axis, shape.end()));
  r.rows.push_back(r.size);
  return r;
}

// Input i as the norm's weight or bias; null when its shape does not cover the normalised dims or
// its type is another: it is applied by an op of its own then.
Value* NormVector(NodeContext& c, int i, const NormRows& r) {
  Value* v = c.InputOrNull(i);
  bool fits =
      v != nullptr && v->type.num_elements() == r.size && v->type.dtype == c.input(0)->type.dtype;
  size_t rank = fits ? v->type.shape.size() : 0;
  fits = fits && rank <= r.shape.size() &&
         std::equal(v->type.shape.begin(), v->type.shape.end(),
                    r.shape.end() - static_cast<int64_t>(rank));
  return fits ? c.Reshape(v, {r.size}) : nullptr;
}

// Output i of the node, of the type that the node says.
void SetStatistic(NodeContext& c, int i, Value* v, const NormRows& r) {
  if (i >= c.num_outputs() || !c.OutputWanted(i)) return;
  const DType type = HeldType(c, c.Int("stash_type", 1));
  c.SetOutput(i, c.Reshape(c.Cast(v, type), r.statistics));
}

void Normalize(NodeContext& c, std::string_view op, bool has_bias) {
  Value* x = c.input(0);
  NormRows r = RowsOf(c, x->type.shape);
  Value* weight = NormVector(c, 1, r);
  Value* bias = has_bias && weight ? NormVector(c, 2, r) : nullptr;
  std::vector<Value*> operands = {c.Reshape(x, r.rows)};
  if (weight) operands.push_back(weight);
  if (bias) operands.push_back(bias);
  std::vector<Value*> results = c.MakeAll(op, operands, {{"eps", c.Float("epsilon", 1e-5f)}});
  Value* y = c.Reshape(results[0], r.shape);
  // The scale decides the type of the result.
  if (!weight) y = Mul(c, c.Cast(y, c.input(1)->type.dtype), InputOnto(c, 1, r.shape));
  if (has_bias && !bias && c.has_input(2)) y = Add(c, y, InputOnto(c, 2, r.shape));
  c.SetOutput(0, y);
  for (size_t i = 1; i < results.size(); ++i) SetStatistic(c, static_cast<int>(i), results[i], r);
}

void LayerNormalization(NodeContext& c) { Normalize(c, "layer_norm", true); }
void RmsNormalization(NodeContext& c) { Normalize(c, "rms_norm", false); }

// [n, classes, d...] with the classes last.
Value* ClassesLast(NodeContext& c, Value* x) {
  if (x->type.rank() < 2) c.Fail("E1303", "the scores of a loss need a class dim");
  Ints perm = Count(x->type.rank());
  std::rotate(perm.begin() + 1, perm.begin() + 2, perm.end());
  return c.Transpose(x, std::move(perm));
}

Value* Ignored(NodeContext& c, Value* labels) {
  if (!c.HasAttr("ignore_index")) return nullptr;
  double index = static_cast<double>(c.Int("ignore_index", 0));
  return c.Make("equal", {labels, Like(c, labels, index)});
}

// What the loss of each label counts: its class's weight (input 2), or 1, and nothing where it is
// ignored; null where all count 1.
Value* WeightsOf(NodeContext& c, Value* labels, DType type) {
  Value* ignored = Ignored(c, labels);
  if (!c.has_input(2)) return ignored ? c.Cast(c.Make("not", {ignored}), type) : nullptr;
  if (ignored) labels = Where(c, ignored, Like(c, labels, 0), labels);
  Value* weights = c.Cast(LookUp(c, c.input(2), labels), type);
  return ignored ? Where(c, ignored, Like(c, weights, 0), weights) : weights;
}

Value* ReduceLoss(NodeContext& c, Value* loss, Value* weights) {
  std::string reduction = c.String("reduction", "mean");
  if (c.has_input(2)) loss = Mul(c, loss, weights);
  if (reduction == "none") return loss;
  if (reduction != "mean" && reduction != "sum") {
    c.Fail("E1303", StrCat("there is no reduction \"", reduction, "\""));
  }
  Ints all = Count(loss->type.rank());
  if (reduction == "mean" && !weights) return Reduce(c, "reduce_mean", loss, all, false);
  Value* sum = Reduce(c, "reduce_sum", loss, all, false);
  return reduction == "sum" ? sum : Div(c, sum, Reduce(c, "reduce_sum", weights, all, false));
}

// Of the type of the scores, input 0, whatever it was computed in.
void SetLoss(NodeContext& c, Value* loss, Value* labels) {
  Value* reduced = ReduceLoss(c, loss, WeightsOf(c, labels, loss->type.dtype));
  c.SetOutput(0, c.Cast(reduced, c.input(0)->type.dtype));
}

// loss and lse of every label.
std::vector<Value*> CrossEntropy(NodeContext& c, Value* logits, Value* labels) {
  Attributes attrs;
  if (c.HasAttr("ignore_index")) attrs.Set("ignore_index", c.Int("ignore_index", 0));
  return c.MakeAll("cross_entropy", {ClassesLast(c, logits), labels}, std::move(attrs));
}

void SoftmaxCrossEntropyLoss(NodeContext& c) {
  Value *scores = c.input(0), *labels = c.input(1);
  SetLoss(c, CrossEntropy(c, scores, labels)[0], labels);
  if (c.num_outputs() > 1 && c.OutputWanted(1)) c.SetOutput(1, LogSoftmax(c, scores, 1));
}

Op* Producer(const Value* v, std::string_view op) {
  return v->producer && v->producer->name() == op ? v->producer : nullptr;
}

// The x of LogSoftmax(x) over dim 1 as this importer writes it, else null.
Value* LogSoftmaxOperand(const Value* v) {
  Op* sub = Producer(v, "sub");
  Op* log = sub ? Producer(sub->operands[1], "log") : nullptr;
  Op* sum = log ? Producer(log->operands[0], "reduce_sum") : nullptr;
  Op* exp = sum ? Producer(sum->operands[0], "exp") : nullptr;
  Op* shifted = exp ? Producer(exp->operands[0], "sub") : nullptr;
  Op* max = shifted ? Producer(shifted->operands[1], "reduce_max") : nullptr;
  bool found = max && sub->operands[0] == shifted->result() &&
               max->operands[0] == shifted->operands[0] && sum->attrs.IntList("axes") == Ints{1} &&
               max->attrs.IntList("axes") == Ints{1};
  return found ? shifted->operands[0] : nullptr;
}

// -input[label]: cross_entropy takes the logarithm of the sum of exp(input) off, which is 0 after a
// LogSoftmax and given back otherwise.
void NegativeLogLikelihoodLoss(NodeContext& c) {
  Value *input = c.input(0), *labels = c.input(1);
  Value* logits = LogSoftmaxOperand(input);
  std::vector<Value*> results = CrossEntropy(c, logits ? logits : input, labels);
  Value* loss = results[0];
  if (!logits) {
    Value *lse = results[1], *ignored = Ignored(c, labels);
    loss = Sub(c, loss, ignored ? Where(c, ignored, Like(c, lse, 0), lse) : lse);
  }
  SetLoss(c, loss, labels);
}

}  // namespace

void AddNeuralConverters(ConverterTable& table) {
  table.insert({{"MatMul", MatMul},
                {"Gemm", Gemm},
                {"Softmax", Softmax},
                {"LogSoftmax", LogSoftmaxNode},
                {"LayerNormalization", LayerNormalization},
                {"RMSNormalization", RmsNormalization},
                {"SimplifiedLayerNormalization", RmsNormalization},
                {"com.microsoft::SimplifiedLayerNormalization", RmsNormalization},
                {"SoftmaxCrossEntropyLoss", SoftmaxCrossEntropyLoss},
                {"NegativeLogLikelihoodLoss", NegativeLogLikelihoodLoss}});
  AddEinsumConverter(table);
  AddAttentionConverters(table);
  AddConvConverter(table);
  AddPoolConverters(table);
  AddResizeConverters(table);
  AddNormConverters(table);
  AddQuantizeConverters(table);
  AddDftConverter(table);
  AddRecurrentConverters(table);
  AddLinearAttentionConverter(table);
  AddFusedConverters(table);
  AddFusedAttentionConverters(table);
}

}  // namespace shardc::onnx_import
