// What is left of a detach: x + (y - x) with a y that was rounded, chosen or looked up, a
// straight-through estimator; and x - x.
#include <algorithm>

#include "frontend/recover/match.h"
#include "frontend/recover/patterns.h"
#include "ir/counted.h"
#include "ir/diagnostic.h"
#include "ir/op_def.h"

namespace shardc::recover {
namespace {

// Whether y is made of x on a way that has no gradient, by rounding, or by what is no float, and on
// none that has one through a product, as what experts give that x chooses.
bool IsStepOf(const Value* y, const Value* x) {
  constexpr size_t kMaxWays = 256;
  struct Way {
    const Value* value;
    bool step, product;  // whether it passed such
    bool operator==(const Way&) const = default;
  };
  std::vector<Way> ways = {{y, false, false}};
  bool found = false;
  for (size_t i = 0; i < ways.size(); ++i) {
    const auto [v, step, product] = ways[i];
    if (ways.size() > kMaxWays || (v == x && !step && product)) return false;
    found |= v == x && step;
    const Op* op = v->producer;
    if (v == x || op == nullptr) continue;
    const bool steps = step || op->def->gradient_is_zero || !IsFloat(v->type.dtype);
    for (const Value* operand : op->operands) {
      const Way way = {operand, steps, product || IsProduct(op)};
      if (std::ranges::find(ways, way) == ways.end()) ways.push_back(way);
    }
  }
  return found;
}

// The difference has no gradient: a model that means y has no reason to write it so, and ONNX has
// no op for detach.
Value* StraightThrough(Builder& b, Op* op) {
  if (op->name() != "add" || !IsFloat(op->out().dtype)) return nullptr;
  for (int i = 0; i < 2; ++i) {
    Value* x = op->operands[i];
    Op* difference = ProducedBy(op->operands[1 - i], "sub");
    if (!difference || difference->operands[1] != x || difference->attrs.Bool("detached", false) ||
        !IsStepOf(difference->operands[0], x)) {
      continue;
    }
    Value* detached = b.Make("sub", difference->operands, {{"detached", true}});
    return b.Add(x, detached);
  }
  return nullptr;
}

}  // namespace

bool RecoverStraightThrough(Graph& graph) {
  if (!ApplyRules(graph, {StraightThrough})) return false;
  const Op* first = nullptr;
  int64_t count = 0;
  for (const auto& op : graph.ops()) {
    if (op->name() != "sub" || !op->attrs.Bool("detached", false)) continue;
    if (IsSplat(op->operands[1], 0)) continue;  // the model's own detach
    if (count++ == 0) first = op.get();
  }
  graph.notes.push_back(
      StrCat("x + (y - x), where y is x rounded or chosen by x, is taken as a straight-through "
             "estimator, so that y - x has no gradient: ",
             Counted(count, "place"), first->site.empty() ? "" : StrCat(", at ", first->site),
             count > 1 ? " the first" : ""));
  return true;
}

void NoteDetachedPairs(Graph& graph) {
  const Op* first = nullptr;
  int64_t count = 0;
  for (const auto& op : graph.ops()) {
    if (!OneOf(op->name(), {"sub", "div"}) || op->operands[0] != op->operands[1]) continue;
    if (!IsFloat(op->out().dtype) || !DependsOnParam(op->operands[0])) continue;
    if (count++ == 0) first = op.get();
  }
  if (count == 0) return;
  graph.notes.push_back(StrCat(
      "x - x, or x / x, in ", Counted(count, "place"),
      first->site.empty() ? "" : StrCat(", at ", first->site), count > 1 ? " the first" : "",
      ": no gradient, as the file has it; where the module detaches one of the two (ratios of "
      "policies), export with dynamo and optimize=False, whose files say so"));
}

}  // namespace shardc::recover
