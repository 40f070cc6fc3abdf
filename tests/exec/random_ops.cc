#include "tests/exec/random_ops.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "frontend/dropout.h"
#include "ir/op_def.h"

namespace shardc::testing {
namespace {

std::vector<int64_t> DivisorsOf(int64_t n) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d <= n; ++d) {
    if (n % d == 0) divisors.push_back(d);
  }
  return divisors;
}

}  // namespace

int64_t RandomOps::RandomDim(const Value* v) { return dice_.Between(0, v->type.rank() - 1); }

int64_t RandomOps::MaybeNegative(const Value* v, int64_t axis) {
  return dice_.Chance(30) ? axis - v->type.rank() : axis;
}

Shape RandomOps::Reshaped(Shape shape) {
  const auto at = [&](int64_t i) { return shape.begin() + i; };
  for (int64_t moves = dice_.Between(1, 3); moves > 0; --moves) {
    const auto rank = static_cast<int64_t>(shape.size());
    const int64_t kind = dice_.Between(0, 99);
    if (kind < 35 && rank >= 2) {
      const int64_t d = dice_.Between(0, rank - 2);
      shape[d] *= shape[d + 1];
      shape.erase(at(d + 1));
    } else if (kind < 75 && rank >= 1 && rank < kMostDims) {
      const int64_t d = dice_.Between(0, rank - 1);
      const int64_t major = dice_.Pick(DivisorsOf(shape[d]));
      shape.insert(at(d + 1), shape[d] / major);
      shape[d] = major;
    } else if (kind < 83 && rank < kMostDims) {
      shape.insert(at(dice_.Between(0, rank)), 1);
    } else if (kind < 91) {
      auto one = std::find(shape.begin(), shape.end(), 1);
      if (one != shape.end()) shape.erase(one);
    } else {
      shape = {NumElements(shape)};
    }
  }
  return shape;
}

void RandomOps::Reshape() {
  Value* v = Any();
  Make("reshape", {v}, {{"shape", Reshaped(ShapeOf(v))}});
}

void RandomOps::Transpose() {
  Value* v = Any();
  if (v->type.rank() < 2) return;
  Ints perm(ShapeOf(v).size());
  std::iota(perm.begin(), perm.end(), 0);
  if (dice_.Chance(50)) {
    std::swap(perm[RandomDim(v)], perm[RandomDim(v)]);
  } else {
    for (size_t i = perm.size() - 1; i > 0; --i) {
      std::swap(perm[i], perm[dice_.Between(0, static_cast<int64_t>(i))]);
    }
  }
  Make("transpose", {v}, {{"perm", perm}});
}

void RandomOps::Slice() {
  Value* v = Any();
  if (v->type.rank() == 0) return;
  Ints starts(ShapeOf(v).size(), 0), limits = ShapeOf(v), steps(ShapeOf(v).size(), 1);
  for (int64_t n = dice_.Chance(25) ? 2 : 1; n > 0; --n) {
    const auto d = static_cast<size_t>(RandomDim(v));
    const int64_t size = ShapeOf(v)[d];
    const int64_t low = dice_.Between(0, size - 1), high = dice_.Between(low + 1, size);
    const int64_t step = dice_.Chance(65) ? 1 : dice_.Between(1, 3);
    const bool back = dice_.Chance(12);
    starts[d] = back ? high - 1 : low;
    limits[d] = back ? low - 1 : high;
    steps[d] = back ? -step : step;
  }
  Make("slice", {v}, {{"starts", starts}, {"limits", limits}, {"steps", steps}});
}

void RandomOps::Concat() {
  Value* v = FloatOfRank(1);
  const int64_t axis = RandomDim(v);
  std::vector<Value*> parts = {v};
  for (int64_t n = dice_.Between(1, 3); n > 0; --n) {
    std::vector<Value*> fit;
    for (Value* o : floats_) {
      if (o->type.rank() != v->type.rank()) continue;
      Shape s = ShapeOf(o);
      s[axis] = ShapeOf(v)[axis];
      if (s == ShapeOf(v)) fit.push_back(o);
    }
    auto shape = ShapeOf(v);
    if (dice_.Chance(50)) shape[axis] = dice_.Pick(sizes_);
    parts.push_back(dice_.Chance(75) ? dice_.Pick(fit) : Leaf(shape));
  }
  if (dice_.Chance(30)) std::swap(parts.front(), parts.back());
  Make("concat", parts, {{"axis", MaybeNegative(v, axis)}});
}

