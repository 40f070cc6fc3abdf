#include "tests/exec/random_graph.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>

#include "frontend/dropout.h"
#include "ir/builder.h"
#include "ir/diagnostic.h"
#include "ir/op_def.h"
#include "ir/text.h"
#include "tests/ir/data_source.h"
#include "tests/ir/interpreter.h"

namespace shardc::testing {
namespace {

constexpr int64_t kMostElements = 1500;
constexpr int kMostDims = 6;
constexpr double kLargest = 30;

HostTensor RandomTensor(Dice& dice, DType dtype, const Shape& shape, double low, double high) {
  HostTensor t(dtype, shape);
  constexpr int64_t kSteps = 1 << 24;
  for (int64_t i = 0; i < t.num_elements(); ++i) {
    const double unit = static_cast<double>(dice.Between(0, kSteps)) / kSteps;
    t.SetDouble(i, low + (high - low) * unit);
  }
  return t;
}

HostTensor RandomInts(Dice& dice, const Shape& shape, int64_t low, int64_t high) {
  HostTensor t(DType::kI64, shape);
  for (int64_t i = 0; i < t.num_elements(); ++i) {
    t.SetDouble(i, static_cast<double>(dice.Between(low, high - 1)));
  }
  return t;
}

std::vector<int64_t> DivisorsOf(int64_t n) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d <= n; ++d) {
    if (n % d == 0) divisors.push_back(d);
  }
  return divisors;
}

class Grower {
 public:
  Grower(Dice& dice, const RandomGraphOptions& options, RandomModelGraph& model)
      : dice_(dice), options_(options), model_(model), b_(model.graph) {}

  void Grow() {
    static const std::vector<std::vector<int64_t>> kThemes = {
        {2, 4, 8}, {2, 3, 6}, {3, 5, 7}, {4, 6, 12}, {1, 4, 5}, {2, 5, 10}, {3, 4, 9}};
    sizes_ = dice_.Pick(kThemes);
    batch_ = dice_.Pick<int64_t>({4, 6, 8, 3});
    Input(RandomShape(2, 4));
    for (int64_t n = dice_.Between(1, 3); n > 0; --n) Leaf(RandomShape(1, 3));
    const int64_t ops = dice_.Between(5, options_.most_ops);
    for (int64_t tries = 0; made_ < ops && tries < 6 * ops; ++tries) {
      b_.site = StrCat("m", tries);
      Step();
    }
    Finish();
  }

 private:
  using Maker = void (Grower::*)();

  void Step() {
    static const std::vector<std::pair<int, Maker>> kMakers = {
        {14, &Grower::Reshape},     {10, &Grower::Transpose}, {9, &Grower::Slice},
        {9, &Grower::Concat},       {7, &Grower::Split},      {5, &Grower::Pad},
        {5, &Grower::Broadcast},    {7, &Grower::Reduce},     {3, &Grower::Cumsum},
        {6, &Grower::Softmax},      {10, &Grower::Norm},      {18, &Grower::Linear},
        {8, &Grower::Batched},      {3, &Grower::Tn},         {10, &Grower::Unary},
        {14, &Grower::Binary},      {3, &Grower::Compare},    {4, &Grower::Where},
        {3, &Grower::Embedding},    {4, &Grower::Gather},     {3, &Grower::GatherNd},
        {3, &Grower::Scatter},      {2, &Grower::TopK},       {2, &Grower::CrossEntropy},
        {4, &Grower::Attention},    {3, &Grower::Residual},   {1, &Grower::Dropout},
        {2, &Grower::SumSquares},   {2, &Grower::Cast},       {3, &Grower::TrailingNorm},
        {2, &Grower::SpreadConcat}, {3, &Grower::Heads}};
    static const int64_t kSum = std::accumulate(kMakers.begin(), kMakers.end(), int64_t{0},
                                                [](int64_t s, auto& m) { return s + m.first; });
    int64_t at = dice_.Between(0, kSum - 1);
    for (const auto& [weight, maker] : kMakers) {
      if ((at -= weight) < 0) return (this->*maker)();
    }
  }

  // --- what there is ---

