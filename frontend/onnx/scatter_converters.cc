// Ops that are supported on constants only: their result, or its shape, has no op of ours.
#include <algorithm>
#include <cstring>
#include <string>

#include "frontend/onnx/convert_util.h"

namespace shardc::onnx_import {
namespace {

const HostTensor& RequireConstant(NodeContext& c, int i) {
  const HostTensor* t = c.ConstantOf(c.input(i));
  if (t == nullptr) {
    c.Fail("E1301",
           StrCat(c.op_type(), " of values that are known only when the model runs is not ",
                  "supported"),
           "export the model with fixed shapes, or write it with Where or Concat");
  }
  return *t;
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
    return reduction == "max" ? std::max(a, b) : std::min(a, b);
  };
  if (out.dtype() == DType::kI64) {
    out.data<int64_t>()[to] = combined(out.AsInt(to), updates.AsInt(from));
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

void ScatterNd(NodeContext& c) {
  const HostTensor &data = RequireConstant(c, 0), &indices = RequireConstant(c, 1),
                   &updates = RequireConstant(c, 2);
  int64_t rank = static_cast<int64_t>(data.shape().size());
  int64_t k = indices.shape().empty() ? -1 : indices.shape().back();
  if (k < 0 || k > rank) c.Fail("E1303", "the indices of ScatterND do not fit its data");
  int64_t slice = NumElements(Shape(data.shape().begin() + k, data.shape().end()));
  int64_t count = NumElements(Shape(indices.shape().begin(), indices.shape().end() - 1));
  if (updates.num_elements() != count * slice || updates.dtype() != data.dtype()) {
    c.Fail("E1303", "the updates of ScatterND do not fit its indices");
  }
  HostTensor out = data;
  for (int64_t i = 0; i < count; ++i) {
    int64_t at = 0;
    for (int64_t d = 0; d < k; ++d) {
      int64_t n = data.shape()[d];
      at = at * n + Inside(c, indices.AsInt(i * k + d), n);
    }
    for (int64_t j = 0; j < slice; ++j) {
      Combine(c, c.String("reduction", "none"), out, at * slice + j, updates, i * slice + j);
    }
  }
  c.SetOutput(0, c.Constant(std::move(out)));
}

void ScatterElements(NodeContext& c) {
  const HostTensor &data = RequireConstant(c, 0), &indices = RequireConstant(c, 1),
                   &updates = RequireConstant(c, 2);
  const Shape &shape = data.shape(), &from = indices.shape();
  int rank = static_cast<int>(shape.size()), axis = Axis(c, c.Int("axis", 0), rank);
  bool fits =
      updates.shape() == from && updates.dtype() == data.dtype() && from.size() == shape.size();
  for (int d = 0; fits && d < rank; ++d) fits = d == axis || from[d] <= shape[d];
  if (!fits) c.Fail("E1303", "the shapes of ScatterElements do not fit each other");
  HostTensor out = data;
  for (int64_t i = 0; i < indices.num_elements(); ++i) {
    int64_t to = 0, left = i, stride = 1;
    for (int d = rank - 1; d >= 0; --d) {
      int64_t at = left % from[d];
      left /= from[d];
      to += stride * (d == axis ? Inside(c, indices.AsInt(i), shape[d]) : at);
      stride *= shape[d];
    }
    Combine(c, c.String("reduction", "none"), out, to, updates, i);
  }
  c.SetOutput(0, c.Constant(std::move(out)));
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
                {"NonZero", NonZero}});
}

}  // namespace shardc::onnx_import
