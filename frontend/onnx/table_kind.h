// What a tensor of a file may be, by its numbers.
#pragma once

#include "ir/graph.h"

namespace shardc::onnx_import {

// A mask's elements are 0 and one very large number, or that number alone, or both 0 and 1.
// Those of a table of distances grow evenly along each row, but for one bend (the query's place).
// ALiBi's slopes of n heads are powers of 2^(-4 / m), with the largest power of two m that is not
// larger than n (Press et al., "Train Short, Test Long", 2022).
enum class TableKind { kMask, kZeros, kOnes, kDistances, kSlopes, kOther };

// Reads the tensor in pieces, until it can be none of these but kOther. Throws Diagnostic E5xxx if
// the data cannot be read.
TableKind KindOfTable(const TensorType& type, const TensorSource& source);

// Whether it is a matrix of sines and cosines of positions, one of the rows zero maybe.
bool HoldsSines(const TensorType& type, const TensorSource& source);

}  // namespace shardc::onnx_import
