#include "frontend/onnx/static_scatter.h"

#include <algorithm>
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
    Ints at(p.count, 0);
    for (int64_t i = 0; i < p.count; ++i) {
      for (int64_t d = 0; d < p.dims; ++d) at[i] = at[i] * shape[d] + p.at[i * p.dims + d];
    }
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

}  // namespace

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
