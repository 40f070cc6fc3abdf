#include "passes/run_together.h"

#include <algorithm>
#include <compare>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "ir/diagnostic.h"
#include "ir/op_def.h"
#include "passes/reorder.h"

namespace shardc {
namespace {

// Of an op: those that run together, how often what it follows waited for a collective, and which
// microbatch it is of, or follows.
struct Place {
  int group, segment, microbatch;
  auto operator<=>(const Place&) const = default;
};
constexpr int kMost = std::numeric_limits<int>::max();
constexpr Place kAnywhere = {kMost, kMost, kMost}, kLast = {kMost, kMost, 0}, kFirst = {-1, 0, -1};

class Together {
 public:
  Together(Graph& graph, int together) : graph_(graph), ops_(NumberedOps(graph)) {
    std::set<int> microbatches;
    for (const Op* op : ops_) {
      if (op->microbatch >= 0) microbatches.insert(op->microbatch);
    }
    int n = 0;
    for (int m : microbatches) group_[m] = n++ / together;
  }

  void Run() {
    at_.resize(ops_.size(), kAnywhere);
    for (const Op* op : ops_) at_[op->id] = PlaceOf(*op);
    // What is of no microbatch, and follows none, runs when it is first needed.
    BringToReaders(ops_, at_);
    Reorder(graph_, ops_, [&](size_t i) { return at_[i]; });
  }

 private:
  Place PlaceOf(const Op& op) {
    Place after = kFirst;
    for (const Value* v : op.operands) {
      if (!v->producer || at_[v->producer->id] == kAnywhere) continue;
      after = std::max(after, at_[v->producer->id]);
    }
    if (op.phase == Phase::kOptimizer) return kLast;
    if (op.microbatch < 0) return after == kFirst ? kAnywhere : after;
    const int m = op.microbatch, group = group_[m];
    int& segment = segment_[m];
    if (after.group == group) {
      segment = std::max(segment, after.segment + (after.microbatch > m ? 1 : 0));
    }
    for (const Value* v : op.operands) {
      const Op* maker = v->producer;
      if (!maker || !maker->def->communicates || maker->microbatch != m) continue;
      segment = std::max(segment, at_[maker->id].segment + 1);
    }
    return {group, segment, m};
  }

  Graph& graph_;
  const std::vector<Op*> ops_;
  std::map<int, int> group_, segment_;  // by microbatch
  std::vector<Place> at_;               // by Op::id
};

}  // namespace

void RunTogether(Graph& graph, const MicrobatchSpec& spec) {
  if (spec.together < 2) return;
  auto refuse = [&](const std::string& what, const std::string& hint) {
    throw Diagnostic("E2124", ExitCode::kBadSpec, spec.together_where, what, hint);
  };
  if (!graph.pipeline_axis.empty()) {
    refuse("in a pipeline microbatches do not run together: its stages take turns with them",
           "leave it out, or use a mesh without the pipeline's axis");
  }
  if (spec.count < spec.together) {
    refuse(StrCat(spec.together, " microbatches cannot run together, there ",
                  spec.count == 1 ? "is 1" : StrCat("are ", spec.count)),
           StrCat("use ", spec.together, " or more microbatches, in which the batch divides"));
  }
  Together(graph, spec.together).Run();
}

}  // namespace shardc
