// Tables of several dims that scale what is computed: of a norm, or of rotary positions.
#pragma once

#include <onnx/onnx_pb.h>

#include <string>

#include "frontend/onnx/uses.h"

namespace shardc::onnx_import {

// Whether `scale`, a Mul or Div of a table with something computed, is what a network does with a
// weight: what it scales was normalised before (each head's q and k, or several dims at once), or
// the products are summed, with a vector for each head (an attention of graphs), also after others
// were added and scaled with them (the splines of a KAN), or another table of its dims is added to
// them (the q and k of a gated attention unit). Not where it is added to
// another product, as tables of cos and sin are. `dims`: of the table, without those of size 1.
bool ScalesAsWeight(const onnx::NodeProto& scale, const std::string& table, int64_t dims,
                    const Uses& uses);

// Whether the product with a factor that is looked up is part of a rotation by positions: added to
// another one, as in x cos + y sin, or a scale of such a sum (xPos). Rows that are looked up and
// only multiplied (an embedding of users by one of items) are not.
bool IsOfRotation(const onnx::NodeProto& scale, const std::string& factor, const Uses& uses);

// Whether a product is that with a table of the file that has the same dims, but for those of
// size 1.
bool ScalesTableOfItsDims(const onnx::NodeProto& scale, const std::string& factor,
                          const Uses& uses);

}  // namespace shardc::onnx_import
