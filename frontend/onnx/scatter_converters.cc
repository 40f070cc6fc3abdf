// ScatterND, ScatterElements, TensorScatter; NonZero, which is supported on constants only: the
// shape of its result has no op of ours.
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

// Whether all elements of the constant behind v are the same.
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

// Not of -0, which a sum of nothing is not.
bool IsZero(const NodeContext& c, Value* v) {
  if (!IsUniform(c, v)) return false;
  while (v->producer->name() == "broadcast_to") v = v->producer->operands[0];
  const double x = c.ConstantOf(v)->AsDouble(0);
  return x == 0 && !std::signbit(x);
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
  if (reduction == "none" && IsFloat(type) && IsZero(c, data)) return summed(updates);
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

void Put(NodeContext& c, const Places& places) {
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
  if (c.ConstantOf(indices) == nullptr)
    return c.SetOutput(0, Scatter(c, data, indices, 0, updates));
  Places places{static_cast<int>(k), NumElements(from) / k, c.ConstantInts(1)};
  for (size_t i = 0; i < places.at.size(); ++i) {
    places.at[i] = Inside(c, places.at[i], shape[static_cast<int64_t>(i) % k]);
  }
  Put(c, places);
}

void ScatterElements(NodeContext& c) {
  Value *data = c.input(0), *indices = c.input(1), *updates = c.input(2);
  const shardc::Shape &shape = data->type.shape, &from = indices->type.shape;
  const int rank = data->type.rank(), axis = Axis(c, c.Int("axis", 0), rank);
  bool fits = updates->type.shape == from && from.size() == shape.size();
  for (int d = 0; fits && d < rank; ++d) fits = d == axis || from[d] <= shape[d];
  if (!fits) c.Fail("E1303", "the shapes of ScatterElements do not fit each other");
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

void NonZero(NodeContext& c) {
  const HostTensor& x = RequireConstant(c, 0);
  std::vector<int64_t> found;
  for (int64_t i = 0; i < x.num_elements(); ++i) {
    if (x.AsDouble(i) != 0) found.push_back(i);
  }
  int64_t rank = static_cast<int64_t>(x.shape().size()), count = static_cast<int64_t>(found.size());
  HostTensor out(DType::kI64, {rank, count});
  for (int64_t j = 0; j < count; ++j) {
    int64_t left = found[j];
    for (int64_t d = rank - 1; d >= 0; --d) {
      out.data<int64_t>()[d * count + j] = left % x.shape()[d];
      left /= x.shape()[d];
    }
  }
  c.SetOutput(0, c.Constant(std::move(out)));
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
