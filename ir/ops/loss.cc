// Cross entropy over the last dim of the logits, and its pieces for a cut vocabulary. With e the
// label smoothing and V the global vocabulary: loss = lse - (1 - e) logit[label] - e / V *
// sum(logits), as torch.nn.CrossEntropyLoss.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ir/builder.h"
#include "ir/op_def.h"
#include "ir/ops/infer_util.h"
#include "ir/ops/reference_floats.h"
#include "ir/ops/reference_util.h"

namespace shardc {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

int64_t IgnoreIndex(const Attributes& attrs) { return attrs.Int("ignore_index", -100); }
const TensorType& LabelsOf(const Op& op) {
  size_t i = 0;
  while (IsFloat(op.operands[i]->type.dtype)) ++i;
  return op.operands[i]->type;
}
// Of the logits, whose rows may be longer where attribute "classes" says so.
int64_t ClassesOf(const KernelCall& call, const TensorView& logits) {
  return call.attrs->Int("classes", call.GlobalDim(logits, logits.rank() - 1));
}
double Smoothing(const Attributes& attrs) { return attrs.Float("label_smoothing", 0.0); }

void CheckAttributes(std::string_view op, const Attributes& attrs, const TensorType& labels) {
  CheckOrigin(op, attrs, labels, "labels");
  double e = Smoothing(attrs);
  if (!(e >= 0 && e <= 1)) {
    InferError(op, StrCat("label_smoothing must lie between 0 and 1, not ", e));
  }
}

void CheckLogits(std::string_view op, const Attributes& attrs, const TensorType& logits,
                 const TensorType& labels) {
  RequireFloat(op, logits, "the logits");
  RequireInteger(op, labels, "the labels");
  if (logits.rank() < 1) InferError(op, "needs logits with a vocabulary dim, not a scalar");
  if (attrs.Int("classes", 0) < 0 || attrs.Int("classes", 0) > logits.shape.back()) {
    InferError(op, StrCat("logits ", ShapeToString(logits.shape), " do not hold ",
                          attrs.Int("classes"), " classes"));
  }
  if (labels.shape != WithoutLast(logits.shape)) {
    InferError(op, StrCat("logits ", ShapeToString(logits.shape), " need labels of shape ",
                          ShapeToString(WithoutLast(logits.shape)), ", not ",
                          ShapeToString(labels.shape)));
  }
}

TensorType Statistic(const TensorType& logits) {
  return TensorType(logits.dtype, WithoutLast(logits.shape));
}

// The rows of logits that are not padding, with their labels checked.
class Rows {
 public:
  Rows(std::string_view op, const KernelCall& call, const TensorView& logits,
       const TensorView& labels)
      : logits_(logits), runs_(call.Runs(logits, logits.rank() - 1)) {
    if (call.attrs->Has("classes")) runs_ = {{0, 0, call.attrs->Int("classes")}};
    Init(op, call, labels, ClassesOf(call, logits));
  }
  Rows(std::string_view op, const KernelCall& call, const TensorView& labels, int64_t classes)
      : logits_(labels) {
    Init(op, call, labels, classes);
  }

  struct Row {
    int64_t local;  // among the physical rows
    bool counts;    // the label is not ignored
    int64_t label;
  };
  const std::vector<Row>& rows() const { return rows_; }
  const std::vector<Run>& runs() const { return runs_; }
  // Calls fn(flat index of the logit, class) for the classes that this rank holds.
  template <typename Fn>
  void ForEachClass(const Row& row, Fn fn) const {
    for (const Run& run : runs_) {
      for (int64_t i = 0; i < run.size; ++i) {
        fn(row.local * logits_.shape.back() + run.local + i, run.global + i);
      }
    }
  }

 private:
  void Init(std::string_view op, const KernelCall& call, const TensorView& labels,
            int64_t classes) {
    const int64_t ignored = IgnoreIndex(*call.attrs);
    reference::CheckRange(call, labels, op, "labels", 0, classes, ignored);
    reference::ForEachValid(call, labels, [&](int64_t at) {
      const int64_t label = reference::ReadInt(labels, at);
      rows_.push_back({at, label != ignored, label});
    });
  }

