#pragma once

#include <string_view>

#include "ir/builder.h"
#include "ir/op_def.h"

namespace shardc {

void AddMatmulRows(OpRegistry& registry);  // of the matmul family

// For OpDef::simplify: a product with transpose(b), of the last two dims, is the op `other` of b,
// as matmul and matmul_nt are to each other. Null: it is no such product.
Value* AbsorbTranspose(Builder& b, const Op& op, std::string_view other);

}  // namespace shardc