  Shape RandomShape(int64_t low, int64_t high) {
    Shape shape(static_cast<size_t>(dice_.Between(low, high)));
    for (int64_t& d : shape) d = dice_.Pick(sizes_);
    while (NumElements(shape) > kMostElements / 4) shape.pop_back();
    if (shape.empty()) shape = {sizes_[0]};
    if (options_.batched) shape[0] = batch_;
    return shape;
  }

  enum Reach { kNone = 0, kInput = 1, kParam = 2, kBoth = 3 };

  void Know(Value* v, HostTensor data, bool per_example) {
    per_example_[v] = per_example;
    int& reach = reach_[v];
    if (!v->producer) reach = kInput;
    if (v->producer && v->producer->def->is_state) reach = kParam;
    if (v->producer) {
      for (const Value* o : v->producer->operands) reach |= reach_[o];
    }
    data_[v] = std::move(data);
    (IsFloat(v->type.dtype)          ? floats_
     : v->type.dtype == DType::kBool ? bools_
                                     : ints_)
        .push_back(v);
  }

  const Shape& ShapeOf(const Value* v) const { return v->type.shape; }
  int64_t Last(const Value* v) const { return v->type.shape.back(); }

  Value* PickOf(const std::vector<Value*>& values) {
    const auto n = static_cast<int64_t>(values.size());
    const int64_t from = dice_.Chance(60) ? std::max<int64_t>(0, n - 6) : 0;
    return values[static_cast<size_t>(dice_.Between(from, n - 1))];
  }
  // Mostly what is made of inputs and params.
  Value* Float() {
    Value* v = PickOf(floats_);
    for (int i = 0; i < 3 && reach_[v] != kBoth && dice_.Chance(60); ++i) v = PickOf(floats_);
    return v;
  }
  // Of at least so many dims; maybe made of one with fewer.
  Value* FloatOfRank(int least) {
    for (int i = 0; i < 5; ++i) {
      Value* v = Float();
      if (v->type.rank() >= least) return v;
    }
    return Leaf(RandomShape(least, least + 1));
  }
  Value* Any() {
    if (dice_.Chance(8) && !ints_.empty()) return PickOf(ints_);
    if (dice_.Chance(4) && !bools_.empty()) return PickOf(bools_);
    return Float();
  }

  Value* Input(const Shape& shape) {
    HostTensor data = RandomTensor(dice_, options_.dtype, shape, -1.5, 1.5);
    return InputOf(std::move(data));
  }
  Value* InputOf(HostTensor data) {
    const std::string name = StrCat("x", model_.inputs.size());
    Value* v = model_.graph.AddInput(name, TensorType(data.dtype(), data.shape()));
    model_.inputs[name] = data;
    Know(v, std::move(data), options_.batched);
    return v;
  }
  Value* Param(const Shape& shape) {
    const bool positive = dice_.Chance(20);
    HostTensor data = RandomTensor(dice_, options_.dtype, shape, positive ? 0.3 : -1.2, 1.4);
    const std::string name = StrCat("w", params_++, dice_.Chance(20) ? ".bias" : ".weight");
    Attributes attrs;
    if (dice_.Chance(6)) {
      attrs.Set("role", dice_.Pick<std::string>({"QKV", "MLP_UP", "MLP_DOWN", "ATTENTION_OUT",
                                                 "TOKEN_EMBEDDING", "NORM", "LM_HEAD"}));
    }
    Value* v = b_.Param(name, options_.dtype, shape, std::move(attrs));
    model_.graph.sources[name] = std::make_shared<DataSource>(data);
    Know(v, std::move(data), false);
    return v;
  }
  Value* Constant(HostTensor data) {
    Value* v = b_.Constant(data);
    Know(v, std::move(data), false);
    return v;
  }
  Value* Scalar(double value) {
    HostTensor data(options_.dtype, {});
    data.SetDouble(0, value);
    return Constant(std::move(data));
  }
  // A value of this shape: one that is there, or a new one.
  Value* Leaf(const Shape& shape) {
    std::vector<Value*> fit;
    for (Value* v : floats_) {
      if (ShapeOf(v) == shape) fit.push_back(v);
    }
    if (!fit.empty() && dice_.Chance(40)) return dice_.Pick(fit);
    const bool batch = !shape.empty() && shape[0] == batch_;
    if (options_.batched && batch && dice_.Chance(80)) return Input(shape);
    if (dice_.Chance(70)) return Param(shape);
    if (dice_.Chance(60) && (!options_.batched || batch)) return Input(shape);
    return Constant(RandomTensor(dice_, options_.dtype, shape, -1.2, 1.2));
  }
  Value* NewOrParam(const Shape& shape) { return dice_.Chance(75) ? Param(shape) : Leaf(shape); }

