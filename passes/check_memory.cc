// Memory: what is read was written and is still there, and nothing overlaps that may not.
#include <algorithm>
#include <map>
#include <unordered_map>

#include "ir/diagnostic.h"
#include "passes/check_context.h"

namespace shardc {
namespace {

// Who wrote which bytes of the arena last: disjoint pieces by their start.
class ArenaMap {
 public:
  // `visits` is one more for every piece that is looked at.
  explicit ArenaMap(int64_t& visits) : visits_(visits) {}

  struct Piece {
    int64_t end;
    int root;  // -1: scratch, whose contents are nobody's value
    int instruction;
  };

  void Write(int64_t begin, int64_t end, int root, int instruction) {
    auto it = pieces_.upper_bound(begin);
    if (it != pieces_.begin()) {
      auto previous = std::prev(it);
      Piece old = previous->second;
      if (previous->first == begin) {
        it = previous;
      } else if (old.end > begin) {
        previous->second.end = begin;
        if (old.end > end) pieces_.emplace_hint(it, end, old);
      }
    }
    ++visits_;
    while (it != pieces_.end() && it->first < end) {
      ++visits_;
      Piece old = it->second;
      it = pieces_.erase(it);
      if (old.end > end) it = pieces_.emplace_hint(it, end, old);
    }
    pieces_.emplace_hint(it, begin, Piece{end, root, instruction});
  }

  // Whether all of [begin, end) was written at once, from `begin` on, as the value `root`.
  bool Holds(int64_t begin, int64_t end, int root) const {
    auto it = pieces_.find(begin);
    return it != pieces_.end() && it->second.root == root && it->second.end >= end;
  }

  // The instruction that wrote another value than `root` somewhere in [begin, end), or -1.
  int Recycler(int64_t begin, int64_t end, int root) const {
    auto it = pieces_.upper_bound(begin);
    if (it != pieces_.begin()) --it;
    for (; it != pieces_.end() && it->first < end; ++it) {
      if (it->second.end > begin && it->second.root != root) return it->second.instruction;
    }
    return -1;
  }

 private:
  int64_t& visits_;
  std::map<int64_t, Piece> pieces_;
};

// Bytes that can be written: of the arena (object -1), or of a state (its index).
struct Region {
  int object = -1;
  int64_t begin = 0, end = 0;
  bool operator==(const Region&) const = default;
};

struct Written {
  Region region;
  int result;  // index of the result, or -1 for scratch
};

class MemoryChecker {
 public:
  explicit MemoryChecker(const CheckContext& context)
      : context_(context), program_(context.program), arena_(context.visits) {
    size_t n = program_.buffers.size();
    written_at_.assign(n, -1);
    updates_.assign(program_.states.size(), {});
    is_result_.assign(n, false);
    for (const Instruction& i : program_.instructions) {
      for (int r : i.results) is_result_[context_.roots[r]] = true;
    }
  }

  void Run() {
    int n = static_cast<int>(program_.instructions.size());
    for (int i = 0; i < n; ++i) Check(i);
    for (const NamedBuffer& output : program_.outputs) CheckOutput(output);
  }

 private:
  struct Update {
    int root = -1;  // of the buffer that the state was written through
    int instruction = -1;
  };

  void Check(int i) {
    const Instruction& instruction = context_.instruction(i);
    context_.visits +=
        static_cast<int64_t>(instruction.operands.size() + instruction.results.size());
    for (size_t k = 0; k < instruction.operands.size(); ++k) {
      CheckRead(i, instruction.operands[k], static_cast<int>(k));
    }
    CollectWrites(i);
    CheckOverlaps(i);
    if (instruction.scratch >= 0) {
      Region r = RegionOf(instruction.scratch);
      if (r.begin < r.end) arena_.Write(r.begin, r.end, -1, i);
    }
    for (size_t k = 0; k < instruction.results.size(); ++k) Write(i, static_cast<int>(k));
  }

