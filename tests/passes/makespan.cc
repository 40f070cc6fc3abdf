#include "tests/passes/makespan.h"

#include <algorithm>
#include <map>
#include <optional>

#include "ir/diagnostic.h"
#include "runtime/accesses.h"

namespace shardc::testing {
namespace {

bool IsTransfer(const Program& p, const Instruction& i) {
  return i.collective >= 0 && p.collectives[i.collective].kind == CollectiveKind::kSendRecv;
}

class Run {
 public:
  Run(const std::vector<Program>& stages, const MakespanOptions& options)
      : stages_(stages), options_(options), lines_(stages.size()) {
    for (const Program& p : stages) finish_.push_back(SendsToFinish(p));
  }

  double Total() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (size_t s = 0; s < stages_.size(); ++s) {
        while (Step(s)) moved = true;
      }
    }
    double total = 0;
    for (size_t s = 0; s < stages_.size(); ++s) {
      SHARDC_CHECK(lines_[s].next > stages_[s].instructions.size(), "stage ", s, " waits for ever");
      total = std::max(total, lines_[s].now);
    }
    return total;
  }

 private:
  struct Line {
    size_t next = 0;
    double now = 0;
  };

  int IdOf(const Program& p, int instruction) const {
    const Instruction& i = p.instructions[instruction];
    return p.collectives[i.collective].id;
  }

  // Whether the stage went on by an instruction, or to its end.
  bool Step(size_t s) {
    const Program& p = stages_[s];
    Line& line = lines_[s];
    if (line.next > p.instructions.size()) return false;
    double begin = line.now;
    for (int send : finish_[s][line.next]) {
      auto received = received_.find(IdOf(p, send));
      if (received == received_.end()) return false;
      begin = std::max(begin, received->second);
    }
    if (line.next < p.instructions.size()) {
      const std::optional<double> end = End(p, static_cast<int>(line.next), begin);
      if (!end) return false;
      begin = *end;
    }
    line.now = begin;
    ++line.next;
    return true;
  }

  std::optional<double> End(const Program& p, int at, double begin) {
    const Instruction& i = p.instructions[at];
    if (!IsTransfer(p, i)) return i.collective >= 0 ? begin : begin + options_.seconds(i);
    const int id = IdOf(p, at);
    const bool sends = i.results.empty();
    auto& mine = sends ? sent_ : received_;
    auto& others = sends ? received_ : sent_;
    // When both ends are there.
    auto here = mine.try_emplace(id, begin).first;
    auto there = others.find(id);
    if (sends && !options_.sends_wait) return begin;
    if (there == others.end()) return std::nullopt;
    const double both = std::max(here->second, there->second);
    if (!sends) here->second = both;
    return both;
  }

  const std::vector<Program>& stages_;
  const MakespanOptions& options_;
  std::vector<Line> lines_;
  std::vector<std::vector<std::vector<int>>> finish_;
  std::map<int, double> sent_, received_;  // by collective: when the end came to it
};

class Streams {
 public:
  Streams(const std::vector<Program>& stages,
          const std::function<double(const Instruction&)>& seconds)
      : stages_(stages), seconds_(seconds) {
    for (const Program& p : stages) {
      Stage s;
      for (const Instruction& i : p.instructions) {
        const auto at = static_cast<int>(s.accesses.size());
        s.accesses.push_back(AccessesOf(p, i));
        s.streams[IsTransfer(p, i)].push_back(at);
        s.ends.push_back(std::nullopt);
      }
      state_.push_back(std::move(s));
    }
  }

  double Total() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t s = 0; s < stages_.size(); ++s) {
        for (bool transfers : {false, true}) {
          while (Step(s, transfers)) moved = true;
        }
      }
    }
    double total = 0;
    for (size_t s = 0; s < stages_.size(); ++s) {
      for (const std::optional<double>& end : state_[s].ends) {
        SHARDC_CHECK(end, "stage ", s, " waits for ever");
        total = std::max(total, *end);
      }
    }
    return total;
  }

 private:
  struct Stage {
    std::vector<std::vector<Access>> accesses;  // by instruction
    std::vector<int> streams[2];                // instructions that are no transfers, and that are
    size_t next[2] = {0, 0};
    double free[2] = {0, 0};                  // when
    std::vector<std::optional<double>> ends;  // by instruction
  };

  // When what the other stream did before to the same memory is done.
  std::optional<double> Begin(const Stage& s, int at, bool transfer) const {
    double begin = s.free[transfer];
    for (int other : s.streams[!transfer]) {
      if (other > at) break;
      const auto &mine = s.accesses[at], &others = s.accesses[other];
      if (!Conflict(mine, others)) continue;
      const std::optional<double>& end = s.ends[other];
      if (!end) return std::nullopt;
      begin = std::max(begin, *end);
    }
    return begin;
  }

  bool Step(size_t stage, bool transfer) {
    Stage& s = state_[stage];
    if (s.next[transfer] == s.streams[transfer].size()) return false;
    const int at = s.streams[transfer][s.next[transfer]];
    const Program& p = stages_[stage];
    const Instruction& i = p.instructions[at];
    std::optional<double> end = Begin(s, at, transfer);
    if (end && transfer) {
      const int id = p.collectives[i.collective].id;
      auto& came = came_[id];
      came[stage] = *end;
      if (came.size() < 2) return false;
      for (const auto& [who, when] : came) end = std::max(*end, when);
    } else if (end) {
      *end += i.collective >= 0 ? 0 : seconds_(i);
    }
    if (!end) return false;
    s.ends[at] = s.free[transfer] = *end;
    ++s.next[transfer];
    return true;
  }

  const std::vector<Program>& stages_;
  const std::function<double(const Instruction&)>& seconds_;
  std::vector<Stage> state_;
  std::map<int, std::map<size_t, double>> came_;  // by collective and stage: when it came to it
};

}  // namespace

double MakespanOfStreams(const std::vector<Program>& stages,
                         const std::function<double(const Instruction&)>& seconds) {
  return Streams(stages, seconds).Total();
}

double Makespan(const std::vector<Program>& stages, const MakespanOptions& options) {
  return Run(stages, options).Total();
}

}  // namespace shardc::testing
