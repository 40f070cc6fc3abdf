#include "ir/ops/elementwise.h"

namespace shardc {

void RegisterElementwiseOps(OpRegistry& registry) {
  RegisterUnaryOps(registry);
  RegisterBinaryOps(registry);
  RegisterCompareOps(registry);
  RegisterBitwiseOps(registry);
  RegisterFusedElementwiseOp(registry);
}

}  // namespace shardc
