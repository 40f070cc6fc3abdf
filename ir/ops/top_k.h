#pragma once

#include "ir/op_def.h"

namespace shardc {

void AddTopK(OpRegistry& registry);  // of the index family

}  // namespace shardc
