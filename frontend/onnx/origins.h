// How a tensor of the graph is made of one of the PyTorch module's, by their data.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>

#include "frontend/onnx/element_functions.h"
#include "ir/builder.h"
#include "ir/converted_source.h"
#include "ir/host_tensor.h"

namespace shardc::onnx_import {

// Elements times a number, plus another one.
struct Affine {
  double times = 1, plus = 0;

  double Of(double x) const { return times * x + plus; }
  bool operator==(const Affine&) const = default;
};
inline constexpr Affine kPlusOne{1, 1};

// What a tensor of the graph is of one of the module's.
struct Origin {
  std::string name;
  bool turned = false;  // its last two dims changed places
  Affine affine = {};
  Ints rows = {};     // the rows of it, along its last dim, that it has; none: it is all of it
  size_t across = 0;  // of rows: how many of its dims, without those of size 1, are before theirs;
                      // all of them: a row is one element
  const ElementFunction* function = nullptr;
};

// A tensor without its dims of size 1, as elements of one type.
class Squeezed {
 public:
  Squeezed(std::shared_ptr<const TensorSource> source, DType from, DType type, const Shape& whole)
      : data_(std::move(source), from, type), type_(type), whole_(whole), shape_(whole) {
    std::erase(shape_, 1);
  }
  const Shape& shape() const { return shape_; }
  DType type() const { return type_; }

  // A box of it; both of shape()'s rank.
  HostTensor Read(const Shape& offset, const Shape& size) const;
  HostTensor ReadAll() const { return Read(Shape(shape_.size()), shape_); }

 private:
  ConvertedSource data_;
  DType type_;
  Shape whole_, shape_;
};

// With the last two dims in each other's place.
Shape Turned(Shape shape);
HostTensor Turned(const HostTensor& t);

void Apply(const Affine& affine, HostTensor& t);

// Of tensors of one size.
bool SameBits(const HostTensor& a, const HostTensor& b);

// The first elements of every dim.
HostTensor Corner(const Squeezed& tensor);

// Whether it is, bit for bit, `of` turned or of the numbers that `how` says, or as it is.
bool IsMadeOf(const Squeezed& made, const Squeezed& of, const Origin& how);

// Which of these functions of `of` it is, to the accuracy of f32; null: none, or one beside a
// factor ("mul") that elements which differ too little do not tell.
const ElementFunction* FunctionOf(const Squeezed& made, const Squeezed& of,
                                  const std::set<std::string, std::less<>>& functions);

// What was made of the module's tensor: ops that make a value of the type `made`.
Value* MakeOf(Builder& b, Value* whole, const Origin& how, const TensorType& made);

// More than two values among the elements: two tensors of such data are not alike by chance.
bool IsTelling(const Squeezed& tensor);

// [outer, along, inner] of one dim and those before and behind it. Behind the last one is one of
// one element.
Shape Around(const Shape& shape, size_t dim);

// The rows of a tensor along one of its dims; behind the last one, its elements.
class RowsAlong {
 public:
  RowsAlong(const Squeezed& tensor, size_t dim);
  RowsAlong(const RowsAlong&) = delete;
  RowsAlong& operator=(const RowsAlong&) = delete;

  int64_t width() const { return rows_.shape().back(); }

  // Which they are of a tensor whose last dim has this width, as of a matrix, or of a vector that
  // is its only row, or which elements. None where it lacks one, or where it has a row twice and
  // what is next to it does not tell which it is.
  Ints In(const Squeezed& matrix);

 private:
  std::string_view Row(const HostTensor& t, int64_t i) const;
  void Look(const HostTensor& piece, int64_t first);

  HostTensor rows_;
  int64_t count_ = 0;
  std::unordered_map<std::string_view, Ints> places_;  // in the matrix
};

}  // namespace shardc::onnx_import
