#include "runtime/profile.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "ir/diagnostic.h"

namespace shardc {

void RankProfile::Start(int64_t steps, size_t instructions) {
  constexpr auto kMaxSpans = static_cast<size_t>(kMaxBytes) / sizeof(TimeSpan);
  size_t room = std::max<size_t>(1, kMaxSpans / std::max<size_t>(1, instructions));
  spans_.assign(std::min(room, static_cast<size_t>(std::max<int64_t>(steps, 1))) * instructions,
                {});
  instructions_ = instructions;
  used_ = 0;
}

TimeSpan* RankProfile::NextStep() {
  if (used_ == spans_.size()) return nullptr;
  TimeSpan* step = spans_.data() + used_;
  used_ += instructions_;
  return step;
}

std::vector<TimeSpan> RankProfile::Take() {
  spans_.resize(used_);
  used_ = 0;
  return std::exchange(spans_, {});
}

size_t Profile::steps() const {
  return ranks.empty() || instructions() == 0 ? 0 : ranks[0].size() / instructions();
}

int64_t Profile::WaitNs(size_t rank, size_t step, size_t instruction) const {
  const Program& program = programs[rank];
  int collective = program.instructions[instruction].collective;
  if (collective < 0) return 0;
  int64_t fastest = std::numeric_limits<int64_t>::max();
  const std::vector<int>& axes = program.collectives[static_cast<size_t>(collective)].axes;
  for (int64_t peer : program.mesh.Group(program.rank, axes)) {
    fastest = std::min(fastest, at(static_cast<size_t>(peer), step, instruction).ns());
  }
  return at(rank, step, instruction).ns() - fastest;
}

namespace {

// Mean seconds of an instruction over ranks and steps.
double MeanSeconds(const Profile& p, size_t instruction) {
  int64_t ns = 0;
  for (size_t r = 0; r < p.ranks.size(); ++r) {
    for (size_t s = 0; s < p.steps(); ++s) ns += p.at(r, s, instruction).ns();
  }
  return 1e-9 * static_cast<double>(ns) / static_cast<double>(p.ranks.size() * p.steps());
}

// Rows in the order of their first instruction.
template <typename NameOf>
std::vector<ProfileRow> Group(const Profile& p, const NameOf& name_of) {
  std::vector<ProfileRow> rows;
  if (p.steps() == 0) return rows;
  std::map<std::pair<std::string_view, Phase>, size_t> at;
  for (size_t i = 0; i < p.instructions(); ++i) {
    const Instruction& instruction = p.programs[0].instructions[i];
    std::string_view name = name_of(instruction);
    auto [it, fresh] = at.try_emplace({name, instruction.phase}, rows.size());
    if (fresh) rows.push_back({std::string(name), instruction.phase});
    ProfileRow& row = rows[it->second];
    ++row.calls;
    row.seconds += MeanSeconds(p, i);
    row.flops += static_cast<double>(instruction.flops);
    row.bytes += static_cast<double>(instruction.bytes);
  }
  return rows;
}

bool IsNumber(std::string_view part) {
  return !part.empty() && std::all_of(part.begin(), part.end(),
                                      [](unsigned char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

std::vector<ProfileRow> ProfileByOp(const Profile& profile) {
  std::vector<ProfileRow> rows =
      Group(profile, [](const Instruction& i) { return std::string_view(i.op); });
  std::stable_sort(rows.begin(), rows.end(),
                   [](const ProfileRow& a, const ProfileRow& b) { return a.seconds > b.seconds; });
  return rows;
}

std::vector<ProfileRow> ProfileByLayer(const Profile& profile) {
  return Group(profile, [](const Instruction& i) {
    std::string_view layer = LayerOf(i.site);
    return layer.empty() ? std::string_view(i.site) : layer;
  });
}

std::vector<CollectiveRow> ProfileCollectives(const Profile& p) {
  std::vector<CollectiveRow> rows;
  double steps = static_cast<double>(p.steps());
  std::map<std::pair<std::string_view, size_t>, CollectiveRow> by_op;
  for (size_t r = 0; r < p.ranks.size() && p.steps() > 0; ++r) {
    for (size_t i = 0; i < p.instructions(); ++i) {
      const Instruction& instruction = p.programs[r].instructions[i];
      if (instruction.collective < 0) continue;
      CollectiveRow& row = by_op[{instruction.op, r}];
      row.op = instruction.op;
      row.rank = r;
      ++row.calls;
      row.bytes += instruction.bytes;
      for (size_t s = 0; s < p.steps(); ++s) {
        row.seconds += 1e-9 * static_cast<double>(p.at(r, s, i).ns()) / steps;
        row.wait_seconds += 1e-9 * static_cast<double>(p.WaitNs(r, s, i)) / steps;
      }
    }
  }
  for (auto& [key, row] : by_op) rows.push_back(std::move(row));
  return rows;
}

std::string_view LayerOf(std::string_view site) {
  for (size_t begin = 0; begin < site.size();) {
    size_t end = std::min(site.find_first_of("./", begin), site.size());
    if (IsNumber(site.substr(begin, end - begin))) return site.substr(0, end);
    begin = end + 1;
  }
  return {};
}

}  // namespace shardc
