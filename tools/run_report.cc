#include "tools/run_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "ir/counted.h"
#include "tools/number.h"

namespace shardc {
namespace {

using Json = nlohmann::ordered_json;

Json OrNull(const std::optional<double>& v) { return v ? Json(*v) : Json(nullptr); }

double Minimum(const std::vector<double>& v) {
  return v.empty() ? 0 : *std::min_element(v.begin(), v.end());
}

double Median(std::vector<double> v) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  size_t middle = v.size() / 2;
  return v.size() % 2 ? v[middle] : (v[middle - 1] + v[middle]) / 2;
}

double TokensPerSecond(const RunReport& report) {
  double median = Median(report.times_s);
  return median > 0 ? static_cast<double>(report.tokens) / median : 0;
}

std::string Text(const std::optional<double>& v) { return v ? NumberText(*v) : "-"; }

// What only some plans have, by name.
std::vector<std::pair<const char*, double>> Extras(const StepValues& s) {
  std::vector<std::pair<const char*, double>> values;
  if (s.learning_rate) values.emplace_back("learning_rate", *s.learning_rate);
  if (s.loss_scale) values.emplace_back("loss_scale", *s.loss_scale);
  return values;
}

}  // namespace

void PrintRunJson(const RunReport& report) {
  Json json;
  json["outputs"] = Json::object();
  for (const auto& [name, value] : report.outputs) json["outputs"][name] = value;
  if (!report.steps.empty()) {
    for (const StepValues& s : report.steps) {
      json["steps"].push_back({{"loss", OrNull(s.loss)}, {"grad_norm", OrNull(s.grad_norm)}});
      for (const auto& [name, value] : Extras(s)) json["steps"].back()[name] = value;
    }
  }
  json["times_s"] = report.times_s;
  const std::vector<double>& host = report.host_times_s;
  if (std::any_of(host.begin(), host.end(), [](double s) { return s > 0; })) {
    json["host_times_s"] = host;
  }
  json["min_s"] = Minimum(report.times_s);
  json["median_s"] = Median(report.times_s);
  json["tokens_per_s"] = report.tokens > 0 ? Json(TokensPerSecond(report)) : Json(nullptr);
  json["peak_bytes"] = report.peak_bytes;
  if (report.gpu_memory) {
    json["workspace_bytes"] = report.gpu_memory->workspace;
    json["library_bytes"] = report.gpu_memory->libraries;
  }
  json["collective_bytes"] = report.collective_bytes;
  std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::printf("%s\n", text.c_str());
}

void PrintStep(size_t number, const StepValues& s) {
  const auto extras = Extras(s);
  if (number == 1) {
    std::printf("%6s  %-14s  %-14s", "step", "loss", "grad_norm");
    for (const auto& [name, value] : extras) std::printf("  %-14s", name);
    std::printf("\n");
  }
  std::printf("%6zu  %-14s  %-14s", number, Text(s.loss).c_str(), Text(s.grad_norm).c_str());
  for (const auto& [name, value] : extras) std::printf("  %-14s", NumberText(value).c_str());
  std::printf("\n");
  std::fflush(stdout);
}

void PrintRunText(const RunReport& report) {
  if (!report.steps.empty()) return;
  for (const auto& [name, value] : report.outputs) {
    std::printf("%s = %s\n", name.c_str(), Text(value).c_str());
  }
}

void PrintTimes(const RunReport& report) {
  std::fprintf(stderr, "%s: min %.3f ms, median %.3f ms",
               Counted(std::ssize(report.times_s), "step").c_str(), 1e3 * Minimum(report.times_s),
               1e3 * Median(report.times_s));
  if (report.tokens > 0) std::fprintf(stderr, ", %.1f tokens/s", TokensPerSecond(report));
  if (report.gemm_share)
    std::fprintf(stderr, ", GEMM %.1f%% of the time", 100 * *report.gemm_share);
  std::fprintf(stderr, ", %lld bytes into collectives per rank\n",
               static_cast<long long>(report.collective_bytes));
}

}  // namespace shardc
