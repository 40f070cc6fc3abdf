#include "tests/exec/graph_maker.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "ir/diagnostic.h"
#include "ir/op_def.h"
#include "tests/ir/data_source.h"

namespace shardc::testing {
namespace {

constexpr int64_t kMostElements = 1500;

constexpr double kLargest = 30;

HostTensor RandomInts(Dice& dice, const Shape& shape, int64_t low, int64_t high) {
  HostTensor t(DType::kI64, shape);
  for (int64_t i = 0; i < t.num_elements(); ++i) {
    t.SetDouble(i, static_cast<double>(dice.Between(low, high - 1)));
  }
  return t;
}

}  // namespace

HostTensor RandomTensor(Dice& dice, DType dtype, const Shape& shape, double low, double high) {
  HostTensor t(dtype, shape);
  constexpr int64_t kSteps = 1 << 24;
  for (int64_t i = 0; i < t.num_elements(); ++i) {
    const double unit = static_cast<double>(dice.Between(0, kSteps)) / kSteps;
    t.SetDouble(i, low + (high - low) * unit);
  }
  return t;
}

Shape GraphMaker::RandomShape(int64_t low, int64_t high) {
  Shape shape(static_cast<size_t>(dice_.Between(low, high)));
  for (int64_t& d : shape) d = dice_.Pick(sizes_);
  while (NumElements(shape) > kMostElements / 4) shape.pop_back();
  if (shape.empty()) shape = {sizes_[0]};
  if (options_.batched) shape[0] = batch_;
  return shape;
}

void GraphMaker::Know(Value* v, HostTensor data, bool per_example) {
  per_example_[v] = per_example;
  int& reach = reach_[v];
  if (!v->producer) reach = kInput;
  if (v->producer && v->producer->def->is_state) reach = kParam;
  if (v->producer) {
    for (const Value* o : v->producer->operands) reach |= reach_[o];
  }
  data_[v] = std::move(data);
  (IsFloat(v->type.dtype) ? floats_ : v->type.dtype == DType::kBool ? bools_ : ints_).push_back(v);
}

const Shape& GraphMaker::ShapeOf(const Value* v) const { return v->type.shape; }

int64_t GraphMaker::Last(const Value* v) const { return v->type.shape.back(); }

Value* GraphMaker::PickOf(const std::vector<Value*>& values) {
  const auto n = static_cast<int64_t>(values.size());
  const int64_t from = dice_.Chance(60) ? std::max<int64_t>(0, n - 6) : 0;
  return values[dice_.Between(from, n - 1)];
}

Value* GraphMaker::Float() {
  Value* v = PickOf(floats_);
  for (int i = 0; i < 3 && reach_[v] != kBoth && dice_.Chance(60); ++i) v = PickOf(floats_);
  return v;
}

Value* GraphMaker::FloatOfRank(int least) {
  for (int i = 0; i < 5; ++i) {
    Value* v = Float();
    if (v->type.rank() >= least) return v;
  }
  return Leaf(RandomShape(least, least + 1));
}

Value* GraphMaker::Any() {
  if (dice_.Chance(8) && !ints_.empty()) return PickOf(ints_);
  if (dice_.Chance(4) && !bools_.empty()) return PickOf(bools_);
  return Float();
}

Value* GraphMaker::Input(const Shape& shape) {
  HostTensor data = RandomTensor(dice_, options_.dtype, shape, -1.5, 1.5);
  return InputOf(std::move(data));
}

Value* GraphMaker::InputOf(HostTensor data) {
  const std::string name = StrCat("x", model_.inputs.size());
  Value* v = model_.graph.AddInput(name, TensorType(data.dtype(), data.shape()));
  model_.inputs[name] = data;
  Know(v, std::move(data), options_.batched);
  return v;
}

Value* GraphMaker::Param(const Shape& shape) {
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

Value* GraphMaker::Constant(HostTensor data) {
  Value* v = b_.Constant(data);
  Know(v, std::move(data), false);
  return v;
}

Value* GraphMaker::Scalar(double value) {
  HostTensor data(options_.dtype, {});
  data.SetDouble(0, value);
  return Constant(std::move(data));
}

Value* GraphMaker::Leaf(const Shape& shape) {
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

Value* GraphMaker::NewOrParam(const Shape& shape) {
  return dice_.Chance(75) ? Param(shape) : Leaf(shape);
}

Value* GraphMaker::Ids(const Shape& shape, int64_t low, int64_t limit) {
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

std::optional<std::vector<HostTensor>> GraphMaker::Run(std::string_view op,
                                                       const std::vector<HostTensor>& operands,
                                                       const Attributes& attrs) {
  try {
    return RunOp(op, operands, attrs);
  } catch (const Diagnostic&) {
    return std::nullopt;
  }
}

double GraphMaker::StepOf(DType dtype) { return dtype == DType::kF64 ? 1e-3 : 1e-2; }

bool GraphMaker::IsSmooth(std::string_view op, const std::vector<HostTensor>& operands,
                          const Attributes& attrs, const std::vector<HostTensor>& results) {
  const double step = StepOf(options_.dtype);
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

bool GraphMaker::TreatsExamplesAlone(std::string_view op, const std::vector<Value*>& operands,
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

std::optional<std::vector<HostTensor>> GraphMaker::Accepted(std::string_view op,
                                                            const std::vector<HostTensor>& operands,
                                                            const Attributes& attrs) {
  auto results = Run(op, operands, attrs);
  if (!results) return std::nullopt;
  for (const HostTensor& r : *results) {
    const auto rank = static_cast<int>(r.shape().size());
    if (r.num_elements() > kMostElements || r.num_elements() == 0 || rank > kMostDims) {
      return std::nullopt;
    }
    for (int64_t i = 0; i < r.num_elements(); ++i) {
      if (!(std::abs(r.AsDouble(i)) < kLargest)) return std::nullopt;
    }
  }
  if (!IsSmooth(op, operands, attrs, *results)) return std::nullopt;
  return results;
}

Op* GraphMaker::Try(std::string_view op, std::vector<Value*> operands, Attributes attrs) {
  std::vector<HostTensor> data;
  bool batch = false;
  for (const Value* v : operands) {
    data.push_back(data_.at(v));
    batch |= per_example_[v];
  }
  auto results = Accepted(op, data, attrs);
  if (!results) return nullptr;
  if (batch && !TreatsExamplesAlone(op, operands, data, attrs, *results)) return nullptr;
  Op* made = b_.Create(op, std::move(operands), std::move(attrs));
  for (size_t i = 0; i < results->size(); ++i) {
    Know(made->result(static_cast<int>(i)), std::move((*results)[i]), batch);
  }
  ++made_;
  return made;
}

Value* GraphMaker::Make(std::string_view op, std::vector<Value*> operands, Attributes attrs) {
  for (const Value* v : operands) {
    if (!v) return nullptr;
  }
  Op* made = Try(op, std::move(operands), std::move(attrs));
  return made ? made->result() : nullptr;
}

const HostTensor& GraphMaker::Evaluate(Value* v) {
  if (auto known = data_.find(v); known != data_.end()) return known->second;
  const Op& op = *v->producer;
  if (op.def->is_state) return data_[v] = HostTensor(v->type.dtype, v->type.shape);
  std::vector<HostTensor> operands;
  for (Value* o : op.operands) operands.push_back(Evaluate(o));
  return data_[v] = RunOp(op.name(), operands, op.attrs)[v->index];
}

}  // namespace shardc::testing