  // Integers in [low, limit).
  Value* Ids(const Shape& shape, int64_t low, int64_t limit) {
    for (Value* v : ints_) {
      if (ShapeOf(v) != shape || !dice_.Chance(60)) continue;
      const HostTensor& t = data_.at(v);
      bool fits = true;
      for (int64_t i = 0; i < t.num_elements(); ++i) {
        fits &= t.AsInt(i) >= low && t.AsInt(i) < limit;
      }
      if (fits) return v;
    }
    HostTensor data = RandomInts(dice_, shape, low, limit);
    const bool batch = !shape.empty() && shape[0] == batch_;
    if (dice_.Chance(60) && (!options_.batched || batch)) return InputOf(std::move(data));
    return Constant(std::move(data));
  }

  // --- making an op ---

  std::optional<std::vector<HostTensor>> Run(std::string_view op,
                                             const std::vector<HostTensor>& operands,
                                             const Attributes& attrs) {
    try {
      return RunOp(op, operands, attrs);
    } catch (const Diagnostic&) {
      return std::nullopt;
    }
  }

  static double Step(DType dtype) { return dtype == DType::kF64 ? 1e-3 : 1e-2; }

  // Second differences are small, and integers stay.
  bool IsSmooth(std::string_view op, const std::vector<HostTensor>& operands,
                const Attributes& attrs, const std::vector<HostTensor>& results) {
    const double step = Step(options_.dtype);
    for (int trial = 0; trial < 3; ++trial) {
      std::vector<HostTensor> up = operands, down = operands;
      for (size_t k = 0; k < operands.size(); ++k) {
        if (!IsFloat(operands[k].dtype())) continue;
        for (int64_t i = 0; i < operands[k].num_elements(); ++i) {
          const double x = operands[k].AsDouble(i), d = dice_.Chance(50) ? step : -step;
          up[k].SetDouble(i, x + d);
          down[k].SetDouble(i, x - d);
        }
      }
      auto above = Run(op, up, attrs), below = Run(op, down, attrs);
      if (!above || !below) return false;
      for (size_t r = 0; r < results.size(); ++r) {
        for (int64_t i = 0; i < results[r].num_elements(); ++i) {
          const double y = results[r].AsDouble(i), a = (*above)[r].AsDouble(i),
                       c = (*below)[r].AsDouble(i);
          if (!IsFloat(results[r].dtype())
                  ? a != y || c != y
                  : !(std::abs(a + c - 2 * y) < 0.1 * step) || !(std::abs(a - c) < 60 * step)) {
            return false;
          }
        }
      }
    }
    return true;
  }

  // Whether row i of each result depends on rows i of the operands with a batch alone.
  bool TreatsExamplesAlone(std::string_view op, const std::vector<Value*>& operands,
                           const std::vector<HostTensor>& data, const Attributes& attrs,
                           const std::vector<HostTensor>& results) {
    for (const HostTensor& r : results) {
      if (r.shape().empty() || r.shape()[0] != batch_) return false;
    }
    for (int64_t example = 0; example < batch_; ++example) {
      std::vector<HostTensor> other = data;
      for (size_t k = 0; k < operands.size(); ++k) {
        if (!per_example_[operands[k]]) continue;
        const int64_t row = data[k].num_elements() / batch_;
        for (int64_t i = 0; i < row; ++i) {
          // That of another example: integers stay in their range.
          other[k].SetDouble(example * row + i, data[k].AsDouble((example + 1) % batch_ * row + i));
        }
      }
      auto changed = Run(op, other, attrs);
      if (!changed) return false;
      for (size_t r = 0; r < results.size(); ++r) {
        const int64_t row = results[r].num_elements() / batch_;
        for (int64_t i = 0; i < results[r].num_elements(); ++i) {
          const double was = results[r].AsDouble(i), is = (*changed)[r].AsDouble(i);
          if (i / row != example && was != is) return false;
          // A result that the example does not reach belongs to no example.
        }
      }
    }
    return true;
  }

