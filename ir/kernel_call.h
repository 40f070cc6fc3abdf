// What a kernel sees of one instruction: raw memory, local shapes, and where on the global tensor
// the local part lies.
#pragma once

#include <span>
#include <vector>

#include "ir/attributes.h"
#include "ir/mesh.h"
#include "ir/sharding.h"

namespace shardc {

struct TensorView {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;                       // local, physical (padding included), row-major
  const TensorType* type = nullptr;  // global; null: the tensor is whole (tests, folding)

  int rank() const { return static_cast<int>(shape.size()); }
  int64_t num_elements() const { return NumElements(shape); }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
};

struct KernelCall {
  const Attributes* attrs = nullptr;
  std::span<const TensorView> in;
  std::span<const TensorView> out;
  const Mesh* mesh = nullptr;  // null: one rank
  int64_t rank = 0;
  int threads = 1;

  // The valid stretches of dim d of a view: which global elements it holds, and where.
  std::vector<Run> Runs(const TensorView& view, int dim) const {
    if (!view.type || !mesh) return {{0, 0, view.shape[dim]}};
    return LocalRuns(view.type->shape[dim], view.type->sharding.dims[dim], *mesh, rank);
  }
  int64_t GlobalDim(const TensorView& view, int dim) const {
    return view.type ? view.type->shape[dim] : view.shape[dim];
  }
};

}  // namespace shardc
