#include "frontend/onnx/origins.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "frontend/onnx/read_pieces.h"
#include "ir/contains.h"

namespace shardc::onnx_import {

HostTensor Squeezed::Read(const Shape& offset, const Shape& size) const {
  Shape at, box;
  for (size_t d = 0, s = 0; d < whole_.size(); ++d) {
    const bool one = whole_[d] == 1;
    at.push_back(one ? 0 : offset[s]);
    box.push_back(one ? 1 : size[s]);
    s += !one;
  }
  HostTensor piece(type_, size);
  data_.Read(at, box, piece.raw());
  return piece;
}

Shape Turned(Shape shape) {
  if (shape.size() > 1) std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
  return shape;
}

HostTensor Turned(const HostTensor& t) {
  HostTensor turned(t.dtype(), Turned(t.shape()));
  const int64_t size = DTypeSize(t.dtype()), columns = t.shape().back();
  const int64_t rows = t.shape()[t.shape().size() - 2];
  for (int64_t i = 0; i < t.num_elements(); ++i) {
    const int64_t matrix = i / (rows * columns), row = i / columns % rows, column = i % columns;
    std::memcpy(turned.raw() + ((matrix * columns + column) * rows + row) * size,
                t.raw() + i * size, size);
  }
  return turned;
}

bool SameBits(const HostTensor& a, const HostTensor& b) {
  return std::equal(a.raw(), a.raw() + a.bytes(), b.raw());
}

void Apply(const Affine& affine, HostTensor& t) {
  if (affine == Affine()) return;
  for (int64_t i = 0; i < t.num_elements(); ++i) t.SetDouble(i, affine.Of(t.AsDouble(i)));
}

namespace {

Value* Rows(Builder& b, Value* matrix, const Ints& rows) {
  const auto count = static_cast<int64_t>(rows.size());
  if (matrix->type.shape[0] == 1) return b.BroadcastTo(matrix, {count, matrix->type.shape[1]});
  HostTensor ids(DType::kI64, {count});
  bool in_turn = true;
  for (int64_t i = 0; i < count; ++i) {
    ids.SetDouble(i, static_cast<double>(rows[i]));
    in_turn &= rows[i] == rows[0] + i;
  }
  if (in_turn) return b.Slice(matrix, 0, rows[0], rows[0] + count);
  return b.Make("gather", {matrix, b.Constant(std::move(ids))}, {{"axis", 0}});
}

bool AgreeIn(const Shape& offset, const Shape& size, const Squeezed& made, const Squeezed& of,
             const Origin& how) {
  HostTensor expected = how.turned ? Turned(of.Read(Turned(offset), Turned(size)))  //
                                   : of.Read(offset, size);
  Apply(how.affine, expected);
  return SameBits(made.Read(offset, size), expected);
}

Shape CornerOf(Shape shape) {
  for (int64_t& n : shape) n = std::min<int64_t>(n, 4);
  return shape;
}

// Enough to see a factor beside the rounding of a function.
bool DiffersEnough(const Squeezed& tensor) {
  double least = HUGE_VAL, most = -HUGE_VAL;
  HoldsOfPieces(tensor.shape(), [&](const Shape& offset, const Shape& size) {
    const HostTensor piece = tensor.Read(offset, size);
    for (int64_t i = 0; i < piece.num_elements(); ++i) {
      least = std::min(least, piece.AsDouble(i));
      most = std::max(most, piece.AsDouble(i));
    }
    return true;
  });
  return most - least >= 1e-3 * std::max({1., -least, most});
}

}  // namespace

HostTensor Corner(const Squeezed& tensor) {
  return tensor.Read(Shape(tensor.shape().size()), CornerOf(tensor.shape()));
}

bool IsMadeOf(const Squeezed& made, const Squeezed& of, const Origin& how) {
  if (made.shape() != (how.turned ? Turned(of.shape()) : of.shape())) return false;
  if (!AgreeIn(Shape(made.shape().size()), CornerOf(made.shape()), made, of, how)) return false;
  return HoldsOfPieces(made.shape(), [&](const Shape& offset, const Shape& size) {
    return AgreeIn(offset, size, made, of, how);
  });
}

bool IsTelling(const Squeezed& tensor) {
  std::vector<double> values;
  const bool few = HoldsOfPieces(tensor.shape(), [&](const Shape& offset, const Shape& size) {
    const HostTensor piece = tensor.Read(offset, size);
    for (int64_t i = 0; i < piece.num_elements() && values.size() < 3; ++i) {
      if (!Contains(values, piece.AsDouble(i))) values.push_back(piece.AsDouble(i));
    }
    return values.size() < 3;
  });
  return !few;
}

Shape Around(const Shape& shape, size_t dim) {
  if (dim == shape.size()) return {NumElements(shape), 1, 1};
  const auto at = shape.begin() + static_cast<int64_t>(dim);
  return {NumElements({shape.begin(), at}), *at, NumElements({at + 1, shape.end()})};
}

const ElementFunction* FunctionOf(const Squeezed& made, const Squeezed& of,
                                  const std::set<std::string, std::less<>>& functions) {
  constexpr double kMostError = 2e-6;  // libraries round functions each in its own way
  if (made.shape() != of.shape()) return nullptr;
  const ElementFunction* best = nullptr;
  double least = kMostError;
  for (const ElementFunction& f : ElementFunctions()) {
    if (!functions.contains(f.name)) continue;
    double error = 0;
    HoldsOfPieces(made.shape(), [&](const Shape& offset, const Shape& size) {
      const HostTensor is = made.Read(offset, size), x = of.Read(offset, size);
      for (int64_t i = 0; i < is.num_elements(); ++i) {
        const double value = f.value(x.AsDouble(i));
        const double off = std::abs(is.AsDouble(i) - value) / std::max(1., std::abs(value));
        if (!(off <= error)) error = off;
      }
      return error <= least;
    });
    if (!(error <= least)) continue;
    least = error;
    best = &f;
  }
  const bool scaled = functions.contains("mul") || functions.contains("div");
  return best && scaled && !DiffersEnough(made) ? nullptr : best;
}

RowsAlong::RowsAlong(const Squeezed& tensor, size_t dim)
    : rows_(tensor.type(), Around(tensor.shape(), dim)) {
  const HostTensor read = tensor.ReadAll();
  std::copy_n(read.raw(), read.bytes(), rows_.raw());
  rows_ = Turned(rows_);
  count_ = rows_.num_elements() / width();
  for (int64_t i = 0; i < count_; ++i) places_[Row(rows_, i)];
}

Ints RowsAlong::In(const Squeezed& matrix) {
  for (auto& [row, at] : places_) at.clear();
  if (matrix.shape().size() == 1 || width() == 1) {
    Look(matrix.ReadAll(), 0);
  } else {
    const int64_t rows = NumElements(matrix.shape()) / (matrix.shape()[0] * width());
    HoldsOfPieces(matrix.shape(), [&](const Shape& offset, const Shape& size) {
      Look(matrix.Read(offset, size), offset[0] * rows);
      return true;
    });
  }
  Ints found;
  for (int64_t i = 0; i < count_; ++i) {
    const Ints& at = places_.at(Row(rows_, i));
    if (i > 0 && Contains(at, found.back() + 1)) {
      found.push_back(found.back() + 1);
    } else if (at.size() == 1) {
      found.push_back(at[0]);
    } else {
      return {};
    }
  }
  return found;
}

std::string_view RowsAlong::Row(const HostTensor& t, int64_t i) const {
  const int64_t bytes = width() * DTypeSize(rows_.dtype());
  return {reinterpret_cast<const char*>(t.raw()) + i * bytes, static_cast<size_t>(bytes)};
}

void RowsAlong::Look(const HostTensor& piece, int64_t first) {
  for (int64_t i = 0; i * width() < piece.num_elements(); ++i) {
    const auto place = places_.find(Row(piece, i));
    if (place != places_.end()) place->second.push_back(first + i);
  }
}

Value* MakeOf(Builder& b, Value* v, const Origin& how, const TensorType& made) {
  Shape of = v->type.shape, to = made.shape;
  std::erase(of, 1);
  std::erase(to, 1);
  if (how.turned) {
    Ints perm(to.size());
    for (size_t d = 0; d < perm.size(); ++d) perm[d] = static_cast<int64_t>(d);
    v = b.Transpose(b.Reshape(v, Turned(to)), Turned(std::move(perm)));
  }
  if (!how.rows.empty()) {
    const Shape around = Around(to, how.across);
    const int64_t width = how.across == to.size() ? 1 : of.back();
    v = Rows(b, b.Reshape(v, {v->type.num_elements() / width, width}), how.rows);
    if (around[2] > 1) {
      v = b.Transpose(b.Reshape(v, {around[0], around[2], around[1]}), {0, 2, 1});
    }
  }
  if (how.function) v = how.function->make(b, v);
  const auto [times, plus] = how.affine;
  if (times != 1) v = b.Mul(v, b.Scalar(v->type.dtype, times));
  if (plus != 0) v = b.Add(v, b.Scalar(v->type.dtype, plus));
  return b.Reshape(v, made.shape);
}

}  // namespace shardc::onnx_import
