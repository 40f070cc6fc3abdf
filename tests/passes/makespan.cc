#include "tests/passes/makespan.h"

#include <algorithm>
#include <map>
#include <optional>

#include "ir/diagnostic.h"
#include "runtime/accesses.h"

namespace shardc::testing {
namespace {

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

  static bool IsTransfer(const Program& p, const Instruction& i) {
    return i.collective >= 0 &&
           p.collectives[static_cast<size_t>(i.collective)].kind == CollectiveKind::kSendRecv;
  }
  int IdOf(const Program& p, int instruction) const {
    const Instruction& i = p.instructions[static_cast<size_t>(instruction)];
    return p.collectives[static_cast<size_t>(i.collective)].id;
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
    const Instruction& i = p.instructions[static_cast<size_t>(at)];
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

}  // namespace

double Makespan(const std::vector<Program>& stages, const MakespanOptions& options) {
  return Run(stages, options).Total();
}

}  // namespace shardc::testing
