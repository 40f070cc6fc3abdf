// Cheap ops at the border of two stages of a pipeline.
#pragma once

#include "ir/graph.h"

namespace shardc {

// Gives a cheap op whose results only another stage reads to that stage, where what then travels is
// less: its operands, but for those that others read there. A cast of what is read as it is, too.
// Before ops are fused with what stays. Nothing without a pipeline.
void MoveToReaders(Graph& graph);

}  // namespace shardc
