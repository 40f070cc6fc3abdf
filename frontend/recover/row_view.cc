#include "frontend/recover/row_view.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "frontend/recover/match.h"
#include "ir/op_def.h"
#include "ir/row_major.h"

namespace shardc::recover {
namespace {

int64_t Flatten(const Ints& index, const Shape& dims) {
  int64_t at = 0;
  for (size_t d = 0; d < dims.size(); ++d) at = at * dims[d] + index[d];
  return at;
}

// The view of `operand` whose rows have dims `to`, each index being fn of the one in view.
template <typename Fn>
RowView Mapped(const RowView& view, Value* operand, int trailing, Fn fn) {
  RowView out{operand, trailing, {}};
  const Shape from = view.Row(), to = out.Row();
  for (int64_t at : view.at) out.at.push_back(Flatten(fn(PlaceOf(at, from)), to));
  return out;
}

bool HasLead(const Value* v, const Shape& lead) {
  const Shape& shape = v->type.shape;
  return shape.size() >= lead.size() && std::equal(lead.begin(), lead.end(), shape.begin());
}

std::optional<RowView> MovedBySlice(const RowView& view, const Op& op) {
  const Ints &starts = op.attrs.IntList("starts"), &steps = op.attrs.IntList("steps");
  const size_t lead = view.Lead().size();
  if (!HasLead(op.operands[0], view.Lead())) return std::nullopt;
  for (size_t d = 0; d < lead; ++d) {
    if (starts[d] != 0 || steps[d] != 1) return std::nullopt;
  }
  return Mapped(view, op.operands[0], view.trailing, [&](Ints index) {
    for (size_t d = 0; d < index.size(); ++d) {
      index[d] = starts[lead + d] + index[d] * steps[lead + d];
    }
    return index;
  });
}

// The dim of the row that is the op's axis; -1 where that is one of the lead.
int RowAxis(const RowView& view, const Op& op) {
  const int rank = view.v->type.rank();
  return std::max(-1, AxisOf(op.attrs, rank) - (rank - view.trailing));
}

std::optional<RowView> MovedBySplit(const RowView& view, const Op& op) {
  const int axis = RowAxis(view, op);
  if (axis < 0) return std::nullopt;
  const Ints& sizes = op.attrs.IntList("sizes");
  const int64_t begin = std::accumulate(sizes.begin(), sizes.begin() + view.v->index, int64_t{0});
  return Mapped(view, op.operands[0], view.trailing, [&](Ints index) {
    index[axis] += begin;
    return index;
  });
}

std::pair<RowView, RowView> CutAt(const RowView& view, size_t count) {
  const auto middle = view.at.begin() + static_cast<int64_t>(count);
  return {{view.v, view.trailing, {view.at.begin(), middle}},
          {view.v, view.trailing, {middle, view.at.end()}}};
}

// The operand of a concat along a dim of the row that the first places are of, where it begins, and
// how many places it is before one is of another.
struct Run {
  Value* operand;
  size_t dim;
  int64_t begin;
  size_t count;
};
std::optional<Run> FirstRun(const RowView& view) {
  const Op* op = ProducedBy(view.v, "concat");
  const int axis = op ? RowAxis(view, *op) : -1;
  if (axis < 0) return std::nullopt;
  const auto dim = static_cast<size_t>(axis);
  const Shape row = view.Row();
  int64_t begin = 0;
  for (Value* operand : op->operands) {
    const int64_t end = begin + *(operand->type.shape.end() - view.trailing + axis);
    const auto other = std::find_if(view.at.begin(), view.at.end(), [&](int64_t at) {
      const int64_t i = PlaceOf(at, row)[dim];
      return i < begin || end <= i;
    });
    const auto count = static_cast<size_t>(other - view.at.begin());
    if (count > 0) return Run{operand, dim, begin, count};
    begin = end;
  }
  return std::nullopt;
}

std::optional<RowView> MovedByConcat(const RowView& view) {
  const std::optional<Run> run = FirstRun(view);
  if (!run || run->count < view.at.size()) return std::nullopt;
  return Mapped(view, run->operand, view.trailing, [&](Ints index) {
    index[run->dim] -= run->begin;
    return index;
  });
}

// Its first places that one operand of a concat holds, and the others; nothing where one holds all.
std::optional<std::pair<RowView, RowView>> Cut(const RowView& view) {
  const std::optional<Run> run = FirstRun(view);
  if (!run || run->count == view.at.size()) return std::nullopt;
  return CutAt(view, run->count);
}

std::optional<RowView> MovedByTranspose(const RowView& view, const Op& op) {
  const Ints& perm = op.attrs.IntList("perm");
  const size_t lead = view.Lead().size();
  for (size_t d = 0; d < lead; ++d) {
    if (perm[d] != static_cast<int64_t>(d)) return std::nullopt;
  }
  return Mapped(view, op.operands[0], view.trailing, [&](const Ints& index) {
    Ints out(index.size());
    for (size_t d = 0; d < index.size(); ++d)
      out[static_cast<size_t>(perm[lead + d]) - lead] = index[d];
    return out;
  });
}

std::optional<RowView> MovedByReshape(const RowView& view, const Op& op) {
  Value* x = op.operands[0];
  const Shape lead = view.Lead();
  if (!HasLead(x, lead)) return std::nullopt;
  RowView out{x, x->type.rank() - static_cast<int>(lead.size()), view.at};
  return out.size() == view.size() ? std::optional(out) : std::nullopt;
}

bool Widens(const Op& op) {
  if (op.name() != "cast") return false;
  const DType from = op.in(0).dtype, to = op.out().dtype;
  return IsFloat(from) && IsFloat(to) && DTypeSize(from) < DTypeSize(to);
}

// Operands of the op with the places that go with those of its result, where each element of a row
// is made like all others of it; nothing where that is not so.
std::optional<std::vector<RowView>> MadeOf(const RowView& view) {
  const Op* op = view.v->producer;
  if (op == nullptr || op->results.size() != 1) return std::nullopt;
  if (op->def->elementwise) {
    std::vector<RowView> operands;
    for (Value* operand : op->operands) operands.push_back(OperandOf(view, operand));
    return operands;
  }
  if (op->operands.empty()) return std::nullopt;
  Value* x = op->operands[0];
  // Rows are put elsewhere, or repeated.
  if (op->name() == "reshape") {
    const auto out = BeforeReshape(view);
    return out ? std::optional(std::vector{*out}) : std::nullopt;
  }
  if (x->type.rank() < view.trailing) return std::nullopt;
  RowView same{x, view.trailing, view.at};
  if (op->name() == "broadcast_to") return std::vector{OperandOf(view, x)};
  if (same.Row() != view.Row()) return std::nullopt;
  // Of the rows some.
  if (op->name() == "slice") {
    const Ints& steps = op->attrs.IntList("steps");
    const bool whole =
        std::all_of(steps.end() - view.trailing, steps.end(), [](int64_t n) { return n == 1; });
    return whole ? std::optional(std::vector{same}) : std::nullopt;
  }
  if (op->name() == "transpose") {
    const Ints& perm = op->attrs.IntList("perm");
    for (size_t d = view.Lead().size(); d < perm.size(); ++d) {
      if (perm[d] != static_cast<int64_t>(d)) return std::nullopt;
    }
    return std::vector{same};
  }
  if (op->name() == "gather") {
    if (AxisOf(op->attrs, x->type.rank()) >= x->type.rank() - view.trailing) return std::nullopt;
    Value* indices = op->operands[1];
    return std::vector{same, RowView{indices, 0, {0}}};
  }
  return std::nullopt;
}

bool SameConstants(const RowView& a, const RowView& b) {
  const HostTensor *x = ConstantOf(a.v), *y = ConstantOf(b.v);
  if (!x || !y || x->dtype() != y->dtype() || a.Lead() != b.Lead()) return false;
  const int64_t bytes = DTypeSize(x->dtype());
  for (int64_t row = 0, rows = NumElements(a.Lead()); row < rows; ++row) {
    for (size_t i = 0; i < a.at.size(); ++i) {
      const int64_t p = row * a.size() + a.at[i], q = row * b.size() + b.at[i];
      if (std::memcmp(x->raw() + p * bytes, y->raw() + q * bytes, bytes) != 0) return false;
    }
  }
  return true;
}

constexpr int kSteps = 24;

RowView Origin(RowView view) {
  for (int i = 0; i < kSteps; ++i) {
    std::optional<RowView> moved = Moved(view);
    if (!moved) break;
    view = std::move(*moved);
  }
  return view;
}

bool Same(RowView a, RowView b, int& budget) {
  if (--budget < 0 || a.at.size() != b.at.size()) return false;
  a = Origin(std::move(a));
  b = Origin(std::move(b));
  if (a.v == b.v && a.trailing == b.trailing && a.at == b.at) return true;
  if (ConstantOf(a.v) || ConstantOf(b.v)) return SameConstants(a, b);
  for (const RowView& of : {a, b}) {
    const auto parts = Cut(of);
    if (!parts) continue;
    const size_t n = parts->first.at.size();
    const auto [a1, a2] = CutAt(a, n);
    const auto [b1, b2] = CutAt(b, n);
    return Same(a1, b1, budget) && Same(a2, b2, budget);
  }
  const Op *p = a.v->producer, *q = b.v->producer;
  if (p == nullptr || q == nullptr || p->def != q->def || p->attrs != q->attrs ||
      a.v->type != b.v->type || p->operands.size() != q->operands.size()) {
    return false;
  }
  const auto of_a = MadeOf(a), of_b = MadeOf(b);
  if (!of_a || !of_b) return false;
  for (size_t i = 0; i < of_a->size(); ++i) {
    if ((*of_a)[i].v->type != (*of_b)[i].v->type || !Same((*of_a)[i], (*of_b)[i], budget))
      return false;
  }
  return true;
}

HostTensor Picked(const HostTensor& data, const RowView& view) {
  Shape shape = view.Lead();
  const int64_t rows = NumElements(shape), bytes = DTypeSize(data.dtype());
  shape.push_back(static_cast<int64_t>(view.at.size()));
  HostTensor out(data.dtype(), std::move(shape));
  std::byte* to = out.raw();
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t at : view.at) {
      std::memcpy(to, data.raw() + (row * view.size() + at) * bytes, bytes);
      to += bytes;
    }
  }
  return out;
}

