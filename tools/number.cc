#include "tools/number.h"

#include <cmath>
#include <cstdio>

namespace shardc {

std::string NumberText(double v) {
  if (std::isnan(v)) return "nan";
  char text[32];
  std::snprintf(text, sizeof(text), "%.9g", v);
  return text;
}

}  // namespace shardc
