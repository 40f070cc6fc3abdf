#include "tools/check_golden.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <span>

#include "ir/diagnostic.h"
#include "ir/row_major.h"
#include "ir/safetensors.h"
#include "tools/number.h"

namespace shardc {
namespace {

std::string Position(int64_t element, const Shape& shape) {
  return shape.empty() ? "" : ShapeToString(PlaceOf(element, shape));
}

// What to do about a worst difference.
std::string Advice(const Mismatch& worst, double rtol, double atol) {
  if (!std::isfinite(worst.expected)) {
    return "what the file expects is no finite number: nothing else agrees with it, and nothing at "
           "all with a nan";
  }
  if (!std::isfinite(worst.got)) {
    return "the plan computes no finite number there; --check-numerics names the first instruction "
           "that makes a nan";
  }
  return StrCat("allowed were ", NumberText(atol), " + ", NumberText(rtol), " * |expected|");
}

std::string FirstOf(const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  std::string list = Join(std::span(names).first(std::min(names.size(), kShown)), ", ");
  if (names.size() > kShown) list += StrCat(" and ", names.size() - kShown, " more");
  return list;
}

void NoteMissing(const std::vector<std::string>& missing,
                 const std::map<std::string, std::string>& made, const std::string& path) {
  std::vector<std::string> unknown, unlike;
  for (const std::string& name : missing) (made.contains(name) ? unlike : unknown).push_back(name);
  if (!unknown.empty()) {
    std::fprintf(stderr, "note: not checked, the plan has no such output: %s (in %s)\n",
                 FirstOf(unknown).c_str(), path.c_str());
  }
  if (!unlike.empty()) {
    std::fprintf(stderr,
                 "note: not checked, the exporter made others of these parameters, transposed or "
                 "otherwise: %s (in %s); the first is '%s' of the plan. Compile with --module, or "
                 "an export with optimize=False\n",
                 FirstOf(unlike).c_str(), path.c_str(), made.at(unlike[0]).c_str());
  }
}

}  // namespace

Mismatch Compare(const std::string& name, const HostTensor& got, const HostTensor& expected,
                 double rtol, double atol) {
  Mismatch worst{name, -INFINITY, 0, 0, 0};
  for (int64_t i = 0; i < expected.num_elements(); ++i) {
    double g = got.AsDouble(i), e = expected.AsDouble(i);
    double excess = g == e ? -INFINITY : std::abs(g - e) - (atol + rtol * std::abs(e));
    if (std::isnan(excess)) excess = INFINITY;
    if (excess > worst.error || i == 0) worst = {name, excess, i, g, e};
  }
  return worst;
}

void CheckGolden(const std::vector<std::string>& results,
                 const std::function<HostTensor(const std::string&)>& get,
                 const std::map<std::string, std::string>& made, const std::string& path,
                 double rtol, double atol) {
  SafetensorsFile golden(path);
  std::vector<std::string> common, missing;
  for (const auto& [name, entry] : golden.entries()) {
    bool has = std::find(results.begin(), results.end(), name) != results.end();
    (has ? common : missing).push_back(name);
  }
  for (const auto& [name, dtype] : golden.unread()) {
    if (std::find(results.begin(), results.end(), name) != results.end()) golden.Data(name);
    missing.push_back(name);
  }
  NoteMissing(missing, made, path);
  if (common.empty()) {
    throw Diagnostic("E4009", ExitCode::kUsage, "--check " + path,
                     "no tensor of the file is an output of the plan",
                     "see --save for their names");
  }
  Mismatch worst{"", -INFINITY, 0, 0, 0};
  Shape worst_shape;
  size_t failing = 0;
  for (const std::string& name : common) {
    HostTensor got = get(name), expected = golden.Read(name);
    if (got.shape() != expected.shape()) {
      throw Diagnostic("E4004", ExitCode::kMismatch, "--check " + path,
                       StrCat("'", name, "' has shape ", ShapeToString(got.shape()), ", expected ",
                              ShapeToString(expected.shape())));
    }
    Mismatch m = Compare(name, got, expected, rtol, atol);
    failing += m.error > 0;
    if (worst.name.empty() || m.error > worst.error) {
      worst = m;
      worst_shape = expected.shape();
    }
  }
  if (failing > 0) {
    throw Diagnostic("E4004", ExitCode::kMismatch, "--check " + path,
                     StrCat(failing, " of ", common.size(), " tensors differ; the worst is '",
                            worst.name, "'", Position(worst.at, worst_shape), ": got ",
                            NumberText(worst.got), ", expected ", NumberText(worst.expected)),
                     Advice(worst, rtol, atol));
  }
  std::fprintf(stderr, "check: %zu tensors agree with %s (rtol %g, atol %g)\n", common.size(),
               path.c_str(), rtol, atol);
}

}  // namespace shardc
