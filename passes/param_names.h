// The names by which people choose parameters.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"

namespace shardc {

// Its name, and the others that the model has for it.
std::vector<std::string> NamesOf(const Op& param);

// "the nearest names: ..." to a glob that matches none of them.
std::string NearestNames(const std::string& glob, const std::vector<std::string>& names);

// Sets the attribute "trained" of parameters to false: of those of which a name matches one of the
// globs `freeze`; and, if there are globs `train`, of all of which none matches one of these. They
// get no gradient and no update. A note says how many. Throws Diagnostic E6105 for a glob that
// matches nothing.
void FreezeParams(Graph& graph, const std::vector<std::string>& freeze,
                  const std::vector<std::string>& train);

}  // namespace shardc
