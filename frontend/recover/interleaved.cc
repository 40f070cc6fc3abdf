// Rows that several tensors give in turns, as x[..., 0::2] = a and then x[..., 1::2] = b write
// them: exporters put a's rows among those of what x begins as, and b's among the result's.
#include <algorithm>
#include <set>

#include "frontend/recover/patterns.h"
#include "ir/op_def.h"

namespace shardc::recover {
namespace {

constexpr int64_t kMostRows = 65536;
constexpr int kDeepest = 16;

struct Row {
  Value* of;
  int64_t at;
};

// Which rows of which tensors the rows of v along the dim are, whose gathers are at constant
// positions; empty where one is out of range.
std::vector<Row> RowsAlong(Value* v, int axis, int depth = kDeepest) {
  std::vector<Row> rows;
  const Op* op = v->producer;
  const bool along = op != nullptr && depth > 0 && OneOf(op->name(), {"gather", "concat"}) &&
                     AxisOf(op->attrs, op->in(0).rank()) == axis;
  if (along && op->name() == "concat") {
    for (Value* part : op->operands) {
      const std::vector<Row> more = RowsAlong(part, axis, depth - 1);
      if (more.empty()) return {};
      rows.insert(rows.end(), more.begin(), more.end());
    }
    return rows;
  }
  const HostTensor* positions = along ? ConstantOf(op->operands[1]) : nullptr;
  if (positions != nullptr && positions->shape().size() == 1) {
    const std::vector<Row> all = RowsAlong(op->operands[0], axis, depth - 1);
    const int64_t n = std::ssize(all);
    for (int64_t i = 0; i < positions->num_elements(); ++i) {
      const int64_t at = positions->AsInt(i);
      if (at < -n || at >= n) return {};
      rows.push_back(all[at < 0 ? at + n : at]);
    }
    return rows;
  }
  for (int64_t i = 0; i < v->type.shape[axis]; ++i) rows.push_back({v, i});
  return rows;
}

// The tensors whose rows these are in turns; empty where they are not.
std::vector<Value*> InTurns(const std::vector<Row>& rows) {
  std::vector<Value*> of;
  for (const Row& row : rows) {
    if (row.at != 0) break;
    of.push_back(row.of);
  }
  const size_t n = of.size();
  if (n < 2 || rows.size() == n || rows.size() % n != 0) return {};
  if (std::set<Value*>(of.begin(), of.end()).size() != n) return {};
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].of != of[i % n] || rows[i].at != static_cast<int64_t>(i / n)) return {};
  }
  const bool alike =
      std::ranges::all_of(of, [&](const Value* v) { return v->type.SameTensor(of[0]->type); });
  return alike && of[0]->type.rank() > 0 ? of : std::vector<Value*>();
}

Value* Interleave(Builder& b, std::vector<Value*> of, int axis) {
  Shape apart = of[0]->type.shape, together = apart;
  apart.insert(apart.begin() + axis + 1, 1);
  together[axis] *= std::ssize(of);
  for (Value*& v : of) v = b.Reshape(v, apart);
  Value* turns = b.Make("concat", std::move(of), {{"axis", int64_t{axis} + 1}});
  return b.Reshape(turns, std::move(together));
}

// Also before transposes that put the dim in front, for the assignment.
Value* GatherToInterleaved(Builder& b, Op* op) {
  if (op->name() != "gather" || !TrainsAllRows(op) || op->out().rank() != op->in(0).rank())
    return nullptr;
  const int axis = AxisOf(op->attrs, op->in(0).rank());
  if (op->out().shape[axis] > kMostRows || ProducedBy(op->operands[0], "concat") == nullptr)
    return nullptr;
  std::vector<Value*> of = InTurns(RowsAlong(op->result(), axis));
  if (of.empty() || of[0]->type.shape[axis] * std::ssize(of) != op->out().shape[axis])
    return nullptr;
  const Op* first = ProducedBy(of[0], "transpose");
  const Ints perm = first ? first->attrs.IntList("perm") : Ints();
  const bool moved = first && std::ranges::all_of(of, [&](const Value* v) {
                       const Op* transpose = ProducedBy(v, "transpose");
                       return transpose && transpose->attrs.IntList("perm") == perm;
                     });
  if (!moved) return Interleave(b, std::move(of), axis);
  for (Value*& v : of) v = v->producer->operands[0];
  return b.Transpose(Interleave(b, std::move(of), static_cast<int>(perm[axis])), perm);
}

}  // namespace

bool SimplifyInterleaved(Graph& graph) { return ApplyRules(graph, {GatherToInterleaved}); }

}  // namespace shardc::recover