void RandomOps::SpreadConcat() {
  Value* v = FloatOfRank(1);
  const int64_t axis = RandomDim(v), size = ShapeOf(v)[axis];
  const int64_t n = dice_.Pick(DivisorsOf(size));
  if (n < 2 || n > 6) return;
  Op* split =
      Try("split", {v}, {{"axis", axis}, {"sizes", Ints(static_cast<size_t>(n), size / n)}});
  if (!split) return;
  std::vector<Value*> parts = split->results;
  for (Value*& p : parts) {
    if (dice_.Chance(40)) p = dice_.Pick(split->results);
    if (!dice_.Chance(40)) continue;
    if (Value* changed = Make(dice_.Pick<std::string>({"tanh", "neg", "silu"}), {p})) p = changed;
  }
  const int64_t to = dice_.Chance(50) ? axis : RandomDim(v);
  Make("concat", parts, {{"axis", to}});
}

void RandomOps::Split() {
  Value* v = FloatOfRank(1);
  const int64_t axis = RandomDim(v);
  int64_t left = ShapeOf(v)[axis];
  Ints sizes;
  const std::vector<int64_t> divisors = DivisorsOf(left);
  if (dice_.Chance(50)) {
    const int64_t n = dice_.Pick(divisors);
    sizes.assign(static_cast<size_t>(n), left / n);
  } else {
    for (int64_t n = dice_.Between(1, 3); n > 1 && left > 1; --n) {
      sizes.push_back(dice_.Between(1, left - 1));
      left -= sizes.back();
    }
    sizes.push_back(left);
  }
  if (sizes.size() > 8) return;
  Try("split", {v}, {{"axis", MaybeNegative(v, axis)}, {"sizes", sizes}});
}

void RandomOps::Pad() {
  Value* v = Any();
  if (v->type.rank() == 0 || v->type.dtype == DType::kBool) return;
  Ints low(ShapeOf(v).size(), 0), high = low;
  for (int64_t n = dice_.Between(1, 2); n > 0; --n) {
    (dice_.Chance(50) ? low : high)[RandomDim(v)] = dice_.Between(1, 3);
  }
  const double value = dice_.Chance(60) ? 0 : static_cast<double>(dice_.Between(-2, 2));
  Make("pad", {v}, {{"low", low}, {"high", high}, {"value", value}});
}

void RandomOps::Broadcast() {
  Value* v = Any();
  Shape shape = ShapeOf(v);
  for (int64_t& d : shape) {
    if (d == 1 && dice_.Chance(70)) d = dice_.Pick(sizes_);
  }
  for (int64_t n = dice_.Between(0, 2); n > 0; --n) {
    shape.insert(shape.begin(), dice_.Pick(sizes_));
  }
  Make("broadcast_to", {v}, {{"shape", shape}});
}

void RandomOps::Reduce() {
  Value* v = Float();
  Ints axes;
  for (int64_t d = 0; d < v->type.rank(); ++d) {
    if (dice_.Chance(45)) axes.push_back(MaybeNegative(v, d));
  }
  Make(dice_.Pick<std::string>(
           {"reduce_sum", "reduce_sum", "reduce_mean", "reduce_mean", "reduce_max", "reduce_min"}),
       {v}, {{"axes", axes}, {"keepdims", dice_.Chance(50)}});
}

void RandomOps::SumSquares() { Make("sum_squares", {Float()}); }

void RandomOps::Cumsum() {
  Value* v = FloatOfRank(1);
  Make("cumsum", {v},
       {{"axis", MaybeNegative(v, RandomDim(v))},
        {"exclusive", dice_.Chance(40)},
        {"reverse", dice_.Chance(40)}});
}

void RandomOps::Softmax() {
  Value* v = FloatOfRank(1);
  const int64_t axis = dice_.Chance(50) ? v->type.rank() - 1 : RandomDim(v);
  Make("softmax", {v}, {{"axis", MaybeNegative(v, axis)}});
}

Value* RandomOps::NormOf(Value* v) {
  if (!v || v->type.rank() == 0) return nullptr;
  const bool layer = dice_.Chance(60);
  std::vector<Value*> operands = {v};
  if (dice_.Chance(75)) operands.push_back(NewOrParam({Last(v)}));
  if (layer && operands.size() == 2 && dice_.Chance(75)) {
    operands.push_back(NewOrParam({Last(v)}));
  }
  const double eps = dice_.Pick<double>({1e-2, 1e-1});
  return Make(layer ? "layer_norm" : "rms_norm", operands, {{"eps", eps}});
}

