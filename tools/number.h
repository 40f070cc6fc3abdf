// Numbers for people.
#pragma once

#include <string>

namespace shardc {

// With 9 digits: enough for a float. A NaN is "nan": its sign says nothing.
std::string NumberText(double v);

}  // namespace shardc
