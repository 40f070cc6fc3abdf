#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ir/diagnostic.h"

namespace shardc {

// "1 rank", "2 ranks".
inline std::string Counted(int64_t n, std::string_view noun) {
  return StrCat(n, " ", noun, n == 1 ? "" : "s");
}

}  // namespace shardc
