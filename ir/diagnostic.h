// User errors: a stable id, where, what, and what to do. One exception type for all of them.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace shardc {

// Exit codes of the tool (documented in README).
enum class ExitCode : int {
  kOk = 0,
  kUsage = 2,
  kBadModel = 3,
  kBadSpec = 4,       // bad spec, or the graph cannot be sharded as asked
  kVerification = 5,  // a plan fails its checksum, its bounds or the program-set proof
  kMemory = 6,
  kMismatch = 7,  // numeric mismatch against given results
  kInternal = 70,
  kIo = 74,
  kPeerLost = 75,
};

// A user's mistake. Ids: E1xxx model and import, E2xxx spec and sharding, E3xxx plan and program,
// E4xxx run (inputs, numerics), E5xxx I/O, E6xxx usage, E7xxx IR text. An id is never reused.
class Diagnostic : public std::runtime_error {
 public:
  // `where` may be empty; `fix` says what to do about it and may be empty.
  Diagnostic(std::string id, ExitCode code, std::string where, std::string what,
             std::string fix = {});

  const std::string& id() const { return id_; }
  ExitCode code() const { return code_; }
  const std::string& where() const { return where_; }
  const std::string& message() const { return message_; }
  const std::string& fix() const { return fix_; }

  // The same diagnostic with more context before its `where`.
  Diagnostic In(const std::string& outer) const;

 private:
  std::string id_, where_, message_, fix_;
  ExitCode code_;
};

// Thrown by CHECK: a bug of ours, never a user's mistake.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const std::string& message);

template <typename... Args>
std::string StrCat(const Args&... args) {
  std::ostringstream out;
  ((out << args), ...);
  return out.str();
}

// The elements as text, with the separator between them.
template <typename Range>
std::string Join(const Range& range, std::string_view separator) {
  std::ostringstream out;
  std::string_view before;
  for (const auto& element : range) {
    out << before << element;
    before = separator;
  }
  return out.str();
}

// The nearest of `candidates` to `name` by edit distance, at most `limit`, nearest first; for
// "did you mean". Candidates farther than half their length are left out.
template <typename Range>
std::string DidYouMean(std::string_view name, const Range& candidates, size_t limit = 3);
int EditDistance(std::string_view a, std::string_view b);

}  // namespace shardc

#define SHARDC_CHECK(cond, ...)                                                        \
  do {                                                                                 \
    if (!(cond)) [[unlikely]]                                                          \
      ::shardc::CheckFailed(__FILE__, __LINE__, #cond, ::shardc::StrCat(__VA_ARGS__)); \
  } while (0)

#include "ir/diagnostic_inl.h"
