// Ops that some numbers make fail, or give no number.
#pragma once

#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace shardc::onnx_import {

// The operand that must not be just anything, or the op's result, or its gradient, is no number, or
// the op fails: a divisor, positions, what a logarithm is of; -1: none.
int DelicateOperand(std::string_view op, const std::vector<Value*>& operands);

// Whether all elements are seen to be more than 0, as those of squares and an epsilon.
bool IsKnownPositive(const Value* v);

}  // namespace shardc::onnx_import
