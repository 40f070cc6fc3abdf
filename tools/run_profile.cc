#include "tools/run_profile.h"

#include <algorithm>
#include <cstdio>

#include "ir/counted.h"
#include "ir/diagnostic.h"

namespace shardc {
namespace {

template <typename... Args>
std::string Format(const char* format, Args... args) {
  char text[256];
  int n = std::snprintf(text, sizeof(text), format, args...);
  return std::string(text, static_cast<size_t>(std::clamp<int>(n, 0, sizeof(text) - 1)));
}

// Blanks fill up to the width; a longer text keeps its end, which tells sites apart.
std::string Column(const std::string& text, size_t width) {
  if (text.size() > width) return ".." + text.substr(text.size() - width + 2);
  return text + std::string(width - text.size(), ' ');
}

// "-" where there is nothing to tell: no work of this kind, or no peak.
std::string Rate(double amount, double seconds, double unit) {
  return amount > 0 && seconds > 0 ? Format("%9.2f", amount / seconds / unit) : Format("%9s", "-");
}

std::string OfPeak(double amount, double seconds, double peak) {
  if (amount <= 0 || seconds <= 0 || peak <= 0) return Format("%7s", "-");
  return Format("%6.1f%%", 100 * amount / seconds / peak);
}

double SecondsOf(const std::vector<ProfileRow>& rows) {
  double all = 0;
  for (const ProfileRow& row : rows) all += row.seconds;
  return all;
}

constexpr size_t kNameWidth = 32;

std::string Header(const std::string& name) {
  return Column(name, kNameWidth) + " phase       calls         ms   share   GFLOP/s  %GEMM" +
         "      GB/s  %copy\n";
}

std::string Line(const ProfileRow& row, const std::string& phase, double all,
                 const MachinePeaks& peaks) {
  return Column(row.name, kNameWidth) + " " + Column(phase, 10) +
         Format("%7lld %10.3f %6.1f%% ", static_cast<long long>(row.calls), 1e3 * row.seconds,
                all > 0 ? 100 * row.seconds / all : 0.0) +
         Rate(row.flops, row.seconds, 1e9) + OfPeak(row.flops, row.seconds, peaks.gemm_flops) +
         " " + Rate(row.bytes, row.seconds, 1e9) +
         OfPeak(row.bytes, row.seconds, peaks.copy_bytes) + "\n";
}

void Add(const ProfileRow& row, ProfileRow& sum) {
  sum.calls += row.calls;
  sum.seconds += row.seconds;
  sum.flops += row.flops;
  sum.bytes += row.bytes;
}

std::string Table(const std::string& name, const std::vector<ProfileRow>& rows,
                  const MachinePeaks& peaks) {
  double all = SecondsOf(rows);
  std::string out = Header(name);
  ProfileRow total;
  total.name = "all";
  for (const ProfileRow& row : rows) {
    out += Line(row, std::string(PhaseName(row.phase)), all, peaks);
    Add(row, total);
  }
  return out + Line(total, "", all, peaks);
}

// Models without numbered layers have a site per op: what takes little time is one row per phase.
std::vector<ProfileRow> FoldSmallSites(const std::vector<ProfileRow>& rows) {
  double all = SecondsOf(rows);
  std::vector<ProfileRow> kept, folded;
  for (const ProfileRow& row : rows) {
    if (!row.name.empty() && (!LayerOf(row.name).empty() || row.seconds >= 0.005 * all)) {
      kept.push_back(row);
      continue;
    }
    auto at = std::find_if(folded.begin(), folded.end(),
                           [&](const ProfileRow& f) { return f.phase == row.phase; });
    if (at == folded.end()) {
      at = folded.insert(folded.end(), ProfileRow());
      at->name = "(other sites)";
      at->phase = row.phase;
    }
    Add(row, *at);
  }
  kept.insert(kept.end(), folded.begin(), folded.end());
  return kept;
}

std::string CollectiveTable(const std::vector<CollectiveRow>& rows) {
  std::string out = Column("collective", kNameWidth) +
                    "  rank   calls        bytes         ms    wait ms      GB/s\n";
  for (const CollectiveRow& row : rows) {
    out += Column(row.op, kNameWidth) +
           Format(" %5zu %7lld %12lld %10.3f %10.3f ", row.rank, static_cast<long long>(row.calls),
                  static_cast<long long>(row.bytes), 1e3 * row.seconds, 1e3 * row.wait_seconds) +
           Rate(static_cast<double>(row.bytes), row.seconds - row.wait_seconds, 1e9) + "\n";
  }
  return out;
}

}  // namespace

double GemmShare(const Profile& profile) {
  double gemm = 0, all = 0;
  for (const ProfileRow& row : ProfileByOp(profile)) {
    all += row.seconds;
    if (row.name.starts_with("matmul") || row.name == "linear") gemm += row.seconds;
  }
  return all > 0 ? gemm / all : 0;
}

std::string ProfileTables(const Profile& profile) {
  const MachinePeaks& peaks = profile.peaks;
  std::string out = Format(
      "profile: one rank in one step, mean of %s and %s; peaks of a rank: "
      "GEMM %.1f GFLOP/s (f32), copy %.1f GB/s (read and written)\n",
      Counted(std::ssize(profile.ranks), "rank").c_str(),
      Counted(static_cast<int64_t>(profile.steps()), "step").c_str(), peaks.gemm_flops / 1e9,
      peaks.copy_bytes / 1e9);
  if (profile.steps() == 0) return out;
  out += Table("op", ProfileByOp(profile), peaks);
  out += "\n" + Table("layer", FoldSmallSites(ProfileByLayer(profile)), peaks);
  std::vector<CollectiveRow> collectives = ProfileCollectives(profile);
  if (!collectives.empty()) out += "\n" + CollectiveTable(collectives);
  return out;
}

}  // namespace shardc
