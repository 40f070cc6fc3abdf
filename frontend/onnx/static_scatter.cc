#include "frontend/onnx/static_scatter.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "frontend/onnx/convert_util.h"

namespace shardc::onnx_import {
namespace {

struct Box {
  Ints start, size;
};

// The box that the places fill row by row, if they do.
std::optional<Box> BoxOf(const Places& p) {
  const auto dims = static_cast<size_t>(p.dims);
  Box box{Ints(p.at.begin(), p.at.begin() + p.dims), Ints(dims, 1)};
  int64_t volume = 1;
  for (size_t d = 0; d < dims; ++d) {
    for (size_t i = d; i < p.at.size(); i += dims) {
      if (p.at[i] < box.start[d]) return std::nullopt;
      box.size[d] = std::max(box.size[d], p.at[i] - box.start[d] + 1);
    }
    volume *= box.size[d];
    if (volume > p.count) return std::nullopt;
  }
  if (volume != p.count) return std::nullopt;
  for (int64_t i = 0; i < p.count; ++i) {
    for (int64_t d = p.dims - 1, left = i; d >= 0; left /= box.size[d], --d) {
      if (p.at[i * p.dims + d] != box.start[d] + left % box.size[d]) return std::nullopt;
    }
  }
  return box;
}

// As positions among the rows that the first dims of the shape count.
Ints FlatPlaces(const Places& places, const shardc::Shape& shape) {
  Ints at(places.count, 0);
  for (int64_t i = 0; i < places.count; ++i) {
    for (int64_t d = 0; d < places.dims; ++d) {
      at[i] = at[i] * shape[d] + places.at[i * places.dims + d];
    }
  }
  return at;
}

class Put {
 public:
  Put(NodeContext& c, const std::string& reduction) : c_(c), reduction_(reduction) {
    if (reduction == "none" || reduction == "add" || reduction == "mul" || reduction == "max" ||
        reduction == "min") {
      return;
    }
    c.Fail("E1303", StrCat("there is no reduction \"", reduction, "\""));
  }

  Value* IntoBox(Value* data, const Box& box, Value* updates) {
    shardc::Shape shape = data->type.shape;
    std::copy(box.size.begin(), box.size.end(), shape.begin());
    return IntoBox(data, box, c_.Reshape(updates, std::move(shape)), 0);
  }

  Value* ByLookup(Value* data, const Places& p, Value* updates) {
    const shardc::Shape shape = data->type.shape;
    int64_t n = 1;
    for (int d = 0; d < p.dims; ++d) n *= shape[d];
    shardc::Shape rows = {n};
    rows.insert(rows.end(), shape.begin() + p.dims, shape.end());
    data = c_.Reshape(data, rows);
    rows[0] = p.count;
    updates = c_.Reshape(updates, rows);
    const Ints at = FlatPlaces(p, shape);
    if (reduction_ == "none") return c_.Reshape(Replaced(data, at, updates), shape);
    if (const auto repeats = RepeatsOf(at, n); repeats && reduction_ == "add") {
      rows[0] = n;
      rows.insert(rows.begin() + (repeats->in_turns ? 0 : 1), repeats->times);
      const Ints axes = {repeats->in_turns ? 0 : 1};
      Value* sums = Reduce(c_, "reduce_sum", c_.Reshape(updates, rows), axes, false);
      return c_.Reshape(Combined(data, sums), shape);
    }
    // Of several updates of one place each has a round of its own.
    for (Ints left = Count(p.count); !left.empty();) {
      Ints now, later, places;
      std::set<int64_t> taken;
      for (int64_t i : left) (taken.insert(at[i]).second ? now : later).push_back(i);
      for (int64_t i : now) places.push_back(at[i]);
      Value* some = now.size() == at.size() ? updates : RowsAt(updates, now);
      data = Replaced(data, places, Combined(RowsAt(data, places), some));
      left = std::move(later);
    }
    return c_.Reshape(data, shape);
  }

 private:
  Value* IntoBox(Value* data, const Box& box, Value* updates, size_t d) {
    if (d == box.size.size()) return Combined(data, updates);
    const int axis = static_cast<int>(d);
    const int64_t from = box.start[d], to = from + box.size[d], n = data->type.shape[d];
    if (from == 0 && to == n) return IntoBox(data, box, updates, d + 1);
    std::vector<Value*> pieces;
    if (from > 0) pieces.push_back(SliceDim(c_, data, axis, 0, from));
    pieces.push_back(IntoBox(SliceDim(c_, data, axis, from, to), box, updates, d + 1));
    if (to < n) pieces.push_back(SliceDim(c_, data, axis, to, n));
    return Joined(c_, std::move(pieces), axis);
  }

  // The rows with those of `updates` in the places `at`; of two for one place the last.
  Value* Replaced(Value* rows, const Ints& at, Value* updates) {
    const int64_t n = rows->type.shape[0];
    Ints from = Count(n);
    for (size_t i = 0; i < at.size(); ++i) from[at[i]] = n + static_cast<int64_t>(i);
    return RowsAt(Joined(c_, {rows, updates}, 0), from);
  }

  Value* Combined(Value* there, Value* updates) {
    return reduction_ == "none" ? updates : c_.Make(reduction_, {there, updates});
  }