void RandomOps::Norm() { NormOf(Float()); }

void RandomOps::TrailingNorm() {
  Value* v = FloatOfRank(2);
  Shape shape = ShapeOf(v), flat = shape;
  for (int64_t n = dice_.Between(1, v->type.rank() - 1); n > 0; --n) {
    const int64_t last = flat.back();
    flat.pop_back();
    flat.back() *= last;
  }
  Value* y = NormOf(Make("reshape", {v}, {{"shape", flat}}));
  Make("reshape", {y}, {{"shape", shape}});
}

Value* RandomOps::Tempered(Value* v, int64_t k) {
  if (k < 5 || dice_.Chance(30)) return v;
  return Make("mul", {v, Scalar(1 / std::sqrt(static_cast<double>(k)))});
}

Value* RandomOps::LinearOf(Value* v, int64_t columns) {
  if (!v || v->type.rank() < 2) return nullptr;
  const int64_t k = Last(v);
  Value* y = nullptr;
  v = Tempered(v, k);
  if (dice_.Chance(30)) {
    y = Make("matmul_nt", {v, NewOrParam({columns, k})});
  } else if (dice_.Chance(20)) {
    Value* w = NewOrParam({columns, k});
    y = Make("matmul", {v, Make("transpose", {w}, {{"perm", Ints{1, 0}}})});
  } else {
    y = Make("matmul", {v, NewOrParam({k, columns})});
  }
  if (y && dice_.Chance(45)) {
    if (Value* sum = Make("add", {y, NewOrParam({columns})})) y = sum;
  }
  return y;
}

int64_t RandomOps::RandomColumns() {
  const int64_t n = dice_.Pick(sizes_);
  return dice_.Chance(50) ? n : n * dice_.Pick(sizes_);
}

void RandomOps::Linear() { LinearOf(FloatOfRank(2), RandomColumns()); }

void RandomOps::Batched() {
  Value* a = Tempered(FloatOfRank(3), 9);
  if (!a) return;
  Shape b = ShapeOf(a);
  const bool nt = dice_.Chance(50);
  const int64_t k = Last(a), n = dice_.Pick(sizes_);
  for (size_t d = 0; d + 2 < b.size(); ++d) {
    if (dice_.Chance(15)) b[d] = 1;
  }
  while (b.size() > 3 && dice_.Chance(10)) b.erase(b.begin());
  b[b.size() - 2] = nt ? n : k;
  b.back() = nt ? k : n;
  Make(nt ? "matmul_nt" : "matmul", {a, Leaf(b)});
}

void RandomOps::Tn() {
  Value* a = FloatOfRank(2);
  const int64_t batch = dice_.Between(0, a->type.rank() - 2);
  a = Tempered(a, NumElements(ShapeOf(a)) / Last(a));
  if (!a) return;
  Shape b = ShapeOf(a);
  b.back() = dice_.Pick(sizes_);
  Make("matmul_tn", {a, Leaf(b)}, {{"batch", batch}});
}

void RandomOps::Rows() {
  Value* a = Tempered(FloatOfRank(3), 9);
  if (!a) return;
  const std::string op =
      dice_.Pick<std::string>({"matmul_rows", "matmul_rows_nt", "matmul_rows_tn"});
  Shape rows = ShapeOf(a), b = rows;
  const int64_t k = Last(a), n = dice_.Pick(sizes_);
  rows.pop_back();
  if (op != "matmul_rows_tn") b[b.size() - 2] = op == "matmul_rows_nt" ? n : k;
  b.back() = op == "matmul_rows_nt" ? k : n;
  if (dice_.Chance(20)) b[0] = 1;
  if (Value* chosen = Make("less", {Leaf(rows), Scalar(0.2)})) Make(op, {a, Leaf(b), chosen});
}

std::vector<std::string> RandomOps::ElementwiseOps(int operands) {
  std::vector<std::string> names;
  for (const OpDef* def : AllOpDefs()) {
    const bool needs = std::any_of(def->attrs.begin(), def->attrs.end(),
                                   [](const AttrSpec& a) { return a.required; });
    if (!def->elementwise || needs || def->name.ends_with("_grad")) continue;
    if (def->min_operands == operands && def->max_operands == operands) {
      names.emplace_back(def->name);
    }
  }
  return names;
}

