#include "passes/infers.h"

#include <algorithm>
#include <vector>

#include "ir/diagnostic.h"

namespace shardc {

bool Infers(const OpDef& def, std::span<const TensorType> operands, const Attributes& attrs,
            std::span<const TensorType> results) {
  if (!def.infer) return false;
  std::vector<const TensorType*> pointers;
  for (const TensorType& t : operands) pointers.push_back(&t);
  try {
    std::vector<TensorType> inferred = def.infer({pointers, attrs});
    return std::equal(inferred.begin(), inferred.end(), results.begin(), results.end(),
                      [](const TensorType& a, const TensorType& b) { return a.SameTensor(b); });
  } catch (const Diagnostic&) {
    return false;
  }
}

Attributes AttributesOfPart(const Op& op, std::span<const TensorType> results, int dim,
                            int64_t start) {
  if (!op.def->resized) return op.attrs;
  Shape origin(op.out().shape.size());
  if (dim >= 0) origin[dim] = start;
  return op.def->resized(op, results, origin);
}

}  // namespace shardc
