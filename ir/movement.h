// Whether ops that are placed by hand, as collectives are, do what their types say.
#pragma once

#include <optional>
#include <string>

#include "ir/op_def.h"

namespace shardc {

// What is wrong with the types of an op, and what they should be: operands and results lie over the
// axes that it names as OpDef::moves says, and over all others each result lies as its operand
// does. Nothing where all is well, or the op does not move. For types that fit the mesh, of an op
// that infers.
std::optional<std::string> WrongMovement(const Op& op, const Mesh& mesh);

}  // namespace shardc
