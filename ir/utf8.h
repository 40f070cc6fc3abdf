// Names that go into files are UTF-8, as JSON and protobuf ask for.
#pragma once

#include <string>

namespace shardc {

bool IsUtf8(const std::string& text);

}  // namespace shardc
