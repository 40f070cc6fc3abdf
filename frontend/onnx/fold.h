// Evaluates ops on constants.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace shardc::onnx_import {

// The results of the op when all operands are constants and the results are not too large to keep:
// more than 2^28 elements, or a float tensor of more than 2^20 that is far larger than what it is
// made from; or of more than 2^12 where they take more than `bytes_left`, which is lowered by what
// is made. With `may_wrap` sums, differences and products of 32-bit integers wrap.
// Throws Diagnostic E1101 (the operands do not fit), E1306 (overflow of integers, or a
// division of them that has no result).
std::optional<std::vector<HostTensor>> Fold(std::string_view op,
                                            const std::vector<Value*>& operands,
                                            const Attributes& attrs, int64_t& bytes_left,
                                            bool may_wrap = true);

// The results of the op when none of them holds an element.
std::optional<std::vector<HostTensor>> EmptyResults(std::string_view op,
                                                    const std::vector<Value*>& operands,
                                                    const Attributes& attrs);

// Takes off the operands of a concat that hold nothing, as long as others do; not those that have
// some size along its axis, and none along another: they do not fit.
void DropEmptyPieces(std::string_view op, std::vector<Value*>& operands, const Attributes& attrs);

}  // namespace shardc::onnx_import
