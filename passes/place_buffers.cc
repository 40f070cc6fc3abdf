#include "passes/place_buffers.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include "ir/contains.h"
#include "ir/op_def.h"
#include "passes/lend_scratch.h"
#include "passes/plan_memory.h"
#include "passes/travel.h"

namespace shardc {
namespace {

class Placer {
 public:
  Placer(Program& program, const std::unordered_map<int, int>& told_by)
      : program_(program), told_by_(told_by) {}

  // Returns how much memory it takes.
  int64_t Place(bool keep_to_end) {
    FindLives(keep_to_end);
    PlaceInPlace();
    PlaceArena();
    return program_.arena_bytes;
  }

  // After Place. What is sent is kept from scratch as long as it may be under way, even where its
  // place is used again before.
  void Lend() {
    FindLives(true);
    std::vector<MemoryRequest> placed;
    for (size_t b = 0; b < program_.buffers.size(); ++b) {
      const Buffer& buffer = program_.buffers[b];
      if (buffer.space != Space::kArena || buffer.alias_of >= 0) continue;
      placed.push_back({buffer.bytes, first_[b], last_[b], buffer.offset});
    }
    LendScratch(program_, placed);
  }

 private:
  int Root(int buffer) const { return RootOf(program_, buffer); }

  // From which instruction to which each root is needed.
  void FindLives(bool keep_to_end) {
    last_.assign(program_.buffers.size(), -1);
    first_.assign(program_.buffers.size(), -1);
    auto& list = program_.instructions;
    for (size_t i = 0; i < list.size(); ++i) {
      for (int b : list[i].operands) last_[Root(b)] = static_cast<int>(i);
      for (int b : list[i].results) {
        first_[Root(b)] = static_cast<int>(i);
        last_[Root(b)] = std::max(last_[Root(b)], static_cast<int>(i));
      }
    }
    for (const NamedBuffer& o : program_.outputs)
      last_[Root(o.buffer)] = static_cast<int>(list.size());
    KeepWhatIsMultiplied();
    KeepWhatIsSent(keep_to_end);
    KeepWhatTravels();
  }

  // What a product reads is not written over by the elementwise op behind it: a backend may do that
  // along with the product. Not where the product is added to something, in whose place it is made.
  void KeepWhatIsMultiplied() {
    const auto& list = program_.instructions;
    for (size_t i = 0; i + 1 < list.size(); ++i) {
      const OpDef *product = FindOpDef(list[i].op), *behind = FindOpDef(list[i + 1].op);
      if (!product || product->precision != Precision::kCompute || product->typed_result != 0 ||
          !behind || !behind->elementwise) {
        continue;
      }
      const auto operands = static_cast<int>(list[i].operands.size());
      const bool adds = product->adds_to >= 0 && product->adds_to < operands;
      if (adds || !Contains(list[i + 1].operands, list[i].results[0])) continue;
      for (int b : list[i].operands) {
        int& last = last_[Root(b)];
        last = std::max(last, static_cast<int>(i) + 1);
      }
    }
  }

  // Slots: roots that share memory because a result is made in the place of an operand that ends
  // there.
  void PlaceInPlace() {
    slot_.resize(program_.buffers.size());
    std::iota(slot_.begin(), slot_.end(), 0);
    for (size_t i = 0; i < program_.instructions.size(); ++i) TryInPlace(static_cast<int>(i));
  }

  // What is sent keeps its memory until it is known to have been received: to write over it earlier
  // would mean to wait for the receiver. `keep_to_end`: where this is never known, to the end.
  void KeepWhatIsSent(bool keep_to_end) {
    const int end = static_cast<int>(program_.instructions.size());
    std::unordered_map<int, int> at;  // by collective: the instruction
    auto id_of = [&](const Instruction& i) {
      return i.collective < 0 ? -1 : program_.collectives[i.collective].id;
    };
    for (int i = 0; i < end; ++i) at[id_of(program_.instructions[i])] = i;
    for (const Instruction& send : program_.instructions) {
      if (send.collective < 0 || !send.results.empty()) continue;
      auto told = told_by_.find(id_of(send));
      auto until = told == told_by_.end() ? at.end() : at.find(told->second);
      if (until == at.end() && !keep_to_end) continue;
      for (int b : send.operands) {
        int& last = last_[Root(b)];
        last = std::max(last, until == at.end() ? end : until->second);
      }
    }
  }

