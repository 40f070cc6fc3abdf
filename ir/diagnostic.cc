#include "ir/diagnostic.h"

#include <numeric>
#include <vector>

namespace shardc {
namespace {
std::string Compose(const std::string& id, const std::string& where, const std::string& what,
                    const std::string& fix) {
  std::string out = id + ": ";
  if (!where.empty()) out += where + ": ";
  out += what;
  if (!fix.empty()) out += "\n  " + fix;
  return out;
}
}  // namespace

Diagnostic::Diagnostic(std::string id, ExitCode code, std::string where, std::string what,
                       std::string fix)
    : std::runtime_error(Compose(id, where, what, fix)),
      id_(std::move(id)),
      where_(std::move(where)),
      message_(std::move(what)),
      fix_(std::move(fix)),
      code_(code) {}

Diagnostic Diagnostic::In(const std::string& outer) const {
  return Diagnostic(id_, code_, where_.empty() ? outer : outer + ": " + where_, message_, fix_);
}

void CheckFailed(const char* file, int line, const char* condition, const std::string& message) {
  throw InternalError(StrCat("internal error at ", file, ":", line, ": CHECK(", condition, ") ",
                             message, "; please report it with the command that you ran"));
}

int EditDistance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      int next = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = row[j];
      row[j] = next;
    }
  }
  return row.back();
}

}  // namespace shardc
