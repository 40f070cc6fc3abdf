#pragma once

#include "ir/op_def.h"

namespace shardc {

void AddGatherNd(OpRegistry& registry);  // of the index family

}  // namespace shardc