  const TensorView& logits_;
  std::vector<Run> runs_;
  std::vector<Row> rows_;
};

void Reference(const KernelCall& call) {
  std::vector<double> x = ToDoubles(call.in[0]);
  std::vector<double> loss(call.out[0].num_elements()), lse(call.out[1].num_elements());
  Rows rows("cross_entropy", call, call.in[0], call.in[1]);
  double smoothing = Smoothing(*call.attrs);
  double classes = static_cast<double>(ClassesOf(call, call.in[0]));
  for (const Rows::Row& row : rows.rows()) {
    double max = -kInfinity, sum_exp = 0, sum = 0, target = 0;
    rows.ForEachClass(row, [&](int64_t at, int64_t) { max = std::max(max, x[at]); });
    rows.ForEachClass(row, [&](int64_t at, int64_t c) {
      sum_exp += std::exp(x[at] - max);
      sum += x[at];
      if (c == row.label) target = x[at];
    });
    lse[row.local] = max + std::log(sum_exp);
    if (!row.counts) continue;
    loss[row.local] = lse[row.local] - (1 - smoothing) * target;
    // Kept apart: a masked logit of -inf must not make 0 * inf when nothing is smoothed.
    if (smoothing != 0) loss[row.local] -= smoothing / classes * sum;
  }
  FromDoubles(loss, call.out[0]);
  FromDoubles(lse, call.out[1]);
}

void ReferenceGrad(const KernelCall& call) {
  std::vector<double> grad = ToDoubles(call.in[0]), x = ToDoubles(call.in[1]);
  std::vector<double> lse = ToDoubles(call.in[3]), dx(x.size());
  Rows rows("cross_entropy_grad", call, call.in[1], call.in[2]);
  double smoothing = Smoothing(*call.attrs);
  double classes = static_cast<double>(ClassesOf(call, call.in[1]));
  for (const Rows::Row& row : rows.rows()) {
    if (!row.counts) continue;
    rows.ForEachClass(row, [&](int64_t at, int64_t c) {
      double p = std::exp(x[at] - lse[row.local]);
      double target = (c == row.label ? 1 - smoothing : 0) + smoothing / classes;
      dx[at] = grad[row.local] * (p - target);
    });
  }
  FromDoubles(dx, call.out[0]);
}

void ReferenceStats(const KernelCall& call) {
  std::vector<double> x = ToDoubles(call.in[0]), max = ToDoubles(call.in[2]);
  std::vector<double> sum_exp(max.size()), target(max.size()), sum(max.size());
  Rows rows("softmax_stats", call, call.in[0], call.in[1]);
  for (const Rows::Row& row : rows.rows()) {
    int64_t r = row.local;
    rows.ForEachClass(row, [&](int64_t at, int64_t c) {
      sum_exp[r] += std::exp(x[at] - max[r]);
      sum[r] += x[at];
      if (row.counts && c == row.label) target[r] = x[at];
    });
  }
  FromDoubles(sum_exp, call.out[0]);
  FromDoubles(target, call.out[1]);
  if (call.out.size() > 2) FromDoubles(sum, call.out[2]);
}

void ReferenceCombine(const KernelCall& call) {
  bool smooth = call.in.size() == 5;
  std::vector<double> max = ToDoubles(call.in[0]), sum_exp = ToDoubles(call.in[1]);
  std::vector<double> target = ToDoubles(call.in[2]), sum(max.size());
  if (smooth) sum = ToDoubles(call.in[3]);
  std::vector<double> loss(max.size()), lse(max.size());
  int64_t classes = call.attrs->Int("classes");
  double smoothing = Smoothing(*call.attrs);
  Rows rows("cross_entropy_combine", call, call.in.back(), classes);
  for (const Rows::Row& row : rows.rows()) {
    int64_t r = row.local;
    lse[r] = max[r] + std::log(sum_exp[r]);
    if (!row.counts) continue;
    loss[r] = lse[r] - (1 - smoothing) * target[r];
    if (smooth) loss[r] -= smoothing / static_cast<double>(classes) * sum[r];
  }
  FromDoubles(loss, call.out[0]);
  FromDoubles(lse, call.out[1]);
}

Value* AsStatistic(Builder& builder, Value* logits) {
  return builder.Cast(logits, StatisticType(logits->type.dtype));
}

std::vector<Value*> Expand(Builder& builder, const Op& op) {
  Value *logits = AsStatistic(builder, op.operands[0]), *labels = op.operands[1];
  bool smooth = Smoothing(op.attrs) != 0;
  Value* max = builder.ReduceMax(logits, {logits->type.rank() - 1});
  Attributes stats_attrs = {{"ignore_index", IgnoreIndex(op.attrs)}};
  if (smooth) stats_attrs.Set("sum_logits", true);
  Op* stats = builder.Create("softmax_stats", {logits, labels, max},
                             WithOriginOf(op, std::move(stats_attrs)));
  std::vector<Value*> parts = {max};
  parts.insert(parts.end(), stats->results.begin(), stats->results.end());
  parts.push_back(labels);
  Op* combine = builder.Create("cross_entropy_combine", std::move(parts),
                               {{"ignore_index", IgnoreIndex(op.attrs)},
                                {"label_smoothing", Smoothing(op.attrs)},
                                {"classes", logits->type.shape.back()}});
  return combine->results;
}

std::vector<Value*> Gradient(const GradientArgs& args) {
  Builder& builder = args.builder;
  Value *logits = args.op.operands[0], *lse = args.op.results[1], *sum = nullptr;
  if (Value* dloss = args.result_grads[0]) {
    Attributes attrs = args.op.attrs;
    if (IsHalf(logits->type.dtype)) {
      attrs.Set("out", std::string(DTypeName(logits->type.dtype)));
    }
    sum = builder.Make("cross_entropy_grad", {dloss, logits, args.op.operands[1], lse}, attrs);
  }
  if (Value* dlse = args.result_grads[1]) {
    Shape keep = logits->type.shape;
    keep.back() = 1;
    Value* wide = AsStatistic(builder, logits);
    Value* p = builder.Make("exp", {builder.Sub(wide, builder.Reshape(lse, keep))});
    Value* more = builder.Mul(p, builder.Reshape(dlse, keep));
    more = builder.Cast(more, logits->type.dtype);
    sum = sum ? builder.Add(sum, more) : more;
  }
  return {sum, nullptr};
}

// A label is a place among all classes.
ShardingRule PlaceClasses(ShardingRule rule, size_t logits) {
  for (int f : rule.operands[logits].back().factors) {
    rule.factors[f].placed = true;
  }
  return rule;
}

OpDef Def(std::string_view name, int operands, bool smoothing) {
  OpDef def;
  def.name = name;
  def.min_operands = def.max_operands = operands;
  def.attrs = {{"ignore_index", AttrKind::kInt}, {"origin", AttrKind::kInts}};
  def.resized = [](const Op& op, std::span<const TensorType>, const Shape& origin) {
    const auto rank = static_cast<int64_t>(LabelsOf(op).shape.size());
    return WithOriginMoved(op.attrs, Shape(origin.begin(), origin.begin() + rank));
  };
  if (smoothing) def.attrs.push_back({"label_smoothing", AttrKind::kFloat});
  def.flops = [](const Op& op) { return 5 * op.in(0).num_elements(); };
  def.ignores_padding = true;
  return def;
}

// Labels below the classes of the logits in front of them.
int64_t LabelLimit(int operand, const InferArgs& args) {
  return operand == 1 ? args[0].shape.back() : 0;
}

OpDef CrossEntropyDef() {
  OpDef def = Def("cross_entropy", 2, true);
  def.cpu_halves = CpuHalves::kBf16Result;
  def.narrow_operands = {0};
  def.infer = [](const InferArgs& args) {
    CheckLogits("cross_entropy", args.attrs, args[0], args[1]);
    CheckAttributes("cross_entropy", args.attrs, args[1]);
    TensorType statistic = Statistic(args[0]);
    statistic.dtype = StatisticType(statistic.dtype);
    return std::vector<TensorType>(2, statistic);
  };
  def.index_limit = LabelLimit;
  def.rule = [](const Op& op) { return EinsumRule(op, "... v?, ... -> ..., ..."); };
  def.gradient = Gradient;
  def.reference = Reference;
  def.expand = Expand;
  return def;
}

OpDef GradDef() {
  OpDef def = Def("cross_entropy_grad", 4, true);
  def.infer = [](const InferArgs& args) {
    constexpr std::string_view op = "cross_entropy_grad";
    CheckLogits(op, args.attrs, args[1], args[2]);
    CheckAttributes(op, args.attrs, args[2]);
    const DType wide = args[0].dtype;
    RequireShape(op, args[0], args[2].shape, "the gradient of the loss");
    RequireNarrowTensor(op, args[1], wide, args[1].shape, "the logits");
    RequireTensor(op, args[3], wide, args[2].shape, "lse");
    return std::vector<TensorType>{TensorType(OutType(op, args.attrs, wide), args[1].shape)};
  };
  def.attrs.push_back({"out", AttrKind::kString});
  def.typed_result = 0;
  def.narrow_operands = {1};
  def.cpu_halves = CpuHalves::kBf16Result;
  def.rule = [](const Op& op) {
    return PlaceClasses(EinsumRule(op, "..., ... v, ..., ... -> ... v", {{0}}), 1);
  };
  def.no_gradient = kSecondDerivative;
  def.flops = [](const Op& op) { return 4 * op.in(1).num_elements(); };
  def.reference = ReferenceGrad;
  // A row's gradients follow from the row's logits one by one, but for the target's, read first.
  def.in_place = [](int operand, int) { return operand == 1; };
  // Padded classes get zero; padded rows too, because their dloss is.
  def.keeps_zero_padding = true;
  return def;
}

OpDef StatsDef() {
  OpDef def = Def("softmax_stats", 3, false);
  def.cpu_halves = CpuHalves::kBf16Result;
  def.narrow_operands = {0};
  def.attrs.push_back({"sum_logits", AttrKind::kBool});
  def.infer = [](const InferArgs& args) {
    CheckLogits("softmax_stats", args.attrs, args[0], args[1]);
    CheckAttributes("softmax_stats", args.attrs, args[1]);
    RequireFloat("softmax_stats", args[2], "max");
    RequireShape("softmax_stats", args[2], args[1].shape, "max");
    RequireNarrowTensor("softmax_stats", args[0], args[2].dtype, args[0].shape, "the logits");
    return std::vector<TensorType>(args.attrs.Bool("sum_logits") ? 3 : 2, args[2]);
  };
  def.index_limit = LabelLimit;
  def.rule = [](const Op& op) {
    return PlaceClasses(EinsumRule(op, op.results.size() == 3 ? "... v, ..., ... -> ..., ..., ..."
                                                              : "... v, ..., ... -> ..., ..."),
                        0);
  };
  def.no_gradient = "made by sharding, which comes after differentiation";
  def.reference = ReferenceStats;
  return def;
}

OpDef CombineDef() {
  OpDef def = Def("cross_entropy_combine", 4, true);
  def.max_operands = 5;
  def.attrs.push_back({"classes", AttrKind::kInt, true});
  def.infer = [](const InferArgs& args) {
    constexpr std::string_view op = "cross_entropy_combine";
    RequireFloat(op, args[0], "max");
    for (size_t i = 1; i + 1 < args.size(); ++i) {
      RequireTensor(op, args[i], args[0].dtype, args[0].shape, "a statistic");
    }
    RequireInteger(op, args[args.size() - 1], "the labels");
    RequireShape(op, args[args.size() - 1], args[0].shape, "the labels");
    CheckAttributes(op, args.attrs, args[args.size() - 1]);
    if ((Smoothing(args.attrs) != 0) != (args.size() == 5)) {
      InferError(op, "needs the sum of the logits when, and only when, labels are smoothed");
    }
    return std::vector<TensorType>(2, TensorType(args[0].dtype, args[0].shape));
  };
  def.rule = [](const Op& op) {
    return EinsumRule(op, op.operands.size() == 5 ? "..., ..., ..., ..., ... -> ..., ..."
                                                  : "..., ..., ..., ... -> ..., ...");
  };
  def.no_gradient = "made by sharding, which comes after differentiation";
  def.reference = ReferenceCombine;
  return def;
}

}  // namespace

void RegisterLossOps(OpRegistry& registry) {
  registry.Add(CrossEntropyDef());
  registry.Add(GradDef());
  registry.Add(StatsDef());
  registry.Add(CombineDef());
}

}  // namespace shardc
