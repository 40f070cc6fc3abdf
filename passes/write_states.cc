#include "passes/write_states.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/op_def.h"

namespace shardc {
namespace {

class StateWriter {
 public:
  StateWriter(Program& program, size_t updates) : program_(program), updates_(updates) {}

  void Run() {
    KeepOldValues();
    FindUses();
    auto& list = program_.instructions;
    auto into = list.end() - static_cast<std::ptrdiff_t>(updates_);
    for (auto copy = into; copy != list.end(); ++copy) {
      const int value = copy->operands[0], state = copy->results[0];
      if (!MayBeMadeIn(state, value)) {
        if (into != copy) *into = std::move(*copy);
        ++into;
        continue;
      }
      Buffer& made = program_.buffers[value];
      made.space = Space::kState;
      made.name = program_.buffers[state].name;
    }
    list.erase(into, list.end());
  }

 private:
  int Root(int buffer) const { return RootOf(program_, buffer); }

  // What outputs and other states take of a state that is updated becomes a copy that is made first
  // of all.
  void KeepOldValues() {
    auto& list = program_.instructions;
    const std::span<Instruction> updates = std::span(list).last(updates_);
    std::unordered_set<int> updated;
    for (const Instruction& update : updates) updated.insert(update.results[0]);
    std::vector<Instruction> copies;
    auto keep = [&](int& buffer) {
      if (!updated.contains(Root(buffer))) return;
      const Buffer& shown = program_.buffers[buffer];
      Buffer kept;
      kept.type = shown.type;
      kept.local_shape = shown.local_shape;
      kept.bytes = shown.bytes;
      Instruction& copy = copies.emplace_back();
      copy.op = "copy";
      copy.operands = {buffer};
      copy.results = {static_cast<int>(program_.buffers.size())};
      copy.phase = Phase::kOptimizer;
      buffer = copy.results[0];
      program_.buffers.push_back(std::move(kept));
    };
    for (NamedBuffer& o : program_.outputs) keep(o.buffer);
    for (Instruction& update : updates) {
      if (Root(update.operands[0]) != update.results[0]) keep(update.operands[0]);
    }
    list.insert(list.begin(), std::make_move_iterator(copies.rbegin()),
                std::make_move_iterator(copies.rend()));
  }

  void FindUses() {
    const auto& list = program_.instructions;
    uses_.resize(program_.buffers.size());
    for (size_t i = 0; i < list.size(); ++i) {
      for (int b : list[i].operands) {
        uses_[Root(b)].last_read = static_cast<int>(i);
        ++uses_[Root(b)].readers;
      }
      for (int b : list[i].results) uses_[Root(b)].writer = static_cast<int>(i);
    }
    for (const NamedBuffer& o : program_.outputs) uses_[Root(o.buffer)].is_output = true;
  }

  bool MayBeMadeIn(int state, int value) const {
    const Buffer& v = program_.buffers[value];
    const Uses& uses = uses_[value];
    if (v.alias_of >= 0 || v.space != Space::kArena || uses.readers != 1 || uses.is_output) {
      return false;
    }
    const Instruction& maker = program_.instructions[uses.writer];
    return uses_[state].last_read <= uses.writer && MayWrite(maker, value, state);
  }

  // Whether the instruction may have its result `value` in the state, which it may read itself.
  bool MayWrite(const Instruction& maker, int value, int state) const {
    const OpDef* def = FindOpDef(maker.op);
    if (!def || maker.collective >= 0) return false;
    const auto result =
        static_cast<int>(std::ranges::find(maker.results, value) - maker.results.begin());
    for (size_t o = 0; o < maker.operands.size(); ++o) {
      if (Root(maker.operands[o]) != state) continue;
      if (!MayRunInPlace(*def, static_cast<int>(o), result)) return false;
    }
    return true;
  }

  struct Uses {
    int last_read = -1, writer = -1;  // instructions
    int readers = 0;
    bool is_output = false;
  };

  Program& program_;
  const size_t updates_;
  std::vector<Uses> uses_;  // by buffer, of those that are no views
};

}  // namespace

void WriteStates(Program& program, size_t updates) { StateWriter(program, updates).Run(); }

}  // namespace shardc
