// Words for several things of a kind, in a note.
#pragma once

#include <string>

#include "ir/diagnostic.h"

namespace shardc {

// Of a list that is not empty: "a", or "a and 3 more".
inline std::string FirstOf(const Strings& names) {
  const size_t more = names.size() - 1;
  return more == 0 ? names.front() : StrCat(names.front(), " and ", more, " more");
}

}  // namespace shardc
