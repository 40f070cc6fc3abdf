// Which dims an attention's operands have: kv heads that were not repeated, heads behind the
// sequence.
#include <algorithm>

#include "frontend/recover/patterns.h"
#include "ir/op_def.h"

namespace shardc::recover {
namespace {

const Ints kSwapHeads = {0, 2, 1, 3};  // [b, s, h, d] <-> [b, h, s, d]

// The [b, g, t, d] of k or v [b, g * r, t, d] in which every head is repeated r times, else null.
Value* Ungrouped(Builder& b, Value* v) {
  const Shape& shape = v->type.shape;
  if (Op* broadcast = ProducedBy(v, "broadcast_to")) {
    const Shape& from = broadcast->in(0).shape;
    bool heads_only = from.size() == 4 && from[1] == 1 && from[0] == shape[0] &&
                      from[2] == shape[2] && from[3] == shape[3];
    return heads_only ? broadcast->operands[0] : nullptr;
  }
  Op* reshape = ProducedBy(v, "reshape");
  Op* broadcast = reshape ? ProducedBy(reshape->operands[0], "broadcast_to") : nullptr;
  if (broadcast == nullptr || broadcast->out().rank() != 5 || broadcast->in(0).rank() != 5)
    return nullptr;
  const Shape &from = broadcast->in(0).shape, &to = broadcast->out().shape;
  if (to[0] != shape[0] || to[3] != shape[2] || to[4] != shape[3] || from[2] != 1) return nullptr;
  for (int d : {0, 1, 3, 4}) {
    if (from[d] != to[d]) return nullptr;
  }
  return b.Reshape(broadcast->operands[0], {from[0], from[1], from[3], from[4]});
}

std::vector<Value*> WithFirst(const Op* op, Value* q, Value* k, Value* v) {
  std::vector<Value*> operands = op->operands;
  operands[0] = q, operands[1] = k, operands[2] = v;
  return operands;
}

bool StatisticsUnused(const Op* op) { return op->results[1]->users.empty(); }

Value* UngroupHeads(Builder& b, Op* op) {
  if (op->name() != "attention" || op->attrs.String("layout") != "bhsd" || !StatisticsUnused(op)) {
    return nullptr;
  }
  Value *k = Ungrouped(b, op->operands[1]), *v = Ungrouped(b, op->operands[2]);
  if (k == nullptr || v == nullptr || k->type.shape[1] != v->type.shape[1]) return nullptr;
  return b.Create("attention", WithFirst(op, op->operands[0], k, v), op->attrs)->result();
}

// The x of a transpose of x [b, s, h, d] to [b, h, s, d], else null.
Value* BeforeSwap(const Value* v) {
  Op* transpose = ProducedBy(v, "transpose");
  return IsPerm(transpose, kSwapHeads) ? transpose->operands[0] : nullptr;
}

// What stands for v, which broadcasts to [b, h, s, d], in an op over [b, s, h, d]; null if nothing
// cheap.
Value* SwappedOperand(Builder& b, Value* v) {
  if (Value* x = BeforeSwap(v)) return x;
  const Shape& shape = v->type.shape;
  if (shape.size() <= 1) return v;
  Shape full(4 - shape.size(), 1);
  full.insert(full.end(), shape.begin(), shape.end());
  if (full[1] != 1) return nullptr;
  std::swap(full[1], full[2]);
  size_t drop = full[0] == 1 ? 1 : 0;
  return b.Reshape(v, Shape(full.begin() + drop, full.end()));
}

// Rotary positions and norms of q and k stand between the transpose and the attention: the
// transpose moves below them.
Value* SinkSwap(Builder& b, Op* op) {
  if (op->operands.empty() || op->out().rank() != 4) return nullptr;
  bool slice = op->name() == "slice", split = op->name() == "split",
       concat = op->name() == "concat";
  bool norm = op->name() == "layer_norm" || op->name() == "rms_norm";
  if (!op->def->elementwise && !slice && !split && !concat && !norm) return nullptr;
  if (op->results.size() != 1 && !split && !norm) return nullptr;
  auto swapped = [](const Value* v) { return BeforeSwap(v) != nullptr; };
  if (concat ? !std::all_of(op->operands.begin(), op->operands.end(), swapped)
             : std::none_of(op->operands.begin(), op->operands.end(), swapped)) {
    return nullptr;
  }
  Attributes attrs = op->attrs;
  if ((split || concat) && attrs.Int("axis") != 3) return nullptr;
  if (slice) {
    for (const char* name : {"starts", "limits", "steps"}) {
      Ints entries = attrs.IntList(name);
      std::swap(entries[1], entries[2]);
      attrs.Set(name, std::move(entries));
    }
  }
  std::vector<Value*> operands;
  for (Value* v : op->operands) {
    bool vector = norm && !operands.empty();
    operands.push_back(vector ? v : SwappedOperand(b, v));
    if (operands.back() == nullptr) return nullptr;
  }
  for (size_t i = 1; norm && i < op->results.size(); ++i) {
    if (!op->results[i]->users.empty()) return nullptr;
  }
  Op* moved = b.Create(op->name(), std::move(operands), std::move(attrs));
  for (size_t i = 1; split && i < op->results.size(); ++i) {
    b.graph().ReplaceAllUses(op->results[i], b.Transpose(moved->results[i], kSwapHeads));
  }
  return b.Transpose(moved->result(), kSwapHeads);
}

// Heads that were made from [b, s, h, d] by transposes, and are put back the same way.
Value* UseBshd(Builder& b, Op* op) {
  if (op->name() != "transpose" || !IsPerm(op, kSwapHeads)) return nullptr;
  Op* attention = ProducedBy(op->operands[0], "attention");
  if (attention == nullptr || op->operands[0] != attention->result() ||
      !StatisticsUnused(attention) || attention->attrs.String("layout") != "bhsd" ||
      CountUses(b.graph(), attention->result()) != 1) {
    return nullptr;
  }
  Value* heads[3];
  for (int i = 0; i < 3; ++i) {
    heads[i] = BeforeSwap(attention->operands[i]);
    if (heads[i] == nullptr) return nullptr;
  }
  Attributes attrs = attention->attrs;
  attrs.Set("layout", std::string("bshd"));
  b.site = attention->site;
  return b.Create("attention", WithFirst(attention, heads[0], heads[1], heads[2]), attrs)->result();
}

// Whether v's heads were split off by a transpose, which may lie behind other ops.
bool HasSwapAbove(const Value* v, int depth = 10) {
  if (BeforeSwap(v)) return true;
  const Op* op = v->producer;
  return op != nullptr && depth > 0 && v->type.rank() == 4 &&
         std::any_of(op->operands.begin(), op->operands.end(),
                     [&](const Value* operand) { return HasSwapAbove(operand, depth - 1); });
}

// Sinking pays where all three operands end up in the other layout.
bool WantsBshd(const Op* op) {
  return op->name() == "attention" && op->attrs.String("layout") == "bhsd" &&
         std::all_of(op->operands.begin(), op->operands.begin() + 3,
                     [](const Value* v) { return HasSwapAbove(v); }) &&
         std::any_of(op->result()->users.begin(), op->result()->users.end(), [](const Op* user) {
           return user->name() == "transpose" && IsPerm(user, kSwapHeads);
         });
}

}  // namespace

bool ChooseAttentionLayout(Graph& graph) {
  bool changed = ApplyRules(graph, {UngroupHeads});
  Simplify(graph);
  if (std::any_of(graph.ops().begin(), graph.ops().end(),
                  [](const auto& op) { return WantsBshd(op.get()); })) {
    changed |= ApplyRules(graph, {SinkSwap});
  }
  changed |= ApplyRules(graph, {UseBshd});
  Simplify(graph);
  return changed;
}

}  // namespace shardc::recover