void RandomOps::Unary() {
  static const std::vector<std::string> names = ElementwiseOps(1);
  const std::string op = dice_.Chance(40)
                             ? dice_.Pick<std::string>({"tanh", "gelu", "silu", "sigmoid"})
                             : dice_.Pick(names);
  Value* v = op == "not" && !bools_.empty() ? PickOf(bools_) : Float();
  Attributes attrs;
  if (op == "gelu") {
    attrs.Set("approximate", dice_.Pick<std::string>({"tanh", "none"}));
  }
  if (Make(op, {v}, attrs)) return;
  // Where the function is defined.
  Value* square = Make("mul", {v, v});
  Make(op, {Make("add", {square, Scalar(0.6)})}, attrs);
}

Shape RandomOps::BroadcastableTo(Shape shape) {
  for (int64_t& d : shape) {
    if (dice_.Chance(15)) d = 1;
  }
  while (!shape.empty() && dice_.Chance(25)) shape.erase(shape.begin());
  if (dice_.Chance(5)) shape.insert(shape.begin(), dice_.Pick(sizes_));
  return shape;
}

void RandomOps::Binary() {
  static const std::vector<std::string> names = ElementwiseOps(2);
  const std::string op = dice_.Chance(65)
                             ? dice_.Pick<std::string>({"add", "add", "mul", "sub", "div"})
                             : dice_.Pick(names);
  Value* a = Float();
  Value* b = Leaf(dice_.Chance(50) ? ShapeOf(a) : BroadcastableTo(ShapeOf(a)));
  if (op == "and" || op == "or" || op == "xor") {
    if (bools_.empty()) return;
    a = PickOf(bools_);
    b = PickOf(bools_);
  }
  if (op.starts_with("bitwise_")) return;  // of integers
  if (dice_.Chance(30)) std::swap(a, b);
  if (Make(op, {a, b})) return;
  Value* square = Make("mul", {b, b});
  Make(op, {a, Make("add", {square, Scalar(0.7)})});
}

void RandomOps::Residual() {
  Value* v = FloatOfRank(2);
  Value* y = LinearOf(NormOf(v), RandomColumns());
  y = y ? Make("gelu", {y}, {{"approximate", std::string("tanh")}}) : nullptr;
  y = LinearOf(y, Last(v));
  Make("add", {v, y});
}

void RandomOps::Compare() {
  Value* a = Float();
  Value* b = dice_.Chance(50) ? Scalar(0.05) : Leaf(BroadcastableTo(ShapeOf(a)));
  Make(dice_.Pick<std::string>({"less", "less_equal", "greater", "greater_equal", "equal"}),
       {a, b});
}

void RandomOps::Where() {
  if (bools_.empty()) Compare();
  if (bools_.empty()) return;
  Value* c = PickOf(bools_);
  Value* a = Leaf(dice_.Chance(60) ? ShapeOf(c) : BroadcastableTo(ShapeOf(c)));
  Value* b = Leaf(dice_.Chance(60) ? ShapeOf(c) : BroadcastableTo(ShapeOf(c)));
  Make("where", {c, a, b});
}

void RandomOps::Cast() {
  Value* v = dice_.Chance(50) || bools_.empty() ? Any() : PickOf(bools_);
  const bool back = !IsFloat(v->type.dtype);
  Make("cast", {v},
       {{"to", back ? std::string(DTypeName(options_.dtype))
                    : dice_.Pick<std::string>({"i64", "bool"})}});
}

void RandomOps::Embedding() {
  const int64_t rows = dice_.Between(2, 12);
  Shape table = {rows, dice_.Pick(sizes_)};
  if (dice_.Chance(15)) table.push_back(dice_.Pick(sizes_));
  Value* t = nullptr;
  for (Value* v : floats_) {
    if (v->type.rank() >= 1 && ShapeOf(v)[0] > 1 && dice_.Chance(10)) t = v;
  }
  if (!t) t = Param(table);
  Make("embedding", {t, Ids(RandomShape(1, 2), 0, ShapeOf(t)[0])});
}

