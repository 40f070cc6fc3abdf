// Collectives of one program: each is used once and fits what it moves.
#include <algorithm>
#include <unordered_map>

#include "ir/diagnostic.h"
#include "passes/check_context.h"

namespace shardc {
namespace {

class CollectiveChecker {
 public:
  explicit CollectiveChecker(const CheckContext& context)
      : context_(context), program_(context.program) {}

  void Run() {
    CheckIds();
    std::vector<int> users(program_.collectives.size(), -1);
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      CheckInstruction(static_cast<int>(i), users);
    }
    for (size_t c = 0; c < users.size(); ++c) {
      if (users[c] >= 0) continue;
      context_.Fail(Where(program_.collectives[c]), "E3110", "no instruction uses it");
    }
  }

 private:
  static std::string Where(const Collective& c) {
    return StrCat("collective ", c.id, " (", CollectiveKindName(c.kind),
                  c.op.empty() ? "" : " for " + c.op, ")");
  }

  void CheckIds() const {
    std::unordered_map<int, size_t> seen;
    for (size_t c = 0; c < program_.collectives.size(); ++c) {
      auto [it, added] = seen.emplace(program_.collectives[c].id, c);
      if (added) continue;
      context_.Fail(Where(program_.collectives[c]), "E3110",
                    StrCat("collectives ", it->second, " and ", c, " have the same id"));
    }
  }

  void CheckInstruction(int i, std::vector<int>& users) {
    const Instruction& instruction = context_.instruction(i);
    const OpDef* def = context_.defs[i];
    if (instruction.collective == -1) {
      if (def && def->communicates)
        context_.FailAt(i, "E3109", "names no collective, though it communicates");
      return;
    }
    if (instruction.collective < 0 ||
        instruction.collective >= static_cast<int>(program_.collectives.size())) {
      context_.FailAt(i, "E3110", StrCat("there is no collective ", instruction.collective));
    }
    int& user = users[instruction.collective];
    if (user >= 0) {
      context_.FailAt(i, "E3112",
                      StrCat("uses collective ", instruction.collective, ", which instruction ",
                             user, " uses already"));
    }
    user = i;
    const Collective& c = program_.collectives[instruction.collective];
    if (instruction.op != CollectiveKindName(c.kind)) {
      context_.FailAt(i, "E3109",
                      StrCat("is given a collective of kind ", CollectiveKindName(c.kind)));
    }
    int64_t group = CheckGroup(i, c);
    CheckReduction(i, c);
    if (c.kind == CollectiveKind::kSendRecv) return CheckTransfer(i, c, group);
    CheckOperands(i, c, group);
  }

  // This rank is the sender or the receiver, and has the buffers of that end alone.
  void CheckTransfer(int i, const Collective& c, int64_t group) const {
    if (c.from < 0 || c.from >= group || c.to < 0 || c.to >= group || c.from == c.to) {
      context_.FailAt(i, "E3109",
                      StrCat("its collective goes from member ", c.from, " to member ", c.to,
                             " of a group of ", group));
    }
    const Instruction& instruction = context_.instruction(i);
    const int64_t me = program_.mesh.GroupIndex(program_.rank, c.axes);
    if (me != c.from && me != c.to) {
      context_.FailAt(i, "E3109",
                      StrCat("its collective goes from member ", c.from, " to member ", c.to,
                             ", and this rank is member ", me));
    }
    const auto& used = me == c.from ? instruction.operands : instruction.results;
    const auto& unused = me == c.from ? instruction.results : instruction.operands;
    if (used.empty() || !unused.empty()) {
      context_.FailAt(
          i, "E3109",
          StrCat("has ", instruction.operands.size(), " operands and ", instruction.results.size(),
                 " results, and this rank ", me == c.from ? "sends" : "receives"));
    }
    int64_t total = 0;
    for (int b : used) {
      if (context_.buffer(b).type.dtype != c.dtype) {
        context_.FailAt(
            i, "E3109",
            StrCat(context_.DescribeBuffer(b), " has another element type than its collective"));
      }
      total += context_.elements[b];
    }
    if (total == c.elements) return;
    context_.FailAt(
        i, "E3109",
        StrCat("its collective is of ", c.elements, " elements, but its buffers have ", total));
  }

