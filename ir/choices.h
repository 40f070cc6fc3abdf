// What a name that is not known could have been.
#pragma once

#include <string>
#include <string_view>

#include "ir/diagnostic.h"

namespace shardc {

// "did you mean 'a'? inputs: a, b": `kind` and all candidates, after the near ones if there are
// any.
template <typename Range>
std::string Choices(std::string_view name, std::string_view kind, const Range& candidates) {
  std::string out = DidYouMean(name, candidates);
  if (!out.empty()) out += " ";
  return StrCat(out, kind, ": ", Join(candidates, ", "));
}

}  // namespace shardc
