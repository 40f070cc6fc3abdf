#include "runtime/profile.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "ir/diagnostic.h"

namespace shardc {

size_t RankProfile::Room(size_t instructions) {
  constexpr auto kMaxSpans = static_cast<size_t>(kMaxBytes) / sizeof(TimeSpan);
  return std::max<size_t>(1, kMaxSpans / std::max<size_t>(1, instructions));
}

void RankProfile::Start(int64_t steps, size_t instructions) {
  const auto wanted = static_cast<size_t>(std::max<int64_t>(steps, 1));
  spans_.assign(std::min(Room(instructions), wanted) * instructions, {});
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
  return ranks.empty() || programs.empty() || instructions(0) == 0
             ? 0
             : ranks[0].size() / instructions(0);
}

namespace {

// The instruction of a program that performs the collective; or none. On ranks of one stage it is
// at the same place, `near`.
std::optional<size_t> Performs(const Program& program, int collective, size_t near) {
  const auto is = [&](const Instruction& i) {
    return i.collective >= 0 && program.collectives[i.collective].id == collective;
  };
  const auto& list = program.instructions;
  if (near < list.size() && is(list[near])) return near;
  auto it = std::find_if(list.begin(), list.end(), is);
  if (it == list.end()) return std::nullopt;
  return static_cast<size_t>(it - list.begin());
}

}  // namespace

int64_t Profile::WaitNs(size_t rank, size_t step, size_t instruction) const {
  const Program& program = programs[rank];
  const int index = program.instructions[instruction].collective;
  if (index < 0) return 0;
  const TimeSpan& mine = at(rank, step, instruction);
  const Collective& c = program.collectives[index];
  const bool transfer = c.kind == CollectiveKind::kSendRecv;
  int64_t fastest = mine.ns(), latest = mine.begin_ns;
  for (int64_t peer : program.mesh.Group(program.rank, c.axes)) {
    const auto p = static_cast<size_t>(peer);
    // Of a transfer's group only two take part.
    if (auto i = Performs(programs[p], c.id, instruction)) {
      fastest = std::min(fastest, at(p, step, *i).ns());
      latest = std::max(latest, at(p, step, *i).begin_ns);
    }
  }
  if (!transfer) return mine.ns() - fastest;
  return std::min(latest - mine.begin_ns, mine.ns()) + LateNs(rank, step, instruction);
}

int64_t Profile::LateNs(size_t rank, size_t step, size_t instruction) const {
  if (rank >= workers.size() || programs[rank].instructions[instruction].collective < 0) return 0;
  const std::vector<WorkerSpan>& list = workers[rank];
  int64_t ns = 0;
  for (auto it = std::ranges::lower_bound(list, step, {}, &WorkerSpan::step);
       it != list.end() && it->step == step; ++it) {
    if (it->thread == 0 && it->instruction == instruction) ns += it->span.ns();
  }
  return ns;
}

namespace {

// Rows in the order of their first instruction, on the first rank that has it.
template <typename NameOf>
std::vector<ProfileRow> Group(const Profile& p, const NameOf& name_of) {
  std::vector<ProfileRow> rows;
  if (p.steps() == 0) return rows;
  std::map<std::pair<std::string_view, Phase>, size_t> at;
  for (size_t r = 0; r < p.ranks.size(); ++r) {
    for (size_t i = 0; i < p.instructions(r); ++i) {
      const Instruction& instruction = p.programs[r].instructions[i];
      std::string_view name = name_of(instruction);
      auto [it, fresh] = at.try_emplace({name, instruction.phase}, rows.size());
      if (fresh) rows.push_back({std::string(name), instruction.phase});
      ProfileRow& row = rows[it->second];
      int64_t ns = 0;
      for (size_t s = 0; s < p.steps(); ++s) ns += p.at(r, s, i).ns() + p.LateNs(r, s, i);
      ++row.calls;
      row.seconds += 1e-9 * static_cast<double>(ns) / static_cast<double>(p.steps());
      row.flops += static_cast<double>(instruction.flops);
      row.bytes += static_cast<double>(instruction.bytes);
    }
  }
  const auto ranks = static_cast<double>(p.ranks.size());
  for (ProfileRow& row : rows) {
    row.calls = std::max<int64_t>(1, std::llround(static_cast<double>(row.calls) / ranks));
    row.seconds /= ranks;
    row.flops /= ranks;
    row.bytes /= ranks;
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
    for (size_t i = 0; i < p.instructions(r); ++i) {
      const Instruction& instruction = p.programs[r].instructions[i];
      if (instruction.collective < 0) continue;
      CollectiveRow& row = by_op[{instruction.op, r}];
      row.op = instruction.op;
      row.rank = r;
      ++row.calls;
      row.bytes += instruction.bytes;
      for (size_t s = 0; s < p.steps(); ++s) {
        const int64_t ns = p.at(r, s, i).ns() + p.LateNs(r, s, i);
        row.seconds += 1e-9 * static_cast<double>(ns) / steps;
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