  void CheckRead(int i, int id, int operand) {
    const Buffer& root = context_.root(id);
    if (root.space == Space::kState) CheckStateRead(i, id, operand);
    if (root.space != Space::kArena) return;
    Region r = RegionOf(id);
    if (r.begin == r.end || arena_.Holds(r.begin, r.end, context_.roots[id])) return;
    context_.FailAt(i, MissingId(id), StrCat("operand ", operand, ": ", Missing(id)));
  }

  std::string MissingId(int id) const {
    Region r = RegionOf(id);
    bool recycled = written_at_[context_.roots[id]] >= 0 &&
                    arena_.Recycler(r.begin, r.end, context_.roots[id]) >= 0;
    return recycled ? "E3102" : "E3101";
  }

  std::string Missing(int id) const {
    Region r = RegionOf(id);
    int root = context_.roots[id], writer = written_at_[root];
    std::string buffer = context_.DescribeBuffer(id);
    if (writer < 0) return StrCat(buffer, " is read, but nothing has written it");
    int other = arena_.Recycler(r.begin, r.end, root);
    if (other >= 0) {
      return StrCat(buffer, " was recycled: instruction ", other, " (",
                    context_.instruction(other).op, ") has overwritten what instruction ", writer,
                    " (", context_.instruction(writer).op, ") wrote");
    }
    return StrCat(buffer, " is read, but instruction ", writer, " wrote only a part of it");
  }

  // A root that only results go through is the state after its update; any other is the state at
  // the start of the step.
  bool IsNewValue(int root, int state) const {
    return is_result_[root] && program_.states[state].buffer != root;
  }

  void CheckStateRead(int i, int id, int operand) const {
    int state = context_.state_of[id], root = context_.roots[id];
    const Update& update = updates_[state];
    if (IsNewValue(root, state)) {
      if (update.root == root) return;
      context_.FailAt(i, "E3101",
                      StrCat("operand ", operand, ": ", context_.DescribeBuffer(id),
                             " is read, but the state is not updated yet"));
    }
    if (update.instruction < 0) return;
    context_.FailAt(i, "E3114",
                    StrCat("operand ", operand, ": reads ", context_.DescribeBuffer(id),
                           " after its update by instruction ", update.instruction, " (",
                           context_.instruction(update.instruction).op, ")"));
  }

  Region RegionOf(int id) const {
    const Buffer& b = context_.buffer(id);
    if (context_.state_of[id] >= 0) return {context_.state_of[id], 0, b.bytes};
    return {-1, b.offset, b.offset + b.bytes};
  }

  // The regions that the instruction writes, by their start; fails where two of them overlap.
  void CollectWrites(int i) {
    const Instruction& instruction = context_.instruction(i);
    writes_.clear();
    auto add = [&](int id, int result) {
      Region r = RegionOf(id);
      if (r.begin < r.end) writes_.push_back({r, result});
    };
    if (instruction.scratch >= 0) add(instruction.scratch, -1);
    for (size_t k = 0; k < instruction.results.size(); ++k) {
      int id = instruction.results[k];
      if (Space s = context_.root(id).space; s == Space::kInput || s == Space::kConstant) {
        context_.FailAt(i, "E3106",
                        StrCat("writes ", context_.DescribeBuffer(id), ", which is read only"));
      }
      add(id, static_cast<int>(k));
    }
    std::sort(writes_.begin(), writes_.end(), [](const Written& a, const Written& b) {
      return std::pair(a.region.object, a.region.begin) <
             std::pair(b.region.object, b.region.begin);
    });
    for (size_t k = 1; k < writes_.size(); ++k) {
      const Written &a = writes_[k - 1], &b = writes_[k];
      if (a.region.object != b.region.object || a.region.end <= b.region.begin) continue;
      context_.FailAt(i, "E3103", StrCat(DescribeWrite(i, a), " overlaps ", DescribeWrite(i, b)));
    }
  }

  std::string DescribeWrite(int i, const Written& w) const {
    const Instruction& instruction = context_.instruction(i);
    if (w.result < 0) return "scratch " + context_.DescribeBuffer(instruction.scratch);
    return StrCat("result ", w.result, " ", context_.DescribeBuffer(instruction.results[w.result]));
  }

