// The set of programs: every group sees the same collectives in the same order, and none waits for
// ever.
//
// The ranks are simulated with calls that block until all of their group are there. Which order the
// simulation picks does not matter: a rank's calls are a fixed line, a call that can complete stays
// so until it does, and completing it takes no other call away; so all orders end at the same
// place. A runtime may go on after a send and wait for it at a later instruction: in the order that
// the simulation found every wait is for what comes before it, then as well.
#include <algorithm>
#include <map>

#include "ir/describe_instruction.h"
#include "ir/diagnostic.h"
#include "passes/check_context.h"

namespace shardc {
namespace {

class Schedule {
 public:
  Schedule(const std::vector<const Program*>& bodies, const std::vector<int>& body_of)
      : bodies_(bodies), body_of_(body_of), position_(body_of.size(), 0) {
    calls_.resize(bodies.size());
    for (size_t b = 0; b < bodies.size(); ++b) {
      for (size_t i = 0; i < bodies[b]->instructions.size(); ++i) {
        int c = bodies[b]->instructions[i].collective;
        if (c < 0) continue;
        calls_[b].push_back({static_cast<int>(i), GroupsOf(bodies[b]->collectives[c])});
      }
    }
  }

  // Returns how many calls it has looked at.
  int64_t Run() {
    int64_t visits = 0;
    std::vector<int> ready;
    for (int r = static_cast<int>(body_of_.size()) - 1; r >= 0; --r) ready.push_back(r);
    while (!ready.empty()) {
      int rank = ready.back();
      ready.pop_back();
      if (Ended(rank)) continue;
      ++visits;
      CheckSide(rank);
      std::vector<int>& waiting = WaitingWith(rank);
      if (!waiting.empty()) CompareCalls(waiting.front(), rank);
      waiting.push_back(rank);
      if (waiting.size() < MembersOf(rank).size()) continue;
      for (int r : waiting) {
        ++position_[r];
        ready.push_back(r);
      }
      // Every member left from this place, so the list is the same one that all stood in.
      waiting.clear();
    }
    CheckAllEnded();
    return visits;
  }

 private:
  struct Call {
    int instruction;
    int groups;  // index into groups_
  };
  // All groups over one set of axes, whatever their order; of transfers the two ends in each.
  struct Groups {
    std::vector<std::vector<int>> members;
    std::vector<int> of_rank;               // -1: in none
    std::vector<std::vector<int>> waiting;  // by group: the ranks that stand there
  };

  int GroupsOf(const Collective& c) {
    const bool transfer = c.kind == CollectiveKind::kSendRecv;
    Place place{c.axes, transfer ? c.from : -1, transfer ? c.to : -1};
    // Members are told apart by their number in the group only where two of them are meant.
    if (!transfer) std::sort(place.axes.begin(), place.axes.end());
    auto [it, added] = index_.try_emplace(place, static_cast<int>(groups_.size()));
    if (!added) return it->second;
    Groups& g = groups_.emplace_back();
    g.members = bodies_[0]->mesh.Groups(place.axes);
    if (transfer) {
      for (std::vector<int>& m : g.members) {
        m = {m[c.from], m[c.to]};
      }
    }
    g.waiting.resize(g.members.size());
    g.of_rank.assign(body_of_.size(), -1);
    for (size_t i = 0; i < g.members.size(); ++i) {
      for (int r : g.members[i]) g.of_rank[r] = static_cast<int>(i);
    }
    return it->second;
  }

  // Ranks of one body need not be the same member of their groups.
  void CheckSide(int rank) const {
    const Collective& c = CollectiveOf(rank);
    if (c.kind != CollectiveKind::kSendRecv) return;
    const bool sends = InstructionOf(rank).results.empty();
    const int64_t me = bodies_[0]->mesh.GroupIndex(rank, c.axes);
    if (me == (sends ? c.from : c.to)) return;
    FailCheck(Where(rank), "E3208",
              StrCat(sends ? "sends" : "receives", " in ", Describe(rank), ", and is member ", me));
  }

  const std::vector<Call>& CallsOf(int rank) const { return calls_[body_of_[rank]]; }
  bool Ended(int rank) const { return position_[rank] == CallsOf(rank).size(); }
  const Call& CallOf(int rank) const { return CallsOf(rank)[position_[rank]]; }
  std::vector<int>& WaitingWith(int rank) {
    Groups& g = groups_[CallOf(rank).groups];
    return g.waiting[g.of_rank[rank]];
  }
  const std::vector<int>& MembersOf(int rank) const {
    const Groups& g = groups_[CallOf(rank).groups];
    return g.members[g.of_rank[rank]];
  }