  Value* RowsAt(Value* rows, const Ints& at) {
    Value* indices = c_.Constant(HostTensor::Of<int64_t>({static_cast<int64_t>(at.size())}, at));
    return LookUp(c_, rows, indices);
  }

  NodeContext& c_;
  const std::string& reduction_;
};

// What changes nothing by the reduction, of updates' type.
Value* Neutral(NodeContext& c, const std::string& reduction, Value* updates) {
  const DType type = updates->type.dtype;
  if (reduction != "max" && reduction != "min") return Like(c, updates, reduction == "mul" ? 1 : 0);
  const bool max = reduction == "max";
  if (type == DType::kI64) {
    using Limits = std::numeric_limits<int64_t>;
    return c.Constant(HostTensor::Scalar(max ? Limits::min() : Limits::max()));
  }
  using Limits = std::numeric_limits<int32_t>;
  const double least = IsFloat(type) ? -std::numeric_limits<double>::infinity() : Limits::min();
  const double most = IsFloat(type) ? -least : Limits::max();
  return Like(c, updates, max ? least : most);
}

// Of [rows] one for each row of v.
Value* AlongRows(NodeContext& c, Value* chosen, const Value* v) {
  shardc::Shape shape(v->type.shape.size(), 1);
  shape[0] = v->type.shape[0];
  return c.Reshape(chosen, std::move(shape));
}

// Zero, or what changes nothing, in the rows that are not chosen: of a product in its smaller
// factor.
Value* Masked(NodeContext& c, Value* chosen, Value* v, Value* none, bool zero) {
  const Op* product = v->producer;
  if (zero && product && product->name() == "mul" && product->in(0).rank() == v->type.rank() &&
      product->in(1).rank() == v->type.rank()) {
    for (int i = 0; i < 2; ++i) {
      Value *small = product->operands[i], *other = product->operands[1 - i];
      if (small->type.shape[0] != v->type.shape[0] || other->type.shape != v->type.shape) continue;
      if (small->type.num_elements() == v->type.num_elements()) continue;
      return c.Make("mul", {Masked(c, chosen, small, none, zero), other});
    }
  }
  return Where(c, AlongRows(c, chosen, v), v, none);
}

}  // namespace

bool IsUniform(const NodeContext& c, Value* v) {
  while (v->producer && v->producer->name() == "broadcast_to") v = v->producer->operands[0];
  const HostTensor* t = c.ConstantOf(v);
  if (t == nullptr) return false;
  const int64_t bytes = DTypeSize(t->dtype());
  for (int64_t i = 1; i < t->num_elements(); ++i) {
    if (std::memcmp(t->raw(), t->raw() + i * bytes, bytes) != 0) return false;
  }
  return t->num_elements() > 0;
}

bool IsZeros(const NodeContext& c, Value* v) {
  if (!IsUniform(c, v)) return false;
  while (v->producer->name() == "broadcast_to") v = v->producer->operands[0];
  const double x = c.ConstantOf(v)->AsDouble(0);
  return x == 0 && !std::signbit(x);
}

Value* PutChosen(NodeContext& c, Value* data, const Places& places, Value* updates, Value* term,
                 Value* chosen, const std::string& reduction) {
  if (reduction != "none" || term != nullptr) {
    const std::string by = term != nullptr ? "add" : reduction;
    Value* made = term != nullptr ? term : updates;
    made = Masked(c, chosen, made, Neutral(c, by, made), by == "add");
    return PutAt(c, data, places, made, by);
  }
  const shardc::Shape shape = data->type.shape;
  shardc::Shape rows = {NumElements(shardc::Shape(shape.begin(), shape.begin() + places.dims))};
  rows.insert(rows.end(), shape.begin() + places.dims, shape.end());
  if (FlatPlaces(places, shape) == Count(rows[0])) {
    updates = c.Reshape(updates, rows);
    Value* there = IsZeros(c, data) ? Like(c, data, 0) : c.Reshape(data, rows);
    return c.Reshape(Where(c, AlongRows(c, chosen, updates), updates, there), shape);
  }
  auto sum = [&](Value* v) {
    Value* zero = Like(c, v, 0);
    shardc::Shape to = shape;
    if (v->type.rank() == 1) to.resize(places.dims);
    return PutAt(c, c.BroadcastTo(zero, to), places, Masked(c, chosen, v, zero, true), "add");
  };
  if (IsZeros(c, data)) return sum(updates);
  Value* hits = sum(c.BroadcastTo(c.Scalar(DType::kF32, 1), {places.count}));
  Value* hit = c.Make("greater", {hits, Like(c, hits, 0)});
  shardc::Shape along = hit->type.shape;
  along.resize(shape.size(), 1);
  return Where(c, c.Reshape(hit, along), sum(updates), data);
}

Value* PutAt(NodeContext& c, Value* data, const Places& places, Value* updates,
             const std::string& reduction) {
  Put put(c, reduction);
  if (updates->type.dtype != data->type.dtype) {
    c.Fail("E1303", StrCat("the updates of ", c.op_type(), " have another type than its data"));
  }
  if (updates->type.num_elements() == 0) return data;
  std::optional<Box> box = BoxOf(places);
  return box ? put.IntoBox(data, *box, updates) : put.ByLookup(data, places, updates);
}

}  // namespace shardc::onnx_import