void RandomOps::Gather() {
  Value* v = FloatOfRank(1);
  const int64_t axis = RandomDim(v), size = ShapeOf(v)[axis];
  Value* ids = Ids(dice_.Chance(20) ? Shape{} : RandomShape(1, 2), -size, size);
  Make("gather", {v, ids}, {{"axis", MaybeNegative(v, axis)}});
}

void RandomOps::GatherNd() {
  Value* v = FloatOfRank(2);
  const int64_t batch = dice_.Between(0, v->type.rank() - 1);
  const int64_t indexed = dice_.Between(1, v->type.rank() - batch);
  Shape ids(ShapeOf(v).begin(), ShapeOf(v).begin() + batch);
  for (int64_t n = dice_.Between(0, 2); n > 0; --n) ids.push_back(dice_.Pick(sizes_));
  ids.push_back(indexed);
  const auto first = ShapeOf(v).begin() + batch;
  const int64_t least = *std::min_element(first, first + indexed);
  Make("gather_nd", {v, Ids(ids, -least, least)}, {{"batch_dims", batch}});
}

void RandomOps::Scatter() {
  Value* v = FloatOfRank(2);
  const int64_t indices = dice_.Between(1, v->type.rank());
  const int64_t batch = dice_.Between(0, std::min<int64_t>(indices, 2));
  Ints sizes;
  for (int64_t n = dice_.Between(1, 2); n > 0; --n) sizes.push_back(dice_.Between(2, 5));
  Shape ids(ShapeOf(v).begin(), ShapeOf(v).begin() + indices);
  ids.push_back(static_cast<int64_t>(sizes.size()));
  const int64_t least = *std::min_element(sizes.begin(), sizes.end());
  Make("gather_nd_grad", {v, Ids(ids, -least, least)}, {{"batch_dims", batch}, {"sizes", sizes}});
}

void RandomOps::TopK() {
  Value* v = FloatOfRank(1);
  const int64_t axis = RandomDim(v), size = ShapeOf(v)[axis];
  Value* at = Make("top_k", {v},
                   {{"axis", MaybeNegative(v, axis)},
                    {"k", dice_.Between(1, size)},
                    {"largest", dice_.Chance(60)}});
  if (!at || !dice_.Chance(60)) return;
  // The values there.
  if (axis == v->type.rank() - 1) {
    Shape ids = ShapeOf(at);
    ids.push_back(1);
    Make("gather_nd", {v, Make("reshape", {at}, {{"shape", ids}})},
         {{"batch_dims", v->type.rank() - int64_t{1}}});
  } else {
    Make("cast", {at}, {{"to", std::string(DTypeName(options_.dtype))}});
  }
}

void RandomOps::CrossEntropy() {
  Value* v = FloatOfRank(2);
  Shape labels(ShapeOf(v).begin(), ShapeOf(v).end() - 1);
  Attributes attrs = {{"ignore_index", dice_.Chance(50) ? int64_t{-100} : int64_t{0}}};
  if (dice_.Chance(40)) attrs.Set("label_smoothing", 0.1);
  Try("cross_entropy", {v, Ids(labels, 0, Last(v))}, attrs);
}

void RandomOps::Heads() {
  Value* v = FloatOfRank(2);
  Shape shape = ShapeOf(v);
  const int64_t heads = dice_.Pick(DivisorsOf(Last(v)));
  shape.back() /= heads;
  shape.insert(shape.end() - 1, heads);
  Value* y = Make("reshape", {v}, {{"shape", shape}});
  Ints perm(shape.size());
  std::iota(perm.begin(), perm.end(), 0);
  std::swap(perm[perm.size() - 2], perm[perm.size() - 3]);
  Make("transpose", {y}, {{"perm", perm}});
}