  // The op if it can run on these operands and is well conditioned there; else null.
  Op* Try(std::string_view op, std::vector<Value*> operands, Attributes attrs = {}) {
    std::vector<HostTensor> data;
    bool batch = false;
    for (const Value* v : operands) {
      data.push_back(data_.at(v));
      batch |= per_example_[v];
    }
    auto results = Run(op, data, attrs);
    if (!results) return nullptr;
    for (const HostTensor& r : *results) {
      const auto rank = static_cast<int>(r.shape().size());
      if (r.num_elements() > kMostElements || r.num_elements() == 0 || rank > kMostDims) {
        return nullptr;
      }
      for (int64_t i = 0; i < r.num_elements(); ++i) {
        if (!(std::abs(r.AsDouble(i)) < kLargest)) return nullptr;
      }
    }
    if (!IsSmooth(op, data, attrs, *results)) return nullptr;
    if (batch && !TreatsExamplesAlone(op, operands, data, attrs, *results)) return nullptr;
    Op* made = b_.Create(op, std::move(operands), std::move(attrs));
    for (size_t i = 0; i < results->size(); ++i) {
      Know(made->result(static_cast<int>(i)), std::move((*results)[i]), batch);
    }
    ++made_;
    return made;
  }
  // Its first result, or null.
  Value* Make(std::string_view op, std::vector<Value*> operands, Attributes attrs = {}) {
    for (const Value* v : operands) {
      if (!v) return nullptr;
    }
    Op* made = Try(op, std::move(operands), std::move(attrs));
    return made ? made->result() : nullptr;
  }

  // --- ops ---

  int64_t RandomDim(const Value* v) { return dice_.Between(0, v->type.rank() - 1); }
  // The axis, or the same counted from the end.
  int64_t MaybeNegative(const Value* v, int64_t axis) {
    return dice_.Chance(30) ? axis - v->type.rank() : axis;
  }

