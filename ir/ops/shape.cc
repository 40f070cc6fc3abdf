#include <cstring>

#include "ir/ops/reference_util.h"
#include "ir/ops/shape_layout.h"

namespace shardc {

void CopyStrided(const TensorView& in, const Shape& from, const Shape& step, const TensorView& out,
                 const Shape& to, const Shape& size) {
  Shape in_strides = DenseStrides(in.shape), out_strides = DenseStrides(out.shape);
  int64_t in_base = reference::Offset(from, in_strides);
  int64_t out_base = reference::Offset(to, out_strides);
  for (size_t d = 0; d < step.size(); ++d) in_strides[d] *= step[d];
  const int64_t bytes = DTypeSize(in.dtype);
  reference::ForEach<2>(size, {in_strides, out_strides},
                        [&](const auto& at) {
                          std::memcpy(out.data + at[1] * bytes, in.data + at[0] * bytes,
                                      static_cast<size_t>(bytes));
                        },
                        {in_base, out_base});
}

void RegisterShapeOps(OpRegistry& registry) {
  RegisterLayoutOps(registry);
  RegisterPieceOps(registry);
}

}  // namespace shardc
