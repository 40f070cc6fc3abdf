// Words for a cut that a spec asks for and cannot have.
#pragma once

#include <string>

#include "ir/graph.h"

namespace shardc {

// Why the dim of the value is not cut over the axis beside those that cut it, and what size of the
// axis would do: ": tp and cp make 8 parts, and ...; cp=3 would do".
std::string WhyNotCut(const Value* value, int dim, int axis, const Mesh& mesh);

}  // namespace shardc
