#include "passes/carried_layout.h"

#include "passes/layout.h"
#include "passes/layout_inference.h"

namespace shardc {

bool CutIsCarried(const Value* value, int dim, int64_t parts) {
  Mesh mesh({{"parts", parts}});
  return LayoutInference(mesh, {0}).Carries(value, dim);
}

std::optional<DimSharding> CarriedLayout(const Value* value, int dim, const AxisList& axes,
                                         const Mesh& mesh) {
  LayoutInference inference(mesh, axes);
  DimSharding layout = inference.Wanted(value, dim);
  const int64_t size = value->type.shape[dim];
  if (!FillsParts(size, layout, mesh) || !inference.Carries(value, dim)) return std::nullopt;
  return layout;
}

DimSharding WantedLayout(const Value* value, int dim, const AxisList& axes, const Mesh& mesh) {
  LayoutInference inference(mesh, axes);
  DimSharding wanted = inference.Wanted(value, dim);
  if (IsInformative(wanted) || inference.Carries(value, dim)) return wanted;
  return LayoutInference(mesh, axes, LayoutInference::Parts::kSomeEmpty).Wanted(value, dim);
}

std::optional<int64_t> DimToCut(const Value* value, const Ints& dims, int64_t parts) {
  Mesh mesh({{"parts", parts}});
  return LayoutInference(mesh, {0}).DimToCut(value, dims);
}

}  // namespace shardc
