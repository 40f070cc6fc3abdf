#include "ir/utf8.h"

#include <nlohmann/json.hpp>

namespace shardc {

bool IsUtf8(const std::string& text) {
  try {
    nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

}  // namespace shardc
