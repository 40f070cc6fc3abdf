// Matrix products. Formulas of the gradients: y = a b, da = dy b^T, db = a^T dy.
#include "ir/ops/matmul.h"

#include <algorithm>
#include <string>

#include "ir/builder.h"
#include "ir/op_def.h"
#include "ir/ops/infer_util.h"
#include "ir/ops/reference_floats.h"

namespace shardc {
namespace {

Shape Leading(const Shape& shape) { return Shape(shape.begin(), shape.end() - 2); }

Shape WithMatrix(Shape leading, int64_t rows, int64_t columns) {
  leading.push_back(rows);
  leading.push_back(columns);
  return leading;
}

// The result, of which an operand 2 must be a tensor too.
std::vector<TensorType> WithAddend(std::string_view op, const InferArgs& args, TensorType result) {
  if (args.size() > 2) {
    RequireTensor(op, args[2], result.dtype, result.shape, "what the product is added to");
  }
  return {std::move(result)};
}

// What of the rows of the left operand counts: all of them, or attribute "cols" elements.
int64_t ColsOf(const Attributes& attrs, const Shape& a) { return attrs.Int("cols", a.back()); }

void CheckCols(std::string_view op, const Attributes& attrs, const Shape& a, bool one_matrix) {
  const int64_t cols = ColsOf(attrs, a);
  if (cols < 0 || cols > a.back()) {
    InferError(op, StrCat("rows of length ", a.back(), " do not hold ", cols, " columns"));
  }
  if (!one_matrix && (attrs.Has("cols") || attrs.Has("length"))) {
    InferError(op, "takes rows that are longer than what counts for one matrix only");
  }
}

// matmul (b[k, n]) and matmul_nt (b[n, k]).
std::vector<TensorType> InferProduct(std::string_view op, const InferArgs& args, bool transposed) {
  const TensorType &a = args[0], &b = args[1];
  RequireFloat(op, a, "left operand");
  RequireDType(op, b, a.dtype, "the right operand");
  if (a.rank() < 2 || b.rank() < 2) {
    InferError(op, StrCat("needs operands of at least two dims, not ", ShapeToString(a.shape),
                          " and ", ShapeToString(b.shape)));
  }
  int64_t b_rows = b.shape[b.rank() - 2], b_columns = b.shape[b.rank() - 1];
  int64_t k = transposed ? b_columns : b_rows, n = transposed ? b_rows : b_columns;
  CheckCols(op, args.attrs, a.shape, b.rank() == 2);
  const int64_t cols = ColsOf(args.attrs, a.shape), length = args.attrs.Int("length", n);
  if (length < n) InferError(op, StrCat("rows of length ", length, " do not hold ", n, " columns"));
  if (cols != k) {
    InferError(
        op, StrCat("sums over the last dim of the left operand (", cols, ") and ",
                   transposed ? "the last" : "the last but one", " of the right (", k,
                   "), which differ: ", ShapeToString(a.shape), " and ", ShapeToString(b.shape)));
  }
  Shape leading = BroadcastShapes(op, Leading(a.shape), Leading(b.shape));
  return WithAddend(op, args,
                    TensorType(OutType(op, args.attrs, a.dtype),
                               WithMatrix(leading, a.shape[a.rank() - 2], length)));
}

std::vector<TensorType> InferTn(const InferArgs& args) {
  const TensorType &a = args[0], &b = args[1];
  RequireFloat("matmul_tn", a, "left operand");
  RequireDType("matmul_tn", b, a.dtype, "the right operand");
  int64_t batch = args.attrs.Int("batch", 0);
  if (batch < 0 || batch > a.rank() - 2) {
    InferError("matmul_tn", StrCat("batch ", batch, " leaves no matrix of a left operand ",
                                   ShapeToString(a.shape)));
  }
  if (a.rank() != b.rank() || WithoutLast(a.shape) != WithoutLast(b.shape)) {
    InferError("matmul_tn", StrCat("all dims but the last must be equal: ", ShapeToString(a.shape),
                                   " and ", ShapeToString(b.shape)));
  }
  CheckCols("matmul_tn", args.attrs, a.shape, batch == 0);
  Shape lead(a.shape.begin(), a.shape.begin() + batch);
  return WithAddend("matmul_tn", args,
                    TensorType(OutType("matmul_tn", args.attrs, a.dtype),
                               WithMatrix(lead, ColsOf(args.attrs, a.shape), b.shape.back())));
}

// y[m, n] = sum over k of a b, all by strides.
struct Product {
  int64_t m, k, n;
  int64_t a_m, a_k, b_k, b_n, y_m;
};

void Multiply(const Product& p, const double* a, const double* b, double* y) {
  for (int64_t i = 0; i < p.m; ++i) {
    double* row = y + i * p.y_m;
    std::fill(row, row + p.n, 0.0);
    for (int64_t k = 0; k < p.k; ++k) {
      double left = a[i * p.a_m + k * p.a_k];
      for (int64_t j = 0; j < p.n; ++j) row[j] += left * b[k * p.b_k + j * p.b_n];
    }
  }
}

// Flat index over `leading` of the element that broadcasting maps to flat index `i` over `to`.
int64_t BroadcastIndex(int64_t i, const Shape& to, const Shape& leading) {
  int64_t index = 0, stride = 1;
  for (size_t d = 0; d < to.size(); ++d) {
    int64_t size = to[to.size() - 1 - d], at = i % size;
    i /= size;
    if (d >= leading.size()) continue;
    int64_t mine = leading[leading.size() - 1 - d];
    if (mine != 1) index += at * stride;
    stride *= mine;
  }
  return index;
}

// Adds operand 2, if there is one, and rounds.
void Finish(const KernelCall& call, std::vector<double> y) {
  if (call.in.size() > 2) {
    std::vector<double> x = ToDoubles(call.in[2]);
    for (size_t i = 0; i < y.size(); ++i) y[i] += x[i];
  }
  FromDoubles(y, call.out[0]);
}

void ReferenceProduct(const KernelCall& call, bool transposed) {
  const TensorView &a = call.in[0], &b = call.in[1], &y = call.out[0];
  const int64_t m = y.shape[y.rank() - 2], n = b.shape[b.rank() - (transposed ? 2 : 1)],
                k = ColsOf(*call.attrs, a.shape);
  SHARDC_CHECK(b.shape[b.rank() - (transposed ? 1 : 2)] == k && n <= y.shape.back(),
               "local shapes disagree");
  Product p{m, k, n, a.shape.back(), 1, transposed ? 1 : n, transposed ? k : 1, y.shape.back()};
  std::vector<double> av = ToDoubles(a), bv = ToDoubles(b), yv(y.num_elements());
  Shape lead = Leading(y.shape), a_lead = Leading(a.shape), b_lead = Leading(b.shape);
  for (int64_t i = 0, count = NumElements(lead); i < count; ++i) {
    Multiply(p, av.data() + BroadcastIndex(i, lead, a_lead) * m * p.a_m,
             bv.data() + BroadcastIndex(i, lead, b_lead) * k * n, yv.data() + i * m * p.y_m);
  }
  Finish(call, std::move(yv));
}

void ReferenceTn(const KernelCall& call) {
  const TensorView &a = call.in[0], &b = call.in[1], &y = call.out[0];
  const int64_t m = ColsOf(*call.attrs, a.shape), n = b.shape.back(), row = a.shape.back();
  int64_t batches = 1, k = 1;
  int64_t batch = call.attrs->Int("batch", 0);
  for (int d = 0; d + 1 < a.rank(); ++d) {
    SHARDC_CHECK(a.shape[d] == b.shape[d], "local shapes disagree");
    (d < batch ? batches : k) *= a.shape[d];
  }
  std::vector<double> av = ToDoubles(a), bv = ToDoubles(b), yv(y.num_elements());
  for (int64_t i = 0; i < batches; ++i) {
    Multiply({m, k, n, 1, row, n, 1, n}, av.data() + i * k * row, bv.data() + i * k * n,
             yv.data() + i * m * n);
  }
  Finish(call, std::move(yv));
}

// The sum over all uses of b of left^T right: both have the product's leading dims, b has `shape`.
Value* WeightGradient(Builder& builder, Value* left, Value* right, const Shape& shape,
                      const Shape& leading) {
  if (shape.size() == 2) return builder.Make("matmul_tn", {left, right}, {{"batch", int64_t{0}}});
  // Operands that broadcast are repeated: matmul_tn pairs equal leading dims.
  auto full = [&](Value* v) {
    const Shape& s = v->type.shape;
    return builder.BroadcastTo(v, WithMatrix(leading, s[s.size() - 2], s.back()));
  };
  Value* each = builder.Make("matmul_tn", {full(left), full(right)},
                             {{"batch", static_cast<int64_t>(leading.size())}});
  return builder.SumTo(each, shape);
}

// The first `cols` elements of rows, and rows with zeros up to `length` elements.
Value* FirstOf(Builder& builder, Value* v, int64_t cols) {
  return builder.Slice(v, v->type.rank() - 1, 0, cols);
}
Value* Lengthened(Builder& builder, Value* v, int64_t length) {
  if (v->type.shape.back() == length) return v;
  Ints low(v->type.shape.size(), 0), high = low;
  high.back() = length - v->type.shape.back();
  return builder.Make("pad", {v}, {{"low", low}, {"high", high}, {"value", 0.0}});
}

std::vector<Value*> ProductGradient(const GradientArgs& args, bool transposed) {
  Builder& builder = args.builder;
  Value *a = args.op.operands[0], *b = args.op.operands[1], *dy = args.result_grads[0];
  std::vector<Value*> grads(args.op.operands.size());
  if (grads.size() > 2) grads[2] = dy;
  dy = builder.Cast(dy, a->type.dtype);
  const int64_t length = a->type.shape.back();
  a = FirstOf(builder, a, ColsOf(args.op.attrs, a->type.shape));
  dy = FirstOf(builder, dy, b->type.shape[b->type.shape.size() - (transposed ? 2 : 1)]);
  if (args.wanted[0]) {
    Value* da = builder.Make(transposed ? "matmul" : "matmul_nt", {dy, b});
    grads[0] = Lengthened(builder, builder.SumTo(da, a->type.shape), length);
  }
  if (args.wanted[1]) {
    grads[1] = WeightGradient(builder, transposed ? dy : a, transposed ? a : dy, b->type.shape,
                              Leading(dy->type.shape));
  }
  return grads;
}

std::vector<Value*> TnGradient(const GradientArgs& args) {
  Builder& builder = args.builder;
  Value *a = args.op.operands[0], *b = args.op.operands[1], *dy = args.result_grads[0];
  int64_t batch = args.op.attrs.Int("batch", 0);
  // A batched product has its one row dim after the batch dims; without batch any dims may lead.
  auto rows_in_one = [&](Value* v) {
    if (batch == 0) return v;
    const Shape& s = v->type.shape;
    Shape lead(s.begin(), s.begin() + batch);
    int64_t rows = NumElements(Shape(s.begin() + batch, s.end() - 1));
    return builder.Reshape(v, WithMatrix(lead, rows, s.back()));
  };
  std::vector<Value*> grads(args.op.operands.size());
  if (grads.size() > 2) grads[2] = dy;
  dy = builder.Cast(dy, a->type.dtype);
  const int64_t length = a->type.shape.back();
  a = FirstOf(builder, a, ColsOf(args.op.attrs, a->type.shape));
  if (args.wanted[0]) {
    Value* da = builder.Reshape(builder.Make("matmul_nt", {rows_in_one(b), dy}), a->type.shape);
    grads[0] = Lengthened(builder, da, length);
  }
  if (args.wanted[1]) {
    grads[1] = builder.Reshape(builder.Make("matmul", {rows_in_one(a), dy}), b->type.shape);
  }
  return grads;
}

// The rule of a product; with an operand 2 its sum over the factors `summed` is whole, for it could
// not be complete before it is added. Partial sums pass through one side, with that operand.
ShardingRule ProductRule(const Op& op, std::string operands, const std::string& result,
                         const std::vector<std::string>& summed) {
  if (op.operands.size() == 2) return EinsumRule(op, operands + " -> " + result, {{0}, {1}});
  for (const std::string& f : summed) operands.replace(operands.find(f + " "), f.size(), f + "!");
  return EinsumRule(op, StrCat(operands, ", ", result, " -> ", result), {{0, 2}, {1, 2}});
}

ShardingRule TnRule(const Op& op) {
  std::string shared, batches;
  std::vector<std::string> summed;
  int batch = static_cast<int>(op.attrs.Int("batch", 0));
  for (int d = 0; d + 1 < op.in(0).rank(); ++d) {
    shared += StrCat(d < batch ? "B" : "c", d, " ");
    if (d < batch) {
      batches += StrCat("B", d, " ");
    } else {
      summed.push_back(StrCat("c", d));
    }
  }
  const bool longer = op.attrs.Has("cols");
  return ProductRule(op, StrCat(shared, longer ? "l!, " : "m, ", shared, "n"),
                     batches + (longer ? "m! n" : "m n"), summed);
}

// What products pack to be fast: in f32 a stretch of the longer of rows and columns, by blocks of
// the sum; in halves an operand, or part of a large one, and f32 sums where a long sum ends in
// halves (runtime/cpu/kernels). Those of f16 are made in f32.
int64_t WorkBytes(const Op& op, bool nt, bool tn) {
  const Shape &a = op.in(0).shape, &b = op.in(1).shape;
  if (tn ? op.attrs.Int("batch", 0) > 0 : b.size() > 2) return 0;
  constexpr int64_t kFew = 256, kBlock = 384, kMost = 24 << 20, kPacked = 16 << 20;
  constexpr int64_t kLongSum = 2048, kSums = 12 << 20, kFewSums = 512;
  const int64_t n = nt ? b[0] : b.back();
  const int64_t last = std::max<int64_t>(ColsOf(op.attrs, a), 1),
                rest = NumElements(a) / std::max<int64_t>(a.back(), 1);
  const int64_t rows = tn ? last : rest, k = tn ? rest : last;
  const DType type = op.in(0).dtype == DType::kF16 ? DType::kF32 : op.in(0).dtype;
  const int64_t size = DTypeSize(type);
  if (size > 2) return std::min(kMost, size * kBlock * std::max(rows, n));
  if (rows < kFew) return 0;
  int64_t sums = 0;
  if (k > kLongSum && DTypeSize(op.out().dtype) == size) {
    sums = std::min(4 * rows * n, std::max(kSums, kFewSums * std::max(rows, n)));
  }
  return std::min(size * k * n, kPacked) + sums;
}

OpDef MatmulDef(std::string_view name) {
  OpDef def;
  def.name = name;
  def.min_operands = 2;
  def.max_operands = 3;
  def.adds_to = 2;
  def.cpu_halves = CpuHalves::kBf16;
  def.in_place = [](int operand, int) { return operand == 2; };
  // Padding of a contracted dim adds 0 * 0.
  def.keeps_zero_padding = true;
  def.attrs = {{"out", AttrKind::kString}, {"cols", AttrKind::kInt}};
  def.precision = Precision::kCompute;
  def.typed_result = 0;
  return def;
}

OpDef ProductDef(std::string_view name, bool transposed) {
  OpDef def = MatmulDef(name);
  def.attrs.push_back({"length", AttrKind::kInt});
  def.infer = [name, transposed](const InferArgs& a) { return InferProduct(name, a, transposed); };
  def.rule = [transposed](const Op& op) {
    std::string matrix = transposed ? "n k" : "k n";
    if (op.attrs.Has("cols") || op.attrs.Has("length")) {
      matrix = transposed ? "n! k!" : "k! n!";
      ShardingRule rule = ProductRule(op, "... m l!, " + matrix, "... m r!", {});
      // The beginning of a longer row: the same factor, whole all the same.
      rule.operands[0].back() = rule.operands[1][transposed ? 1 : 0];
      return rule;
    }
    if (op.in(1).rank() != 2) matrix = "... " + matrix;
    return ProductRule(op, "... m k , " + matrix, "... m n", {"k"});
  };
  def.gradient = [transposed](const GradientArgs& a) { return ProductGradient(a, transposed); };
  def.simplify = [transposed](Builder& b, const Op& op) {
    return AbsorbTranspose(b, op, transposed ? "matmul" : "matmul_nt");
  };
  def.flops = [transposed](const Op& op) {
    const int64_t length = op.out().shape.back(),
                  rows = op.out().num_elements() / std::max<int64_t>(length, 1);
    const int64_t n = op.attrs.Has("length") ? op.in(1).shape[transposed ? 0 : 1] : length;
    return rows * n * (2 * ColsOf(op.attrs, op.in(0).shape) + (op.operands.size() > 2));
  };
  def.work_bytes = [transposed](const Op& op) { return WorkBytes(op, transposed, false); };
  def.reference = [transposed](const KernelCall& c) { ReferenceProduct(c, transposed); };
  return def;
}

}  // namespace

Value* AbsorbTranspose(Builder& b, const Op& op, std::string_view other) {
  const Op* t = op.operands[1]->producer;
  if (!t || t->name() != "transpose") return nullptr;
  const Ints& perm = t->attrs.IntList("perm");
  size_t n = perm.size();
  for (size_t i = 0; i + 2 < n; ++i) {
    if (perm[i] != static_cast<int64_t>(i)) return nullptr;
  }
  if (n < 2 || perm[n - 1] != static_cast<int64_t>(n) - 2) return nullptr;
  std::vector<Value*> operands = op.operands;
  operands[1] = t->operands[0];
  return b.Make(other, std::move(operands), op.attrs);
}

void RegisterMatmulOps(OpRegistry& registry) {
  registry.Add(ProductDef("matmul", false));
  registry.Add(ProductDef("matmul_nt", true));

  OpDef tn = MatmulDef("matmul_tn");
  tn.attrs.push_back({"batch", AttrKind::kInt});
  tn.infer = InferTn;
  tn.rule = TnRule;
  tn.gradient = TnGradient;
  tn.flops = [](const Op& op) {
    const int64_t rows = op.in(0).num_elements() / std::max<int64_t>(op.in(0).shape.back(), 1);
    return 2 * rows * ColsOf(op.attrs, op.in(0).shape) * op.in(1).shape.back() +
           (op.operands.size() > 2 ? op.out().num_elements() : 0);
  };
  tn.work_bytes = [](const Op& op) { return WorkBytes(op, false, true); };
  tn.reference = ReferenceTn;
  registry.Add(std::move(tn));
  AddMatmulRows(registry);
}

}  // namespace shardc
