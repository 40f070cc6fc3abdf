#include "runtime/cuda/joined.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "runtime/accesses.h"

namespace shardc::cuda {
namespace {

// The operands that the instructions of a run have in common, by op.
struct Kind {
  std::string_view op;
  std::vector<size_t> shared;
};
const Kind* KindOf(std::string_view op) {
  static const Kind kKinds[] = {{"adamw", {4, 5, 6}}, {"sgd", {2, 3, 5}}, {"cast", {}}};
  const auto* kind = std::ranges::find(kKinds, op, &Kind::op);
  return kind == std::end(kKinds) ? nullptr : kind;
}

bool SameTypes(const Program& p, const std::vector<int>& a, const std::vector<int>& b) {
  return std::ranges::equal(
      a, b, {}, [&](int v) { return p.buffers[v].type.dtype; },
      [&](int v) { return p.buffers[v].type.dtype; });
}

Attributes WithoutDecay(Attributes attrs) {
  attrs.Erase("weight_decay");
  return attrs;
}

bool Alike(const Program& p, const Kind& kind, const Instruction& a, const Instruction& b) {
  return a.op == b.op && SameTypes(p, a.operands, b.operands) &&
         SameTypes(p, a.results, b.results) &&
         std::ranges::all_of(
             kind.shared,
             [&](size_t i) { return i >= a.operands.size() || a.operands[i] == b.operands[i]; }) &&
         WithoutDecay(a.attrs) == WithoutDecay(b.attrs);
}

bool Apart(const Program& p, std::span<const int> run, const Instruction& next) {
  const std::vector<Access> mine = AccessesOf(p, next);
  return std::ranges::none_of(
      run, [&](int i) { return Conflict(mine, AccessesOf(p, p.instructions[i])); });
}

// Of scalar floats.
bool IsStep(const Program& p, const Instruction& i) {
  auto scalar = [&](int b) {
    return p.buffers[b].local_shape.empty() && IsFloat(p.buffers[b].type.dtype);
  };
  return (i.op == "add" || i.op == "cast") && std::ranges::all_of(i.operands, scalar) &&
         std::ranges::all_of(i.results, scalar);
}

// Whether what the instruction reads is a result of the run, if `results` may be read, or is not
// written in it.
bool ReadsWell(const Program& p, std::span<const int> run, const Instruction& next, bool results) {
  return std::ranges::all_of(next.operands, [&](int b) {
    const auto read = AccessOf(p, b, false);
    bool made = false, overwritten = false;
    for (int i : run) {
      const int result = p.instructions[i].results[0];
      made |= result == b;
      const auto write = AccessOf(p, result, true);
      overwritten |= read && write && Conflict(*read, *write);
    }
    return made ? results : !overwritten;
  });
}

}  // namespace

bool Joins(const Program& p, std::span<const int> run, int next) {
  const Instruction &first = p.instructions[run[0]], &i = p.instructions[next];
  if (run.size() >= kMostJoined || i.collective >= 0 || i.scratch >= 0) return false;
  if (const Kind* kind = KindOf(first.op)) return Alike(p, *kind, first, i) && Apart(p, run, i);
  if (first.op != "sum_squares") return false;
  const bool step = IsStep(p, i);
  return (step || i.op == "sum_squares") && ReadsWell(p, run, i, step);
}

}  // namespace shardc::cuda