  // What a collective reads keeps its memory while it travels (passes/travel.h), so that no op
  // waits to write over it. Not that of all_reduces, which run in place.
  void KeepWhatTravels() {
    Timeline<std::vector<int>> line;
    const auto& list = program_.instructions;
    std::vector<int64_t> begin, end(program_.buffers.size());  // by instruction; by buffer
    for (const Instruction& i : list) {
      for (int b : i.operands) line.WaitUntil(end[Root(b)]);
      begin.push_back(line.now());
      if (i.collective < 0) {
        line.Compute(BytesMeanwhile(i.flops, i.bytes));
        continue;
      }
      const Collective& c = program_.collectives[i.collective];
      const bool twice = c.kind == CollectiveKind::kAllReduce;
      const int64_t done = line.Send(c.axes, c.elements * DTypeSize(c.dtype) * (twice ? 2 : 1));
      for (int b : i.results) end[Root(b)] = done;
    }
    for (size_t i = 0; i < list.size(); ++i) {
      if (!Travels(list[i])) continue;
      const int64_t done = end[Root(list[i].results[0])];
      const auto until = std::lower_bound(begin.begin(), begin.end(), done) - begin.begin() - 1;
      for (int b : list[i].operands) {
        int& last = last_[Root(b)];
        last = std::max(last, static_cast<int>(until));
      }
    }
  }

  // Whether the instruction is a collective that has its results elsewhere than its operands.
  bool Travels(const Instruction& i) const {
    if (i.collective < 0 || i.results.empty()) return false;
    const CollectiveKind kind = program_.collectives[i.collective].kind;
    return kind != CollectiveKind::kAllReduce && kind != CollectiveKind::kSendRecv;
  }

  void TryInPlace(int at) {
    const Instruction& i = program_.instructions[at];
    const OpDef* def = FindOpDef(i.op);
    if (!def) return;
    for (size_t r = 0; r < i.results.size(); ++r) {
      int result = i.results[r];
      if (program_.buffers[result].space != Space::kArena) continue;
      for (size_t o = 0; o < i.operands.size(); ++o) {
        if (!MayRunInPlace(*def, static_cast<int>(o), static_cast<int>(r))) continue;
        if (MayReplace(i, at, o, result, def->in_place == nullptr)) {
          int root = Root(i.operands[o]);
          slot_[result] = slot_[root];
          break;
        }
      }
    }
  }

  // `element_for_element`: other operands of the same shape may be in the same memory.
  bool MayReplace(const Instruction& i, int at, size_t position, int result,
                  bool element_for_element) const {
    const int operand = i.operands[position], root = Root(operand);
    const Buffer &from = program_.buffers[operand], &to = program_.buffers[result];
    if (program_.buffers[root].space != Space::kArena || last_[root] != at) return false;
    if (from.local_shape != to.local_shape || from.bytes != to.bytes ||
        program_.buffers[root].bytes != to.bytes) {
      return false;
    }
    // Another view of the same memory with another shape is read at other indices.
    for (size_t o = 0; o < i.operands.size(); ++o) {
      const int b = i.operands[o];
      if (o != position && slot_[Root(b)] == slot_[root] &&
          (!element_for_element || program_.buffers[b].local_shape != from.local_shape)) {
        return false;
      }
    }
    return std::none_of(i.results.begin(), i.results.end(),
                        [&](int b) { return b != result && slot_[b] == slot_[root]; });
  }

  void PlaceArena() {
    std::map<int, size_t> request_of;
    std::vector<MemoryRequest> requests;
    for (size_t b = 0; b < program_.buffers.size(); ++b) {
      const Buffer& buffer = program_.buffers[b];
      if (buffer.space != Space::kArena || buffer.alias_of >= 0) continue;
      auto [it, fresh] = request_of.try_emplace(slot_[b], requests.size());
      if (fresh) requests.push_back({buffer.bytes, first_[b], last_[b]});
      MemoryRequest& r = requests[it->second];
      r.first = std::min(r.first, first_[b]);
      r.last = std::max(r.last, last_[b]);
    }
    program_.arena_bytes = PlanMemory(requests);
    for (size_t b = 0; b < program_.buffers.size(); ++b) {
      Buffer& buffer = program_.buffers[b];
      if (buffer.space != Space::kArena || buffer.alias_of >= 0) continue;
      buffer.offset = requests[request_of.at(slot_[b])].offset;
    }
    // An alias may come before its root has its offset.
    for (Buffer& buffer : program_.buffers) {
      if (buffer.alias_of >= 0) {
        buffer.offset = program_.buffers[buffer.alias_of].offset;
        buffer.space = program_.buffers[buffer.alias_of].space;
        buffer.name = program_.buffers[buffer.alias_of].name;
      }
    }
  }

  Program& program_;
  const std::unordered_map<int, int>& told_by_;
  std::vector<int> slot_, first_, last_;  // by buffer
};

}  // namespace

void PlaceBuffers(Program& program, const std::unordered_map<int, int>& told_by) {
  Placer placer(program, told_by);
  const int64_t kept = placer.Place(true);
  const bool sends =
      std::any_of(program.collectives.begin(), program.collectives.end(),
                  [](const Collective& c) { return c.kind == CollectiveKind::kSendRecv; });
  const SharedVector<Buffer> places = program.buffers;
  if (sends && placer.Place(false) >= kept) {
    program.buffers = places;
    program.arena_bytes = kept;
  }
  placer.Lend();
}

}  // namespace shardc