Value* Sliced(Builder& b, const RowView& view) {
  const auto n = static_cast<int64_t>(view.at.size());
  const int64_t step = n > 1 ? view.at[1] - view.at[0] : 1;
  for (size_t i = 1; i < view.at.size(); ++i) {
    if (view.at[i] - view.at[i - 1] != step) return nullptr;
  }
  if (n == 0 || step < 1) return nullptr;
  Shape shape = view.Lead();
  shape.push_back(view.size());
  const int last = static_cast<int>(shape.size()) - 1;
  return b.Slice(b.Reshape(view.v, std::move(shape)), last, view.at.front(), view.at.back() + 1,
                 step);
}

Value* TakeWithin(Builder& b, RowView view, int depth) {
  // Of a row of one element all are the same: it broadcasts.
  if (view.size() == 1) {
    Shape shape = view.Lead();
    shape.push_back(1);
    return b.Reshape(view.v, std::move(shape));
  }
  const DType dtype = view.v->type.dtype;
  view = Origin(std::move(view));
  if (const HostTensor* data = ConstantOf(view.v))
    return b.Cast(b.Constant(Picked(*data, view)), dtype);
  const Op* op = view.v->producer;
  if (depth > 0 && Cut(view)) {
    std::vector<Value*> parts;
    for (std::optional<RowView> rest = view; rest;) {
      // Operands in turns would be very many parts.
      if (parts.size() == op->operands.size()) return nullptr;
      const auto cut = Cut(*rest);
      const RowView& part = cut ? cut->first : *rest;
      parts.push_back(TakeWithin(b, part, depth - 1));
      if (!parts.back() || parts.back()->type.shape.back() != std::ssize(part.at)) return nullptr;
      rest = cut ? std::optional(cut->second) : std::nullopt;
    }
    const int64_t axis = std::ssize(view.Lead());
    return b.Cast(b.Make("concat", std::move(parts), {{"axis", axis}}), dtype);
  }
  if (depth > 0 && op != nullptr && op->def->elementwise && op->results.size() == 1) {
    std::vector<Value*> operands;
    for (Value* operand : op->operands) {
      operands.push_back(TakeWithin(b, OperandOf(view, operand), depth - 1));
      if (operands.back() == nullptr) return nullptr;
    }
    return b.Cast(b.Make(op->name(), std::move(operands), op->attrs), dtype);
  }
  // What repeats rows, or gives them dims of 1.
  if (depth > 0 && op != nullptr && OneOf(op->name(), {"broadcast_to", "reshape"})) {
    const auto rows = MadeOf(view);
    Shape shape = view.Lead();
    shape.push_back(static_cast<int64_t>(view.at.size()));
    Value* part = rows ? TakeWithin(b, rows->front(), depth - 1) : nullptr;
    if (part == nullptr) return nullptr;
    if (part->type.shape.back() != shape.back()) return nullptr;
    part = op->name() == "reshape" ? b.Reshape(part, shape) : b.BroadcastTo(part, shape);
    return b.Cast(part, dtype);
  }
  Value* part = Sliced(b, view);
  return part ? b.Cast(part, dtype) : nullptr;
}

}  // namespace

