// ScatterND, ScatterElements, TensorScatter; NonZero, of constants or of rows that are put back.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "frontend/onnx/convert_util.h"
#include "frontend/onnx/static_scatter.h"
#include "frontend/onnx/write_cache.h"

namespace shardc::onnx_import {
namespace {

const HostTensor& RequireConstant(NodeContext& c, int i) {
  const HostTensor* t = c.ConstantOf(c.input(i));
  if (t == nullptr) {
    c.Fail("E1301",
           StrCat(c.op_type(), " of values that are known only when the model runs is not ",
                  "supported"),
           kDataDecides);
  }
  return *t;
}

// Adds what goes to each place, by the scatter that is gather_nd's gradient, to data or over it.
// Without a reduction no place may be written twice (ONNX), unless by the same element everywhere.
Value* Scatter(NodeContext& c, Value* data, Value* positions, int batch, Value* updates) {
  const std::string reduction = c.String("reduction", "none");
  const shardc::Shape shape = data->type.shape;
  const DType type = data->type.dtype;
  if (reduction != "none" && reduction != "add") {
    c.Fail("E1304",
           StrCat("the reduction \"", reduction, "\" of ", c.op_type(),
                  " needs positions that are known when compiling"),
           "use \"none\" or \"add\"");
  }
  if (updates->type.dtype != type) c.Fail("E1303", "the updates have another type than the data");
  const int64_t k = positions->type.shape.back();
  const Ints sizes(shape.begin() + batch, shape.begin() + batch + k);
  auto summed = [&](Value* v) {
    return c.Make("gather_nd_grad", {v, positions},
                  {{"batch_dims", int64_t{batch}}, {"sizes", sizes}});
  };
  auto hit = [&] {
    Value* hits = summed(c.BroadcastTo(c.Scalar(DType::kF32, 1), updates->type.shape));
    return c.Make("greater", {hits, Like(c, hits, 0)});
  };
  if (reduction == "none" && IsUniform(c, updates)) {
    Value* one = updates;
    while (one->producer->name() == "broadcast_to") one = one->producer->operands[0];
    HostTensor scalar(type, {});
    std::memcpy(scalar.raw(), c.ConstantOf(one)->raw(), DTypeSize(type));
    return Where(c, hit(), c.Constant(std::move(scalar)), data);
  }
  if (type == DType::kI64) {
    c.Fail("E1301",
           StrCat(c.op_type(), " of 64-bit integers to places that are known only when the ",
                  "model runs is not supported"),
           "scatter floats, or 32-bit integers");
  }
  // Where nothing goes the sum is zero: weights of experts that a token does not go to.
  if (reduction == "none" && IsFloat(type) && IsZeros(c, data)) return summed(updates);
  Value* sum = c.Cast(summed(IsFloat(type) ? updates : c.Cast(updates, DType::kF64)), type);
  return reduction == "add" ? Add(c, data, sum) : Where(c, hit(), sum, data);
}

// Element `to` of out becomes element `from` of updates, or both combined.
void Combine(NodeContext& c, const std::string& reduction, HostTensor& out, int64_t to,
             const HostTensor& updates, int64_t from) {
  int64_t bytes = DTypeSize(out.dtype());
  if (reduction == "none") {
    std::memcpy(out.raw() + to * bytes, updates.raw() + from * bytes, bytes);
    return;
  }
  if (reduction != "add" && reduction != "mul" && reduction != "max" && reduction != "min") {
    c.Fail("E1303", StrCat("there is no reduction \"", reduction, "\""));
  }
  auto combined = [&](auto a, auto b) {
    if (reduction == "add") return a + b;
    if (reduction == "mul") return a * b;
    if (std::isnan(static_cast<double>(a)) || std::isnan(static_cast<double>(b))) return a + b;
    return reduction == "max" ? std::max(a, b) : std::min(a, b);
  };
  if (out.dtype() == DType::kI64) {
    const int64_t a = out.AsInt(to), b = updates.AsInt(from);
    int64_t unused = 0;
    if ((reduction == "add" && __builtin_add_overflow(a, b, &unused)) ||
        (reduction == "mul" && __builtin_mul_overflow(a, b, &unused))) {
      c.Fail("E1306", StrCat(reduction, " of the constants ", a, " and ", b, " overflows"));
    }
    out.data<int64_t>()[to] = combined(a, b);
  } else if (out.dtype() == DType::kI32) {
    // Wraps, as in ONNX Runtime.
    out.data<int32_t>()[to] = static_cast<int32_t>(combined(out.AsInt(to), updates.AsInt(from)));
  } else {
    out.SetDouble(to, combined(out.AsDouble(to), updates.AsDouble(from)));
  }
}

int64_t Inside(const NodeContext& c, int64_t i, int64_t n) {
  if (i < -n || i >= n) {
    c.Fail("E1303", StrCat("index ", i, " is out of range for a dim of size ", n));
  }
  return i < 0 ? i + n : i;
}

// Of several updates of one place the last wins, or all are combined.
HostTensor PutConstants(NodeContext& c, const Places& places, const std::string& reduction) {
  const HostTensor& updates = RequireConstant(c, 2);
  HostTensor out = RequireConstant(c, 0);
  const Shape& shape = out.shape();
  if (updates.dtype() != out.dtype()) {
    c.Fail("E1303", StrCat("the updates of ", c.op_type(), " have another type than its data"));
  }
  const int64_t slice = NumElements(Shape(shape.begin() + places.dims, shape.end()));
  for (int64_t i = 0; i < places.count; ++i) {
    int64_t at = 0;
    for (int d = 0; d < places.dims; ++d) at = at * shape[d] + places.at[i * places.dims + d];
    for (int64_t e = 0; e < slice; ++e) {
      Combine(c, reduction, out, at * slice + e, updates, i * slice + e);
    }
  }
  return out;
}

// The mask of rows that is spread over all of their elements, as x[mask] = y is exported; else it.
Value* MaskOfRows(Value* mask) {
  Value* rows = mask;
  if (rows->producer && rows->producer->name() == "broadcast_to") {
    const shardc::Shape &from = rows->producer->in(0).shape, &to = rows->type.shape;
    size_t lead = 0;
    while (lead < from.size() && from[lead] == to[lead]) ++lead;
    const bool spread = from.size() == to.size() && lead > 0 &&
                        std::all_of(from.begin() + static_cast<int64_t>(lead), from.end(),
                                    [](int64_t n) { return n == 1; });
    if (!spread) return mask;
    rows = rows->producer->operands[0];
  }
  while (rows->producer && rows->producer->name() == "reshape") rows = rows->producer->operands[0];
  return rows;
}

// One for each of the places of a mask; the same for the same mask, so that rows go together.
Value* ChosenBy(NodeContext& c, Value* mask) {
  Value*& chosen = c.rows().chosen_by(mask);
  if (chosen == nullptr) {
    chosen = c.Reshape(c.Cast(mask, DType::kBool), {mask->type.num_elements()});
  }
  return chosen;
}

// Puts what comes of rows that data chooses, each to one of the places, into data. `updates` has
// them, or the elements of each, along its first dim.
Value* PutRows(NodeContext& c, const Places& places, const ChosenRows::Mark& at) {
  Value *data = c.input(0), *updates = c.input(2), *term = nullptr;
  const ChosenRows::Mark* rows = c.rows().Of(updates);
  const bool fits = rows == nullptr
                        ? IsUniform(c, updates)
                        : rows->dim == 0 && rows->chosen == at.chosen && rows->each == at.each;
  if (!fits || c.rows().Of(data) != nullptr) {
    c.Fail("E1301",
           StrCat(c.op_type(), " of other rows than those that are chosen is not supported"),
           kDataDecides);
  }
  const ChosenRows::Pause pause(c.rows());
  shardc::Shape shape = {places.count};
  shape.insert(shape.end(), data->type.shape.begin() + places.dims, data->type.shape.end());
  Value* made = updates;
  while (made->producer && made->producer->name() == "reshape") made = made->producer->operands[0];
  const Op* sum = made->producer;
  const std::string reduction = c.String("reduction", "none");
  for (int i = 0; i < 2 && sum != nullptr && sum->name() == "add"; ++i) {
    if (c.rows().TakenFrom(sum->operands[i], places.at) != data) continue;
    if (reduction == "none" && sum->in(1 - i).shape == sum->out().shape)
      term = c.Reshape(sum->operands[1 - i], shape);
  }
  return PutChosen(c, data, places, c.Reshape(updates, shape), term, at.chosen, reduction);
}

// The same of updates for all elements of rows that are spread over data.
Value* PutElements(NodeContext& c, const ChosenRows::Mark& at) {
  const shardc::Shape& shape = c.input(0)->type.shape;
  const int64_t rows = ChosenRows::RowsOf(at);
  int lead = 0;
  for (int64_t n = 1; n < rows && lead < std::ssize(shape); ++lead) n *= shape[lead];
  const shardc::Shape first(shape.begin(), shape.begin() + lead);
  if (NumElements(first) != rows || NumElements(shape) != rows * at.each || at.coordinates != 1) {
    c.Fail("E1301", StrCat(c.op_type(), " of rows to a part of the data is not supported"),
           kDataDecides);
  }
  Places places{lead, rows, {}};
  for (int64_t i = 0; i < rows; ++i) {
    places.at.resize(places.at.size() + lead);
    for (int64_t d = lead - 1, left = i; d >= 0; left /= first[d], --d) {
      places.at[i * lead + d] = left % first[d];
    }
  }
  return PutRows(c, places, at);
}

void Put(NodeContext& c, const Places& places) {
  if (const ChosenRows::Mark* rows = c.rows().Of(c.input(1))) {
    return c.SetOutput(0, PutRows(c, places, *rows));
  }
  if (c.rows().Of(c.input(0)) != nullptr || c.rows().Of(c.input(2)) != nullptr) {
    c.Fail("E1301",
           StrCat(c.op_type(), " of chosen rows to places that are not theirs is not supported"),
           kDataDecides);
  }
  const std::string reduction = c.String("reduction", "none");
  const bool constant = c.ConstantOf(c.input(0)) && c.ConstantOf(c.input(2));
  c.SetOutput(0, constant ? c.Constant(PutConstants(c, places, reduction))
                          : PutAt(c, c.input(0), places, c.input(2), reduction));
}

void ScatterNd(NodeContext& c) {
  Value *data = c.input(0), *indices = c.input(1), *updates = c.input(2);
  const shardc::Shape &shape = data->type.shape, &from = indices->type.shape;
  const int64_t k = from.empty() ? 0 : from.back();
  if (k < 1 || k > data->type.rank())
    c.Fail("E1303", "the indices of ScatterND do not fit its data");
  shardc::Shape expected(from.begin(), from.end() - 1);
  expected.insert(expected.end(), shape.begin() + k, shape.end());
  if (updates->type.shape != expected) {
    c.Fail("E1303", "the updates of ScatterND do not fit its indices");
  }
  const ChosenRows::Mark* rows = c.rows().Of(indices);
  if (rows != nullptr && rows->coordinates >= 0) return c.SetOutput(0, PutElements(c, *rows));
  if (c.ConstantOf(indices) == nullptr)
    return c.SetOutput(0, Scatter(c, data, indices, 0, updates));
  Places places{static_cast<int>(k), NumElements(from) / k, c.ConstantInts(1)};
  for (size_t i = 0; i < places.at.size(); ++i) {
    places.at[i] = Inside(c, places.at[i], shape[static_cast<int64_t>(i) % k]);
  }
  Put(c, places);
}

// The constant [rows, 1, ...] that indices are along all other dims; null where they are not so.
const HostTensor* RowsAlone(const NodeContext& c, const Value* indices) {
  if (!indices->producer || indices->producer->name() != "broadcast_to") return nullptr;
  Value* rows = indices->producer->operands[0];
  const bool alone = rows->type.rank() == indices->type.rank() && rows->type.rank() > 0 &&
                     rows->type.num_elements() == rows->type.shape[0] &&
                     rows->type.shape[0] == indices->type.shape[0];
  return alone ? c.ConstantOf(rows) : nullptr;
}

void ScatterElements(NodeContext& c) {
  Value *data = c.input(0), *indices = c.input(1), *updates = c.input(2);
  const shardc::Shape &shape = data->type.shape, &from = indices->type.shape;
  const int rank = data->type.rank(), axis = Axis(c, c.Int("axis", 0), rank);
  bool fits = updates->type.shape == from && from.size() == shape.size();
  for (int d = 0; fits && d < rank; ++d) fits = d == axis || from[d] <= shape[d];
  if (!fits) c.Fail("E1303", "the shapes of ScatterElements do not fit each other");
  if (const HostTensor* of_rows = RowsAlone(c, indices);
      of_rows != nullptr && axis == 0 &&
      std::equal(from.begin() + 1, from.end(), shape.begin() + 1)) {
    Places places{1, from[0], {}};
    for (int64_t i = 0; i < from[0]; ++i) {
      places.at.push_back(Inside(c, of_rows->AsInt(i), shape[0]));
    }
    return Put(c, places);
  }
  if (c.ConstantOf(indices) == nullptr) {
    const Positions at = PositionsAlong(c, shape, indices, axis);
    return c.SetOutput(0, Scatter(c, data, at.tuples, at.batch_dims, updates));
  }
  const Ints along = c.ConstantInts(1);
  Places places{rank, NumElements(from), Ints(along.size() * shape.size())};
  for (int64_t i = 0; i < places.count; ++i) {
    for (int64_t d = rank - 1, left = i; d >= 0; left /= from[d], --d) {
      int64_t at = left % from[d];
      places.at[i * rank + d] = d == axis ? Inside(c, along[i], shape[d]) : at;
    }
  }
  Put(c, places);
}

void TensorScatter(NodeContext& c) {
  const std::string mode = c.String("mode", "linear");
  if (mode != "linear" && mode != "circular") {
    c.Fail("E1303", StrCat("there is no mode \"", mode, "\""));
  }
  Value* cache = c.input(0);
  const int axis = Axis(c, c.Int("axis", -2), cache->type.rank());
  Value* starts = c.InputOrNull(2);
  if (!starts) starts = c.Constant(HostTensor(DType::kI64, {cache->type.shape[0]}));
  c.SetOutput(0, WriteCache(c, cache, c.input(1), starts, axis, mode == "circular"));
}

// [dims, places], of places in the row-major order of the shape.
HostTensor Coordinates(const Ints& places, const shardc::Shape& shape) {
  const int64_t rank = std::ssize(shape), count = std::ssize(places);
  HostTensor out(DType::kI64, {rank, count});
  for (int64_t j = 0; j < count; ++j) {
    int64_t left = places[j];
    for (int64_t d = rank - 1; d >= 0; --d) {
      out.data<int64_t>()[d * count + j] = left % shape[d];
      left /= shape[d];
    }
  }
  return out;
}

// Of a mask that is known only when the model runs all places, of which data chooses
// (chosen_rows.h).
Value* PlacesOfChosen(NodeContext& c, Value* mask) {
  const shardc::Shape& shape = mask->type.shape;
  const int64_t rank = std::ssize(shape), count = NumElements(shape);
  if (rank == 0 || c.rows().Of(mask) != nullptr) RequireConstant(c, 0);
  Value* rows = MaskOfRows(mask);
  const ChosenRows::Mark mark = {1, ChosenBy(c, rows)};
  if (rows->type.num_elements() == count) {
    Value* places = c.Constant(Coordinates(Count(count), shape));
    c.rows().Set(places, mark);
    return places;
  }
  Value* places = c.builder().BroadcastTo(c.Constant(HostTensor(DType::kI64, {})), {rank, count});
  c.rows().Set(places, {1, mark.chosen, count / rows->type.num_elements(), 0});
  return places;
}

void NonZero(NodeContext& c) {
  const HostTensor* known = c.ConstantOf(c.input(0));
  if (known == nullptr) return c.SetOutput(0, PlacesOfChosen(c, c.input(0)));
  const shardc::Shape& shape = known->shape();
  Ints found;
  for (int64_t i = 0; i < known->num_elements(); ++i) {
    if (known->AsDouble(i) != 0) found.push_back(i);
  }
  c.SetOutput(0, c.Constant(Coordinates(found, shape)));
}

}  // namespace

void AddScatterConverters(ConverterTable& table) {
  table.insert({{"ScatterND", ScatterNd},
                {"ScatterElements", ScatterElements},
                {"Scatter", ScatterElements},
                {"TensorScatter", TensorScatter},
                {"NonZero", NonZero}});
}

}  // namespace shardc::onnx_import
