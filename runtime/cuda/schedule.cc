#include "runtime/cuda/schedule.h"

#include <algorithm>

#include "ir/diagnostic.h"
#include "runtime/cuda/joined.h"

namespace shardc::cuda {
namespace {

class Scheduler {
 public:
  Scheduler(const Program& program, std::vector<ProductGroup> groups, int lookahead, bool join)
      : program_(program),
        lookahead_(lookahead),
        join_(join),
        runs_(program.instructions.size()),
        done_(program.instructions.size(), false) {
    for (size_t i = 0; i < runs_.size(); ++i) runs_[i] = {static_cast<int>(i)};
    for (const Instruction& i : program.instructions) accesses_.push_back(AccessesOf(program, i));
    for (const Instruction& i : program.instructions) stream_of_.push_back(StreamOf(i));
    out_.groups = std::move(groups);
    for (const ProductGroup& g : out_.groups) Join(g);
    on_stream_.resize(out_.streams.size());
    clocks_.assign(out_.streams.size(), Clock(out_.streams.size(), 0));
  }

  Schedule Run() {
    for (size_t next = 0; next < done_.size(); ++next) {
      if (done_[next]) continue;
      while (NeedsCollective(next)) {
        size_t other = FindOther(next);
        if (other == done_.size()) break;
        Issue(other);
      }
      Issue(next);
    }
    return std::move(out_);
  }

 private:
  // How many items of each stream are known to be done.
  using Clock = std::vector<int>;

  int StreamOf(const Instruction& i) {
    if (i.collective < 0) return 0;
    const std::vector<int>& axes = program_.collectives[i.collective].axes;
    for (size_t s = 1; s < out_.streams.size(); ++s) {
      if (out_.streams[s] == axes) return static_cast<int>(s);
    }
    out_.streams.push_back(axes);
    return static_cast<int>(out_.streams.size()) - 1;
  }

  // Its place stands for all.
  void Join(const ProductGroup& g) {
    const auto place = static_cast<size_t>(g.place);
    runs_[place] = g.instructions;
    for (int i : g.instructions) {
      SHARDC_CHECK(stream_of_[i] == 0 && !done_[i], "instruction ", i, " is in two groups");
      if (i == g.place) continue;
      accesses_[place].insert(accesses_[place].end(), accesses_[i].begin(), accesses_[i].end());
      done_[i] = true;
    }
  }

  // The last item of `stream` that the instruction must follow and that its own stream has not
  // waited for; or -1.
  int LastConflict(size_t instruction, int stream) const {
    const std::vector<int>& items = on_stream_[stream];
    int known = clocks_[stream_of_[instruction]][stream];
    for (int k = static_cast<int>(items.size()) - 1; k >= known; --k) {
      int other = out_.items[items[k]].instruction;
      if (Conflict(accesses_[other], accesses_[instruction])) return items[k];
    }
    return -1;
  }

  bool NeedsCollective(size_t instruction) const {
    if (stream_of_[instruction] != 0) return false;
    for (size_t s = 1; s < on_stream_.size(); ++s) {
      if (LastConflict(instruction, static_cast<int>(s)) >= 0) return true;
    }
    return false;
  }

  // An instruction after `first` that may go before it and all others not yet issued; done_.size()
  // if none.
  size_t FindOther(size_t first) const {
    std::vector<size_t> passed{first};
    bool passed_collective = false;
    for (size_t i = first + 1; i < done_.size() && passed.size() <= static_cast<size_t>(lookahead_);
         ++i) {
      if (done_[i]) continue;
      bool collective = stream_of_[i] != 0;
      bool free = !(collective && passed_collective) && !NeedsCollective(i) &&
                  std::none_of(passed.begin(), passed.end(),
                               [&](size_t p) { return Conflict(accesses_[p], accesses_[i]); });
      if (free) return i;
      passed.push_back(i);
      passed_collective |= collective;
    }
    return done_.size();
  }

  // Whether the last item can do the instruction too. Had it not been the last, what was issued
  // since would wait for more than before.
  bool JoinsLast(size_t instruction) const {
    if (!join_ || out_.items.empty() || runs_[instruction].size() != 1) return false;
    const Schedule::Item& last = out_.items.back();
    const bool group = last.runs.size() > 1 && !last.joined;
    return last.stream == 0 && !group && stream_of_[instruction] == 0 &&
           !NeedsCollective(instruction) &&
           Joins(program_, last.runs, static_cast<int>(instruction));
  }

  void Issue(size_t instruction) {
    if (JoinsLast(instruction)) {
      Schedule::Item& last = out_.items.back();
      last.runs.push_back(static_cast<int>(instruction));
      last.joined = true;
      std::vector<Access>& all = accesses_[last.instruction];
      all.insert(all.end(), accesses_[instruction].begin(), accesses_[instruction].end());
      done_[instruction] = true;
      return;
    }
    int stream = stream_of_[instruction];
    Schedule::Item item{
        static_cast<int>(instruction), std::move(runs_[instruction]), false, stream, {}, false};
    Clock& clock = clocks_[stream];
    for (size_t s = 0; s < on_stream_.size(); ++s) {
      if (static_cast<int>(s) == stream) continue;
      int last = LastConflict(instruction, static_cast<int>(s));
      if (last < 0) continue;
      item.waits.push_back(last);
      out_.items[last].recorded = true;
      for (size_t t = 0; t < clock.size(); ++t) clock[t] = std::max(clock[t], after_[last][t]);
    }
    int id = static_cast<int>(out_.items.size());
    on_stream_[stream].push_back(id);
    clock[stream] = static_cast<int>(on_stream_[stream].size());
    after_.push_back(clock);
    out_.items.push_back(std::move(item));
    done_[instruction] = true;
  }

  const Program& program_;
  int lookahead_;
  bool join_;
  Schedule out_;
  std::vector<std::vector<Access>> accesses_;  // by instruction
  std::vector<std::vector<int>> runs_;         // by instruction
  std::vector<int> stream_of_;
  std::vector<std::vector<int>> on_stream_;  // items by stream
  std::vector<Clock> clocks_;                // by stream: what its next item follows
  std::vector<Clock> after_;                 // by item: what follows from its end
  std::vector<bool> done_;
};

}  // namespace

Schedule MakeSchedule(const Program& program, std::vector<ProductGroup> groups, int lookahead,
                      bool join) {
  return Scheduler(program, std::move(groups), lookahead, join).Run();
}

}  // namespace shardc::cuda
