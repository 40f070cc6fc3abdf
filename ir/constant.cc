#include "ir/constant.h"

namespace shardc {

const HostTensor* ConstantOf(const Value* value) {
  const Op* op = value->producer;
  return op != nullptr && op->name() == "constant" ? &op->attrs.Tensor("value") : nullptr;
}

}  // namespace shardc
