#include "passes/live_bytes.h"

#include <algorithm>

#include "ir/op_def.h"

namespace shardc {

LiveBytes::LiveBytes(const Graph& graph) : graph_(graph) {
  for (const auto& input : graph.inputs()) input->id = -1;
  for (const auto& op : graph.ops()) {
    op->id = count_++;
    for (Value* r : op->results) r->id = -1;
  }
  const AddsInPassing adds(graph);
  for (const auto& op : graph.ops()) {
    for (size_t i = 0; i < op->results.size(); ++i) Place(*op, static_cast<int>(i), adds);
  }
}

void LiveBytes::Place(const Op& op, int index, const AddsInPassing& adds) {
  Value* r = op.results[index];
  int last = graph_.IsOutput(r) ? count_ - 1 : op.id;
  bool to_state = false;
  for (const Op* user : r->users) {
    last = std::max(last, user->id);
    to_state = to_state || user->def->side_effect;
  }
  if (op.def->is_state || op.operands.empty() || to_state) return;
  // A product that is added to x in passing is made in the memory of x.
  if (r->users.size() == 1) {
    const auto [f, x] = adds.Of(*r->users[0]);
    const int slot = f == &op ? SlotOf(x, adds) : -1;
    if (slot >= 0) return Share(r, slot, last);
  }
  for (size_t o = 0; o < op.operands.size(); ++o) {
    const Value* v = op.operands[o];
    if (v->id < 0) continue;
    const Slot& slot = slots_[v->id];
    bool view = IsView(op, graph_.mesh);
    bool ends = slot.last == op.id && MayRunInPlace(*op.def, static_cast<int>(o), index) &&
                LocalShape(v->type, graph_.mesh) == LocalShape(r->type, graph_.mesh) &&
                slot.bytes == LocalBytes(r->type, graph_.mesh);
    if (view || ends) return Share(r, v->id, last);
  }
  if (IsView(op, graph_.mesh)) return;
  r->id = static_cast<int>(slots_.size());
  slots_.push_back({r, LocalBytes(r->type, graph_.mesh), op.id, last});
}

// The slot of x. Where x is itself a sum that a product makes in passing, it may have none yet,
// as the sum comes after the product: then the slot of that product.
int LiveBytes::SlotOf(const Value* x, const AddsInPassing& adds) {
  if (x->id >= 0 || !x->producer) return x->id;
  const Op* f = adds.Of(*x->producer).f;
  return f ? f->result()->id : -1;
}

void LiveBytes::Share(Value* r, int slot, int last) {
  slots_[slot].last = std::max(slots_[slot].last, last);
  r->id = slot;
}

std::vector<int> MicrobatchesUnderWay(const Graph& graph) {
  std::vector<int> microbatches;
  int microbatch = -1;
  for (const auto& op : graph.ops()) {
    if (op->microbatch >= 0) microbatch = op->microbatch;
    if (op->phase == Phase::kOptimizer) microbatch = -1;
    microbatches.push_back(microbatch);
  }
  return microbatches;
}

}  // namespace shardc