  Shape Reshaped(Shape shape) {
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

  void Reshape() {
    Value* v = Any();
    Make("reshape", {v}, {{"shape", Reshaped(ShapeOf(v))}});
  }

  void Transpose() {
    Value* v = Any();
    if (v->type.rank() < 2) return;
    Ints perm(ShapeOf(v).size());
    std::iota(perm.begin(), perm.end(), 0);
    if (dice_.Chance(50)) {
      std::swap(perm[static_cast<size_t>(RandomDim(v))], perm[static_cast<size_t>(RandomDim(v))]);
    } else {
      for (size_t i = perm.size() - 1; i > 0; --i) {
        std::swap(perm[i], perm[static_cast<size_t>(dice_.Between(0, static_cast<int64_t>(i)))]);
      }
    }
    Make("transpose", {v}, {{"perm", perm}});
  }

  void Slice() {
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

  void Concat() {
    Value* v = FloatOfRank(1);
    const int64_t axis = RandomDim(v);
    std::vector<Value*> parts = {v};
    for (int64_t n = dice_.Between(1, 3); n > 0; --n) {
      std::vector<Value*> fit;
      for (Value* o : floats_) {
        if (o->type.rank() != v->type.rank()) continue;
        Shape s = ShapeOf(o);
        s[static_cast<size_t>(axis)] = ShapeOf(v)[static_cast<size_t>(axis)];
        if (s == ShapeOf(v)) fit.push_back(o);
      }
      auto shape = ShapeOf(v);
      if (dice_.Chance(50)) shape[static_cast<size_t>(axis)] = dice_.Pick(sizes_);
      parts.push_back(dice_.Chance(75) ? dice_.Pick(fit) : Leaf(shape));
    }
    if (dice_.Chance(30)) std::swap(parts.front(), parts.back());
    Make("concat", parts, {{"axis", MaybeNegative(v, axis)}});
  }

  // What was one is put together again in another order, or along another dim.
  void SpreadConcat() {
    Value* v = FloatOfRank(1);
    const int64_t axis = RandomDim(v), size = ShapeOf(v)[static_cast<size_t>(axis)];
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

  void Split() {
    Value* v = FloatOfRank(1);
    const int64_t axis = RandomDim(v);
    int64_t left = ShapeOf(v)[static_cast<size_t>(axis)];
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

  void Pad() {
    Value* v = Any();
    if (v->type.rank() == 0 || v->type.dtype == DType::kBool) return;
    Ints low(ShapeOf(v).size(), 0), high = low;
    for (int64_t n = dice_.Between(1, 2); n > 0; --n) {
      (dice_.Chance(50) ? low : high)[static_cast<size_t>(RandomDim(v))] = dice_.Between(1, 3);
    }
    const double value = dice_.Chance(60) ? 0 : static_cast<double>(dice_.Between(-2, 2));
    Make("pad", {v}, {{"low", low}, {"high", high}, {"value", value}});
  }

  void Broadcast() {
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

  void Reduce() {
    Value* v = Float();
    Ints axes;
    for (int64_t d = 0; d < v->type.rank(); ++d) {
      if (dice_.Chance(45)) axes.push_back(MaybeNegative(v, d));
    }
    Make(dice_.Pick<std::string>({"reduce_sum", "reduce_sum", "reduce_mean", "reduce_mean",
                                  "reduce_max", "reduce_min"}),
         {v}, {{"axes", axes}, {"keepdims", dice_.Chance(50)}});
  }

  void SumSquares() { Make("sum_squares", {Float()}); }

  void Cumsum() {
    Value* v = FloatOfRank(1);
    Make("cumsum", {v},
         {{"axis", MaybeNegative(v, RandomDim(v))},
          {"exclusive", dice_.Chance(40)},
          {"reverse", dice_.Chance(40)}});
  }

  void Softmax() {
    Value* v = FloatOfRank(1);
    const int64_t axis = dice_.Chance(50) ? v->type.rank() - 1 : RandomDim(v);
    Make("softmax", {v}, {{"axis", MaybeNegative(v, axis)}});
  }

  Value* NormOf(Value* v) {
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
  void Norm() { NormOf(Float()); }

  // Over several trailing dims, as an export writes it.
  void TrailingNorm() {
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

  // Times what keeps a sum over k terms small.
  Value* Tempered(Value* v, int64_t k) {
    if (k < 5 || dice_.Chance(30)) return v;
    return Make("mul", {v, Scalar(1 / std::sqrt(static_cast<double>(k)))});
  }

  Value* LinearOf(Value* v, int64_t columns) {
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
  int64_t RandomColumns() {
    const int64_t n = dice_.Pick(sizes_);
    return dice_.Chance(50) ? n : n * dice_.Pick(sizes_);
  }
  void Linear() { LinearOf(FloatOfRank(2), RandomColumns()); }

  void Batched() {
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

  void Tn() {
    Value* a = FloatOfRank(2);
    const int64_t batch = dice_.Between(0, a->type.rank() - 2);
    a = Tempered(a, NumElements(ShapeOf(a)) / Last(a));
    if (!a) return;
    Shape b = ShapeOf(a);
    b.back() = dice_.Pick(sizes_);
    Make("matmul_tn", {a, Leaf(b)}, {{"batch", batch}});
  }

  std::vector<std::string> ElementwiseOps(int operands) {
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

  void Unary() {
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

  Shape BroadcastableTo(Shape shape) {
    for (int64_t& d : shape) {
      if (dice_.Chance(15)) d = 1;
    }
    while (!shape.empty() && dice_.Chance(25)) shape.erase(shape.begin());
    if (dice_.Chance(5)) shape.insert(shape.begin(), dice_.Pick(sizes_));
    return shape;
  }

  void Binary() {
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
    if (dice_.Chance(30)) std::swap(a, b);
    if (Make(op, {a, b})) return;
    Value* square = Make("mul", {b, b});
    Make(op, {a, Make("add", {square, Scalar(0.7)})});
  }

  void Residual() {
    Value* v = FloatOfRank(2);
    Value* y = LinearOf(NormOf(v), RandomColumns());
    y = y ? Make("gelu", {y}, {{"approximate", std::string("tanh")}}) : nullptr;
    y = LinearOf(y, Last(v));
    Make("add", {v, y});
  }

  void Compare() {
    Value* a = Float();
    Value* b = dice_.Chance(50) ? Scalar(0.05) : Leaf(BroadcastableTo(ShapeOf(a)));
    Make(dice_.Pick<std::string>({"less", "less_equal", "greater", "greater_equal", "equal"}),
         {a, b});
  }

  void Where() {
    if (bools_.empty()) Compare();
    if (bools_.empty()) return;
    Value* c = PickOf(bools_);
    Value* a = Leaf(dice_.Chance(60) ? ShapeOf(c) : BroadcastableTo(ShapeOf(c)));
    Value* b = Leaf(dice_.Chance(60) ? ShapeOf(c) : BroadcastableTo(ShapeOf(c)));
    Make("where", {c, a, b});
  }

  void Cast() {
    Value* v = dice_.Chance(50) || bools_.empty() ? Any() : PickOf(bools_);
    const bool back = !IsFloat(v->type.dtype);
    Make("cast", {v},
         {{"to", back ? std::string(DTypeName(options_.dtype))
                      : dice_.Pick<std::string>({"i64", "bool"})}});
  }

  void Embedding() {
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

  void Gather() {
    Value* v = FloatOfRank(1);
    const int64_t axis = RandomDim(v), size = ShapeOf(v)[static_cast<size_t>(axis)];
    Value* ids = Ids(dice_.Chance(20) ? Shape{} : RandomShape(1, 2), -size, size);
    Make("gather", {v, ids}, {{"axis", MaybeNegative(v, axis)}});
  }

  void GatherNd() {
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

  void Scatter() {
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

  void TopK() {
    Value* v = FloatOfRank(1);
    const int64_t axis = RandomDim(v), size = ShapeOf(v)[static_cast<size_t>(axis)];
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

  void CrossEntropy() {
    Value* v = FloatOfRank(2);
    Shape labels(ShapeOf(v).begin(), ShapeOf(v).end() - 1);
    Attributes attrs = {{"ignore_index", dice_.Chance(50) ? int64_t{-100} : int64_t{0}}};
    if (dice_.Chance(40)) attrs.Set("label_smoothing", 0.1);
    Try("cross_entropy", {v, Ids(labels, 0, Last(v))}, attrs);
  }

  // A dim becomes heads, which move to the front.
  void Heads() {
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

  void Attention() {
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
        qkv[static_cast<size_t>(i)] =
            bhsd ? Make("transpose", {p}, {{"perm", Ints{0, 2, 1, 3}}}) : p;
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
    // The log-sum-exp has no gradient.
    std::erase(floats_, op->result(1));
    Value* y = op->result();
    if (bhsd) y = Make("transpose", {y}, {{"perm", Ints{0, 2, 1, 3}}});
    Make("reshape", {y}, {{"shape", Shape{batch, seq, heads * width}}});
  }

  // The value of what a state and its readers make, at the first step.
  const HostTensor& Evaluate(Value* v) {
    if (auto known = data_.find(v); known != data_.end()) return known->second;
    const Op& op = *v->producer;
    if (op.def->is_state) return data_[v] = HostTensor(v->type.dtype, v->type.shape);
    std::vector<HostTensor> operands;
    for (Value* o : op.operands) operands.push_back(Evaluate(o));
    return data_[v] = RunOp(op.name(), operands, op.attrs)[static_cast<size_t>(v->index)];
  }

  void Dropout() {
    Value* v = FloatOfRank(1);
    Value* y = AddDropout(b_, v, 0.3, 5);
    HostTensor data = Evaluate(y);
    Know(y, std::move(data), per_example_[v]);
    ++made_;
  }

  // --- the end ---

  // A scalar that depends on each element of v.
  Value* Term(Value* v) {
    if (v->type.rank() == 0) return v;
    Ints all(ShapeOf(v).size());
    std::iota(all.begin(), all.end(), 0);
    if (dice_.Chance(15)) return b_.Make("sum_squares", {v});
    HostTensor weight = RandomTensor(dice_, options_.dtype, ShapeOf(v), -1, 1);
    if (options_.batched && per_example_[v]) weight = HostTensor();
    if (weight.num_elements() > 0) {
      v = b_.Mul(v, b_.Constant(weight));
    } else {
      Shape row(ShapeOf(v).begin() + 1, ShapeOf(v).end());
      v = b_.Mul(v, b_.Constant(RandomTensor(dice_, options_.dtype, row, -1, 1)));
    }
    const bool mean = dice_.Chance(30);
    return b_.Make(mean ? "reduce_mean" : "reduce_sum", {v}, {{"axes", all}});
  }

  // A value that depends on inputs and params.
  Value* OfBoth() {
    for (auto v = floats_.rbegin(); v != floats_.rend(); ++v) {
      if (reach_[*v] == kBoth && (!options_.batched || per_example_[*v])) return *v;
    }
    Value* x = model_.graph.FindInput("x0");
    Value* w = Param({Last(x)});
    Value* y = b_.Mul(x, w);
    const HostTensor operands[] = {data_.at(x), data_.at(w)};
    Know(y, RunOp("mul", operands, {})[0], per_example_[x]);
    return y;
  }

  void Finish() {
    b_.site = "loss";
    std::vector<Value*> terms;
    for (Value* v : floats_) {
      const bool leaf = !v->producer || v->producer->operands.empty();
      const bool unused = v->users.empty();
      if (leaf || !dice_.Chance(unused ? 80 : 8)) continue;
      if (options_.batched && !per_example_[v]) continue;
      terms.push_back(v);
    }
    while (terms.size() > 7) {
      terms.erase(terms.begin() + dice_.Between(0, static_cast<int64_t>(terms.size()) - 1));
    }
    if (std::none_of(terms.begin(), terms.end(), [&](Value* v) { return reach_[v] == kBoth; })) {
      terms.push_back(OfBoth());
    }
    Value* loss = nullptr;
    for (Value* v : terms) {
      Value* term = Term(v);
      loss = loss ? b_.Add(loss, term) : term;
    }
    Graph& g = model_.graph;
    // A name and a value of its own.
    g.outputs.push_back({"loss", b_.Mul(loss, b_.Scalar(options_.dtype, 0.5))});
    int outputs = 0;
    for (const auto* values : {&floats_, &ints_, &bools_}) {
      for (Value* v : *values) {
        if (v->producer && dice_.Chance(v->users.empty() ? 25 : 8)) {
          g.outputs.push_back({StrCat("y", outputs++), v});
        }
      }
    }
    g.EraseDead();
    std::vector<Value*> unused;
    for (const auto& input : g.inputs()) {
      if (!g.HasUses(input.get())) unused.push_back(input.get());
    }
    for (Value* v : unused) {
      if (g.inputs().size() == 1) break;
      model_.inputs.erase(v->name);
      g.RemoveInput(v);
    }
  }

  Dice& dice_;
  const RandomGraphOptions& options_;
  RandomModelGraph& model_;
  Builder b_;
  Values data_;
  std::map<const Value*, bool> per_example_;
  std::map<const Value*, int> reach_;
  std::vector<Value*> floats_, ints_, bools_;
  std::vector<int64_t> sizes_;
  int64_t batch_ = 0, params_ = 0, made_ = 0;
};

}  // namespace

RandomModelGraph MakeRandomGraph(Dice& dice, const RandomGraphOptions& options) {
  RandomModelGraph model;
  Grower(dice, options, model).Grow();
  return model;
}

Graph CopyOf(const Graph& graph) {
  Graph copy = ParseGraph(PrintGraph(graph), "copy");
  copy.sources = graph.sources;
  return copy;
}

void AddRandomData(Graph& graph, uint64_t seed) {
  Dice dice(seed);
  for (const Op* param : graph.Params()) {
    auto& source = graph.sources[param->attrs.String("name")];
    const TensorType& type = param->out();
    if (!source) {
      source = std::make_shared<DataSource>(RandomTensor(dice, type.dtype, type.shape, -1.2, 1.4));
    }
  }
}

Tensors DataOf(const RandomModelGraph& model) {
  Tensors data = model.inputs;
  for (const Op* param : model.graph.Params()) {
    const std::string& name = param->attrs.String("name");
    HostTensor t(param->out().dtype, param->out().shape);
    model.graph.sources.at(name)->Read(Shape(t.shape().size(), 0), t.shape(), t.raw());
    data[name] = std::move(t);
  }
  return data;
}

}  // namespace shardc::testing