  // Writes are disjoint and sorted, so each operand meets only those that overlap it.
  void CheckOverlaps(int i) const {
    const Instruction& instruction = context_.instruction(i);
    for (size_t k = 0; k < instruction.operands.size(); ++k) {
      int id = instruction.operands[k];
      if (Space s = context_.root(id).space; s == Space::kInput || s == Space::kConstant) continue;
      Region r = RegionOf(id);
      auto it = std::partition_point(writes_.begin(), writes_.end(), [&](const Written& w) {
        return std::pair(w.region.object, w.region.end) <= std::pair(r.object, r.begin);
      });
      for (; it != writes_.end() && it->region.object == r.object && it->region.begin < r.end;
           ++it) {
        ++context_.visits;
        if (MayShare(i, static_cast<int>(k), r, *it)) continue;
        context_.FailAt(
            i, "E3103",
            StrCat(DescribeWrite(i, *it), " overlaps operand ", k, " ", context_.DescribeBuffer(id),
                   ", and the op may not run in place there"));
      }
    }
  }

  bool MayShare(int i, int operand, const Region& region, const Written& write) const {
    const Instruction& instruction = context_.instruction(i);
    if (write.result < 0 || !(write.region == region)) return false;
    // Equal bytes of other element sizes: element k of the one is not where element k of the other
    // is.
    int in = instruction.operands[operand], out = instruction.results[write.result];
    if (context_.elements[in] != context_.elements[out]) return false;
    if (instruction.op == "copy") return true;
    return context_.defs[i] && MayRunInPlace(*context_.defs[i], operand, write.result);
  }

  void Write(int i, int result) {
    int id = context_.instruction(i).results[result], root = context_.roots[id];
    if (context_.state_of[id] >= 0) return WriteState(i, id);
    Region r = RegionOf(id);
    // A second value in the same buffer could not be told from the first, but for the step in place
    // that is known to read the one and to leave the other.
    if (written_at_[root] >= 0 && !ReadsRoot(i, root)) {
      context_.FailAt(
          i, "E3103",
          StrCat("writes ", context_.DescribeBuffer(id), " again, after instruction ",
                 written_at_[root], " (", context_.instruction(written_at_[root]).op, ")"));
    }
    written_at_[root] = i;
    if (r.begin < r.end) arena_.Write(r.begin, r.end, root, i);
  }

  bool ReadsRoot(int i, int root) const {
    const std::vector<int>& operands = context_.instruction(i).operands;
    return std::any_of(operands.begin(), operands.end(),
                       [&](int o) { return context_.roots[o] == root; });
  }

  void WriteState(int i, int id) {
    Update& update = updates_[context_.state_of[id]];
    if (context_.buffer(id).bytes != context_.root(id).bytes) {
      context_.FailAt(i, "E3111",
                      StrCat("writes only a part of the state: ", context_.DescribeBuffer(id)));
    }
    if (update.instruction >= 0) {
      context_.FailAt(i, "E3111",
                      StrCat("updates ", context_.DescribeBuffer(id), " again, after instruction ",
                             update.instruction));
    }
    update.root = context_.roots[id];
    update.instruction = i;
  }

  // An output in a state has the state's last value, which is always there.
  void CheckOutput(const NamedBuffer& output) {
    int id = output.buffer;
    Region r = RegionOf(id);
    if (context_.root(id).space != Space::kArena || r.begin == r.end) return;
    if (arena_.Holds(r.begin, r.end, context_.roots[id])) return;
    context_.Fail(StrCat("output '", output.name, "'"), "E3107",
                  StrCat("is not alive at the end: ", Missing(id)));
  }

  const CheckContext& context_;
  const Program& program_;
  ArenaMap arena_;
  std::vector<int> written_at_;  // by root: the last instruction that wrote it, or -1
  std::vector<bool> is_result_;  // by root
  std::vector<Update> updates_;  // by state
  std::vector<Written> writes_;  // of the instruction at hand
};

}  // namespace

void CheckMemory(const CheckContext& context) { MemoryChecker(context).Run(); }

}  // namespace shardc