  const Instruction& InstructionOf(int rank) const {
    return bodies_[body_of_[rank]]->instructions[CallOf(rank).instruction];
  }
  const Collective& CollectiveOf(int rank) const {
    return bodies_[body_of_[rank]]->collectives[InstructionOf(rank).collective];
  }
  std::string Where(int rank) const {
    return DescribeInstruction(*bodies_[body_of_[rank]],
                               static_cast<size_t>(CallOf(rank).instruction), rank);
  }

  // "all_reduce 3 of 64 f32 over tp".
  std::string Describe(int rank) const {
    const Collective& c = CollectiveOf(rank);
    return StrCat(CollectiveKindName(c.kind), c.max ? " (max)" : "", " with id ", c.id, " of ",
                  c.elements, " ", DTypeName(c.dtype), " over ",
                  Join(bodies_[0]->mesh.Names(c.axes), ","),
                  c.from >= 0 ? StrCat(" from ", c.from, " to ", c.to) : "");
  }

  std::vector<int64_t> Sizes(int rank) const {
    std::vector<int64_t> sizes;
    const Instruction& i = InstructionOf(rank);
    for (int b : i.operands.empty() ? i.results : i.operands) {
      sizes.push_back(NumElements(bodies_[body_of_[rank]]->buffers[b].local_shape));
    }
    return sizes;
  }

  // Both ranks stand at the same group's next call, so these two calls would meet.
  void CompareCalls(int first, int second) const {
    if (body_of_[first] == body_of_[second] && position_[first] == position_[second]) return;
    const Collective &a = CollectiveOf(first), &b = CollectiveOf(second);
    std::string_view what;
    if (a.kind != b.kind || a.max != b.max) {
      what = "kind";
    } else if (a.dtype != b.dtype) {
      what = "element type";
    } else if (a.elements != b.elements || Sizes(first) != Sizes(second)) {
      what = "size";
    } else if (a.axes != b.axes) {
      what = "order of axes";
    } else if (a.id != b.id) {
      what = "id";
    } else {
      return;
    }
    FailCheck(Where(second), "E3204",
              StrCat(Describe(second), " meets ", Describe(first), " of ", Where(first),
                     ": they differ in ", what));
  }

  void CheckAllEnded() const {
    std::vector<int> stuck;
    for (int r = 0; r < static_cast<int>(body_of_.size()); ++r) {
      if (!Ended(r)) stuck.push_back(r);
    }
    for (int r : stuck) {
      for (int member : MembersOf(r)) {
        if (!Ended(member)) continue;
        FailCheck(Where(r), "E3206",
                  StrCat("waits in ", Describe(r), " for rank ", member,
                         ", whose program ends without it"));
      }
    }
    if (!stuck.empty()) FailDeadlock(stuck);
  }

  [[noreturn]] void FailDeadlock(const std::vector<int>& stuck) const {
    constexpr size_t kNamed = 8;
    std::string list;
    for (size_t k = 0; k < std::min(stuck.size(), kNamed); ++k) {
      int r = stuck[k];
      list += StrCat(k ? "; " : "", Where(r), " waits in ", Describe(r), " for");
      const char* separator = " rank ";
      for (int member : MembersOf(r)) {
        if (CallOf(member).groups == CallOf(r).groups) continue;
        list += StrCat(separator, member);
        separator = ", ";
      }
    }
    if (stuck.size() > kNamed) list += StrCat("; and ", stuck.size() - kNamed, " more ranks");
    FailCheck("program set", "E3205", "deadlock: " + list);
  }

  const std::vector<const Program*>& bodies_;
  const std::vector<int>& body_of_;
  std::vector<std::vector<Call>> calls_;  // by body
  std::vector<size_t> position_;          // by rank: its next call
  struct Place {
    std::vector<int> axes;
    int from, to;
    auto operator<=>(const Place&) const = default;
  };
  std::map<Place, int> index_;
  std::vector<Groups> groups_;
};

}  // namespace

int64_t CheckSchedule(const std::vector<const Program*>& bodies, const std::vector<int>& body_of) {
  // With one body, and so without transfers, no simulation is needed. All ranks stand at call k of
  // the same line; its groups over the call's axes divide the ranks into disjoint sets, each of
  // whose members are all there with the very same call; so it completes for all, and all stand at
  // call k + 1.
  if (bodies.size() == 1 &&
      std::none_of(bodies[0]->collectives.begin(), bodies[0]->collectives.end(),
                   [](const Collective& c) { return c.kind == CollectiveKind::kSendRecv; })) {
    return 0;
  }
  return Schedule(bodies, body_of).Run();
}

}  // namespace shardc