void RandomOps::Attention() {
  Value* v = FloatOfRank(3);
  if (v->type.rank() != 3) return;
  const int64_t batch = ShapeOf(v)[0], seq = ShapeOf(v)[1];
  const int64_t kv = dice_.Between(1, 3), heads = kv * dice_.Between(1, 3);
  const int64_t width = dice_.Between(1, 4);
  const bool bhsd = dice_.Chance(50);
  auto projected = [&](int64_t n) -> Value* {
    Value* y = LinearOf(v, n * width);
    y = y ? Make("reshape", {y}, {{"shape", Shape{batch, seq, n, width}}}) : nullptr;
    return bhsd ? Make("transpose", {y}, {{"perm", Ints{0, 2, 1, 3}}}) : y;
  };
  Value *q = nullptr, *k = nullptr, *w = nullptr;
  if (kv == heads && dice_.Chance(60)) {
    Value* y = LinearOf(v, 3 * heads * width);
    y = y ? Make("reshape", {y}, {{"shape", Shape{batch, seq, 3, heads, width}}}) : nullptr;
    if (!y) return;
    std::vector<Value*> qkv(3);
    for (int64_t i = 0; i < 3; ++i) {
      Value* p = Make("slice", {y},
                      {{"starts", Ints{0, 0, i, 0, 0}},
                       {"limits", Ints{batch, seq, i + 1, heads, width}},
                       {"steps", Ints(5, 1)}});
      p = Make("reshape", {p}, {{"shape", Shape{batch, seq, heads, width}}});
      qkv[i] = bhsd ? Make("transpose", {p}, {{"perm", Ints{0, 2, 1, 3}}}) : p;
    }
    q = qkv[0], k = qkv[1], w = qkv[2];
  } else {
    q = projected(heads), k = projected(kv), w = projected(kv);
  }
  if (!q || !k || !w) return;
  std::vector<Value*> operands = {q, k, w};
  if (dice_.Chance(30)) {
    Shape mask = {batch, heads, seq, seq};
    for (size_t d = 0; d < 2; ++d) mask[d] = dice_.Chance(60) ? 1 : mask[d];
    const bool batch = options_.batched && mask[0] == 1;
    operands.push_back(batch || dice_.Chance(50)
                           ? Constant(RandomTensor(dice_, options_.dtype, mask, -1, 1))
                           : Input(mask));
  }
  Op* op = Try("attention", operands,
               {{"scale", 1 / std::sqrt(static_cast<double>(width))},
                {"causal", dice_.Chance(50)},
                {"layout", std::string(bhsd ? "bhsd" : "bshd")}});
  if (!op) return;
  Value* y = op->result();
  if (bhsd) y = Make("transpose", {y}, {{"perm", Ints{0, 2, 1, 3}}});
  Make("reshape", {y}, {{"shape", Shape{batch, seq, heads * width}}});
}

void RandomOps::Dropout() {
  if (!draws_) return;
  Value* v = FloatOfRank(1);
  Value* y = dice_.Chance(50) ? AddDropout(b_, v, 0.3, 5)
                              : b_.Mul(v, b_.Cast(AddUniform(b_, ShapeOf(v), 6), v->type.dtype));
  HostTensor data = Evaluate(y);
  Know(y, std::move(data), per_example_[v]);
  ++made_;
}

void RandomOps::Step() {
  static const std::vector<std::pair<int, Maker>> kMakers = {
      {14, &RandomOps::Reshape},     {10, &RandomOps::Transpose}, {9, &RandomOps::Slice},
      {9, &RandomOps::Concat},       {7, &RandomOps::Split},      {5, &RandomOps::Pad},
      {5, &RandomOps::Broadcast},    {7, &RandomOps::Reduce},     {3, &RandomOps::Cumsum},
      {6, &RandomOps::Softmax},      {10, &RandomOps::Norm},      {18, &RandomOps::Linear},
      {8, &RandomOps::Batched},      {3, &RandomOps::Tn},         {10, &RandomOps::Unary},
      {14, &RandomOps::Binary},      {3, &RandomOps::Compare},    {4, &RandomOps::Where},
      {3, &RandomOps::Embedding},    {4, &RandomOps::Gather},     {3, &RandomOps::GatherNd},
      {3, &RandomOps::Scatter},      {2, &RandomOps::TopK},       {2, &RandomOps::CrossEntropy},
      {4, &RandomOps::Attention},    {3, &RandomOps::Residual},   {1, &RandomOps::Dropout},
      {2, &RandomOps::SumSquares},   {2, &RandomOps::Cast},       {3, &RandomOps::TrailingNorm},
      {2, &RandomOps::SpreadConcat}, {3, &RandomOps::Heads},      {4, &RandomOps::Rows}};
  static const int64_t kSum = std::accumulate(kMakers.begin(), kMakers.end(), int64_t{0},
                                              [](int64_t s, auto& m) { return s + m.first; });
  int64_t at = dice_.Between(0, kSum - 1);
  for (const auto& [weight, maker] : kMakers) {
    if ((at -= weight) < 0) return (this->*maker)();
  }
}

}  // namespace shardc::testing
