#include "passes/narrow_reads.h"

#include <algorithm>

#include "ir/contains.h"
#include "ir/op_def.h"
#include "passes/precision.h"

namespace shardc {
namespace {

// Whether all that read it may be given a half instead.
bool AllReadNarrow(const Graph& graph, const Value& v) {
  if (graph.IsOutput(&v) || v.users.empty()) return false;
  return std::all_of(v.users.begin(), v.users.end(), [&](const Op* user) {
    for (size_t i = 0; i < user->operands.size(); ++i) {
      if (user->operands[i] == &v && !Contains(user->def->narrow_operands, static_cast<int>(i)))
        return false;
    }
    return true;
  });
}

bool OnlyReadBy(const Graph& graph, const Value& v, const Op& op) {
  return !graph.IsOutput(&v) &&
         std::all_of(v.users.begin(), v.users.end(), [&](const Op* user) { return user == &op; });
}

// Whether it is a product of halves, and of nothing that it would have to be added to.
bool IsProductOfHalves(const Value& v) {
  const Op& op = *v.producer;
  if (op.def->precision != Precision::kCompute || op.def->typed_result != v.index) return false;
  const bool adds = op.def->adds_to >= 0 && op.def->adds_to < static_cast<int>(op.operands.size());
  return !adds && IsHalf(op.in(0).dtype);
}

bool OnlyMoves(const Op& op) {
  const OpDef& def = *op.def;
  return def.precision == Precision::kFollow && !def.elementwise && !IsRandom(op) &&
         !def.communicates && !def.constrains && op.results.size() == 1;
}

// The half that an f32 value may be rounded to, or was before; else f32.
DType NarrowTypeOf(const Graph& graph, const Value& v) {
  const Op* op = v.producer;
  if (v.type.dtype != DType::kF32 || !op || op->operands.empty()) return DType::kF32;
  if (IsProductOfHalves(v)) return op->in(0).dtype;
  if (op->name() == "cast") return IsHalf(op->in(0).dtype) ? op->in(0).dtype : DType::kF32;
  if (!OnlyMoves(*op)) return DType::kF32;
  DType type = DType::kF32;
  for (const Value* u : op->operands) {
    if (!IsFloat(u->type.dtype)) continue;
    const bool cast = u->producer && u->producer->name() == "cast";
    if (!cast && !OnlyReadBy(graph, *u, *op)) return DType::kF32;
    const DType each = NarrowTypeOf(graph, *u);
    if (each == DType::kF32 || (type != DType::kF32 && each != type)) return DType::kF32;
    type = each;
  }
  return type;
}

// The value in the half that NarrowTypeOf names.
Value* Narrowed(Graph& graph, Value* v, DType type) {
  Op* op = v->producer;
  if (op->name() == "cast") return op->operands[0];
  const bool product = IsProductOfHalves(*v);
  for (size_t i = 0; i < op->operands.size(); ++i) {
    Value* u = op->operands[i];
    if (u->type.dtype == type || !IsFloat(u->type.dtype)) continue;
    if (product && Contains(op->def->full_operands, static_cast<int>(i))) continue;
    Value* narrow = product ? CastBefore(graph, u, type, *op, op) : Narrowed(graph, u, type);
    graph.SetOperand(op, static_cast<int>(i), narrow);
  }
  if (product) op->attrs.Set("out", std::string(DTypeName(type)));
  v->type.dtype = type;
  return v;
}

// The types of its results, which may follow those of its operands otherwise.
void KeepResultTypes(Op* op) {
  if (op->def->typed_result < 0 || op->attrs.Has("out")) return;
  const auto typed = static_cast<size_t>(op->def->typed_result);
  const DType kept = op->results[typed]->type.dtype;
  if (InferResults(*op->def, op->operands, op->attrs)[typed].dtype == kept) return;
  op->attrs.Set("out", std::string(DTypeName(kept)));
}

}  // namespace

void NarrowReads(Graph& graph) {
  for (auto it = graph.ops().begin(); it != graph.ops().end();) {
    Op* op = it->get();
    ++it;
    for (int i : op->def->narrow_operands) {
      Value* v = op->operands[i];
      if (!AllReadNarrow(graph, *v)) continue;
      const DType type = NarrowTypeOf(graph, *v);
      const std::vector<Op*> readers = v->users;
      if (type == DType::kF32 || std::any_of(readers.begin(), readers.end(), [&](const Op* reader) {
            return HasOtherHalf(*reader, type);
          })) {
        continue;
      }
      Value* narrow = Narrowed(graph, v, type);
      if (narrow != v) graph.ReplaceAllUses(v, narrow);
      for (Op* reader : readers) KeepResultTypes(reader);
    }
  }
  graph.EraseDead();
}

}  // namespace shardc