std::optional<RowView> Moved(const RowView& view) {
  const Op* op = view.v->producer;
  if (op == nullptr) return std::nullopt;
  if (op->name() == "slice") return MovedBySlice(view, *op);
  if (op->name() == "split") return MovedBySplit(view, *op);
  if (op->name() == "concat") return MovedByConcat(view);
  if (op->name() == "transpose") return MovedByTranspose(view, *op);
  if (op->name() == "reshape") return MovedByReshape(view, *op);
  if (Widens(*op)) return RowView{op->operands[0], view.trailing, view.at};
  if (op->name() == "broadcast_to") {
    RowView out = OperandOf(view, op->operands[0]);
    if (out.Lead() == view.Lead()) return out;
  }
  return std::nullopt;
}

std::optional<RowView> BeforeReshape(const RowView& view) {
  const Op* reshape = ProducedBy(view.v, "reshape");
  if (reshape == nullptr) return std::nullopt;
  const int rank = reshape->in(0).rank();
  RowView out{reshape->operands[0], std::min(rank, 1), view.at};
  while (out.trailing < rank && out.size() < view.size()) ++out.trailing;
  if (view.size() == 1 && out.size() != 1) out.trailing = 0;
  return out.size() == view.size() ? std::optional(out) : std::nullopt;
}

RowView OperandOf(const RowView& result, Value* operand) {
  const int trailing = std::min(result.trailing, operand->type.rank());
  const auto skipped = static_cast<size_t>(result.trailing - trailing);
  const Shape row(operand->type.shape.end() - trailing, operand->type.shape.end());
  return Mapped(result, operand, trailing, [&](const Ints& index) {
    Ints out(index.begin() + static_cast<int64_t>(skipped), index.end());
    for (size_t d = 0; d < out.size(); ++d) out[d] = row[d] == 1 ? 0 : out[d];
    return out;
  });
}

bool SameElements(const RowView& a, const RowView& b) {
  int budget = 200;
  return Same(a, b, budget);
}

Value* Take(Builder& b, const RowView& view) {
  Ints places = view.at;
  std::sort(places.begin(), places.end());
  if (std::adjacent_find(places.begin(), places.end()) != places.end()) return nullptr;
  Value* part = TakeWithin(b, view, kSteps);
  const bool whole = part && part->type.shape.back() == static_cast<int64_t>(view.at.size());
  return whole ? part : nullptr;
}

}  // namespace shardc::recover
