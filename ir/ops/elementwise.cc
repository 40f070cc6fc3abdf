#include "ir/ops/elementwise.h"

namespace shardc {

void RegisterElementwiseOps(OpRegistry& registry) {
  RegisterUnaryOps(registry);
  RegisterBinaryOps(registry);
  RegisterCompareOps(registry);
  RegisterFusedElementwiseOp(registry);
}

}  // namespace shardc