  int64_t CheckGroup(int i, const Collective& c) const {
    if (c.axes.empty()) context_.FailAt(i, "E3109", "its collective names no axes");
    std::vector<bool> used(program_.mesh.num_axes());
    for (int a : c.axes) {
      if (a < 0 || a >= program_.mesh.num_axes()) {
        context_.FailAt(
            i, "E3109",
            StrCat("its collective names axis ", a, " of a mesh with ", program_.mesh.num_axes()));
      }
      if (used[a]) {
        context_.FailAt(
            i, "E3109",
            StrCat("its collective names axis '", program_.mesh.axes()[a].name, "' twice"));
      }
      used[a] = true;
    }
    int64_t size = program_.mesh.GroupSize(c.axes);
    if (size < 2) context_.FailAt(i, "E3109", "its collective has a group of one rank");
    return size;
  }

  void CheckReduction(int i, const Collective& c) const {
    bool reduces = c.kind == CollectiveKind::kAllReduce || c.kind == CollectiveKind::kReduceScatter;
    if (c.max && !reduces) {
      context_.FailAt(i, "E3109", "its collective takes a maximum, but reduces nothing");
    }
    if (reduces && !c.max && c.dtype == DType::kBool) {
      context_.FailAt(i, "E3109", "its collective sums bools, which have no sum");
    }
  }

  void CheckOperands(int i, const Collective& c, int64_t group) const {
    const Instruction& instruction = context_.instruction(i);
    if (instruction.operands.size() != instruction.results.size()) {
      context_.FailAt(i, "E3109",
                      StrCat("has ", instruction.operands.size(), " operands, but ",
                             instruction.results.size(), " results"));
    }
    int64_t total = 0;
    for (size_t k = 0; k < instruction.operands.size(); ++k) {
      int in = instruction.operands[k], out = instruction.results[k];
      for (int b : {in, out}) {
        if (context_.buffer(b).type.dtype == c.dtype) continue;
        context_.FailAt(
            i, "E3109",
            StrCat(context_.DescribeBuffer(b), " has another element type than its collective"));
      }
      total += CheckPair(i, c, group, in, out);
    }
    if (total != c.elements) {
      context_.FailAt(
          i, "E3109",
          StrCat("its collective is of ", c.elements, " elements, but its buffers have ", total));
    }
  }

  // Returns the elements that count towards Collective::elements.
  int64_t CheckPair(int i, const Collective& c, int64_t group, int in, int out) const {
    int64_t a = context_.elements[in], b = context_.elements[out];
    auto require = [&](bool fits, std::string_view what) {
      if (fits) return;
      context_.FailAt(i, "E3109",
                      StrCat(context_.DescribeBuffer(in), " of ", a, " elements on this rank and ",
                             context_.DescribeBuffer(out), " of ", b, " do not fit ", what,
                             " over ", group, " ranks"));
    };
    switch (c.kind) {
      case CollectiveKind::kAllReduce:
        require(a == b, "an all_reduce");
        return a;
      case CollectiveKind::kAllGather:
        require(b % group == 0 && a == b / group, "an all_gather");
        return b;
      case CollectiveKind::kReduceScatter:
        require(a % group == 0 && b == a / group, "a reduce_scatter");
        return a;
      case CollectiveKind::kAllToAll:
        require(a == b && a % group == 0, "an all_to_all");
        return a;
      case CollectiveKind::kBroadcast:
      case CollectiveKind::kSendRecv:
        break;
    }
    context_.FailAt(i, "E3109", "its collective is of a kind that no instruction has");
  }

  const CheckContext& context_;
  const Program& program_;
};

}  // namespace

void CheckCollectives(const CheckContext& context) { CollectiveChecker(context).Run(); }

}  // namespace shardc
