// Which dims an attention's operands have: kv heads that were not repeated, heads behind the
// sequence.
#include <algorithm>

#include "frontend/recover/patterns.h"
#include "ir/op_def.h"

namespace shardc::recover {
namespace {

// The transpose of the one head that was repeated before the transpose, else null.
Value* OneHead(Builder& b, const Op* transpose, int heads) {
  Op* broadcast = transpose ? ProducedBy(transpose->operands[0], "broadcast_to") : nullptr;
  if (broadcast == nullptr) return nullptr;
  const Ints& perm = transpose->attrs.IntList("perm");
  Shape one = broadcast->out().shape;
  one[perm[heads]] = 1;
  if (one != broadcast->in(0).shape) return nullptr;
  return b.Transpose(broadcast->operands[0], perm);
}

// The k or v with fewer heads, in dim `heads` of 4, of one in which every head is repeated r times,
// else null.
Value* Ungrouped(Builder& b, Value* v, int heads) {
  if (Op* transpose = ProducedBy(v, "transpose")) {
    if (Value* one = OneHead(b, transpose, heads)) return one;
    const Ints& perm = transpose->attrs.IntList("perm");
    Value* ungrouped = Ungrouped(b, transpose->operands[0], static_cast<int>(perm[heads]));
    return ungrouped ? b.Transpose(ungrouped, perm) : nullptr;
  }
  Op* reshape = ProducedBy(v, "reshape");
  Op* broadcast = ProducedBy(reshape ? reshape->operands[0] : v, "broadcast_to");
  if (broadcast == nullptr) return nullptr;
  const Shape& to = broadcast->out().shape;
  Shape from(to.size() - broadcast->in(0).shape.size(), 1);
  from.insert(from.end(), broadcast->in(0).shape.begin(), broadcast->in(0).shape.end());
  // However the dims are grouped, elements keep their order: the blocks that are repeated begin
  // with the first dim that grows and hold what comes after the last.
  size_t first = to.size(), last = 0;
  for (size_t d = 0; d < to.size(); ++d) {
    if (from[d] == to[d]) continue;
    first = std::min(first, d);
    last = d + 1;
  }
  if (first >= last || NumElements({from.begin() + first, from.begin() + last}) != 1)
    return nullptr;
  const int64_t before = NumElements({to.begin(), to.begin() + first});
  const int64_t after = NumElements({to.begin() + last, to.end()});
  Shape shape = v->type.shape;
  if (after != NumElements({shape.begin() + heads + 1, shape.end()})) return nullptr;
  const int64_t lead = NumElements({shape.begin(), shape.begin() + heads});
  if (before == 0 || before % lead != 0) return nullptr;
  shape[heads] = before / lead;
  return b.Reshape(broadcast->operands[0], std::move(shape));
}

std::vector<Value*> WithFirst(const Op* op, Value* q, Value* k, Value* v) {
  std::vector<Value*> operands = op->operands;
  operands[0] = q, operands[1] = k, operands[2] = v;
  return operands;
}

// The statistics do not depend on the layout.
Value* WithItsStatistics(Builder& b, const Op* old, Op* op) {
  b.graph().ReplaceAllUses(old->results[1], op->results[1]);
  return op->result();
}

Value* UngroupHeads(Builder& b, Op* op) {
  if (op->name() != "attention") return nullptr;
  const int heads = HeadsDim(*op);
  Value* k = Ungrouped(b, op->operands[1], heads);
  Value* v = k ? Ungrouped(b, op->operands[2], heads) : nullptr;
  if (v == nullptr || k->type.shape[heads] != v->type.shape[heads]) return nullptr;
  return WithItsStatistics(b, op,
                           b.Create("attention", WithFirst(op, op->operands[0], k, v), op->attrs));
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
  const bool norm = IsNorm(op), rotary = op->name() == "rotary";
  if (!op->def->elementwise && !slice && !split && !concat && !norm && !rotary) return nullptr;
  if (op->results.size() != 1 && !split && !norm) return nullptr;
  auto swapped = [](const Value* v) { return BeforeSwap(v) != nullptr; };
  auto is_result = [](const Value* v) {
    const Value* x = BeforeSwap(v);
    return x && ProducedBy(x, "attention");
  };
  if (std::ranges::any_of(op->operands, is_result)) return nullptr;  // raised
  if (rotary && !swapped(op->operands[0])) return nullptr;
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
  if (norm && !OnlyFirstResultRead(*op)) return nullptr;
  Op* moved = b.Create(op->name(), std::move(operands), std::move(attrs));
  for (size_t i = 1; split && i < op->results.size(); ++i) {
    b.graph().ReplaceAllUses(op->results[i], b.Transpose(moved->results[i], kSwapHeads));
  }
  return b.Transpose(moved->result(), kSwapHeads);
}

// An elementwise function of an attention's result, before that is put back to [b, s, h, d]: the
// transpose moves above it.
Value* RaiseSwap(Builder& b, Op* op) {
  if (op->name() != "transpose" || !IsPerm(op, kSwapHeads)) return nullptr;
  Op* maker = op->operands[0]->producer;
  if (maker == nullptr || !maker->def->elementwise || CountUses(maker->result()) != 1)
    return nullptr;
  std::vector<Value*> operands;
  bool found = false;
  for (Value* v : maker->operands) {
    const bool attention = ProducedBy(v, "attention") && CountUses(v) == 1;
    const bool column = v->type.rank() == 4 && v->type.shape[3] == 1;
    operands.push_back(attention || column ? b.Transpose(v, kSwapHeads) : SwappedOperand(b, v));
    if (operands.back() == nullptr) return nullptr;
    found |= attention;
  }
  if (!found) return nullptr;
  b.BelongWith(*maker);
  return b.Make(maker->name(), std::move(operands), maker->attrs);
}

// Heads that were made from [b, s, h, d] by transposes, and are put back the same way.
Value* UseBshd(Builder& b, Op* op) {
  if (op->name() != "transpose" || !IsPerm(op, kSwapHeads)) return nullptr;
  Op* attention = ProducedBy(op->operands[0], "attention");
  if (attention == nullptr || op->operands[0] != attention->result() ||
      attention->attrs.String("layout") != "bhsd" || CountUses(attention->result()) != 1) {
    return nullptr;
  }
  Value* heads[3];
  for (int i = 0; i < 3; ++i) {
    heads[i] = BeforeSwap(attention->operands[i]);
    if (heads[i] == nullptr) return nullptr;
  }
  Attributes attrs = attention->attrs;
  attrs.Set("layout", std::string("bshd"));
  if (!OnlyFirstResultRead(*attention)) b.SetInsertionPoint(b.graph().Next(attention));
  b.BelongWith(*attention);
  return WithItsStatistics(
      b, attention,
      b.Create("attention", WithFirst(attention, heads[0], heads[1], heads[2]), attrs));
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
  bool changed = ApplyRules(graph, {UngroupHeads, RaiseSwap});
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
