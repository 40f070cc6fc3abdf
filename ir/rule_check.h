// Whether an op is cut as its sharding rule allows: what the verifier asks of a graph whose
// shardings are settled. It shares no code with the passes that choose them.
#pragma once

#include <optional>
#include <string>

#include "ir/graph.h"

namespace shardc {

// What is wrong with the shardings of the op's operands and results, as a clause; nothing where
// over each axis the op runs whole, or cut along one plain factor of its rule, or lets partial sums
// through one of its linear groups, and every rank holds the same of a factor in all dims that have
// it. The op has a rule; the shardings fit types and mesh (CheckSharding).
std::optional<std::string> DisagreementWithRule(const Op& op, const Mesh& mesh);

}  // namespace shardc
