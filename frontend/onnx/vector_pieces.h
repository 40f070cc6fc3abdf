// Vectors that an exporter put together of the module's, or took out of one.
#pragma once

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "frontend/onnx/origins.h"

namespace shardc::onnx_import {

// A run of elements of one of the module's vectors, or of zeros.
struct VectorPiece {
  std::string name;  // none: zeros
  int64_t begin = 0, end = 0;
};

// The elements of vectors, without their dims of size 1, to find those that others were made of.
class VectorElements {
 public:
  explicit VectorElements(DType type) : type_(type) {}

  void Add(const std::string& name, const Squeezed& vector);

  // What a vector consists of, in order; of runs that begin alike the longest. Empty where an
  // element is of none of the vectors, where a run begins with what thousands of elements are,
  // where two of them go on equally far, and where a run is shorter than four elements and no whole
  // vector, as one by chance may be.
  std::vector<VectorPiece> PiecesOf(const Squeezed& vector) const;

 private:
  struct Place {
    size_t vector;
    int64_t at;
  };
  std::string_view Element(const HostTensor& t, int64_t i) const;
  int64_t Agreeing(const HostTensor& made, int64_t at, const Place& place) const;

  DType type_;
  std::vector<std::pair<std::string, HostTensor>> vectors_;
  std::unordered_map<std::string, std::vector<Place>> places_;
};

}  // namespace shardc::onnx_import
