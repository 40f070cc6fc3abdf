// Parts of a tensor that exporters pick by constant positions: as slices, and slices that together
// are the whole as one split, whose pieces can be cut apart without communication.
#include <algorithm>
#include <map>

#include "frontend/recover/patterns.h"
#include "ir/op_def.h"

namespace shardc::recover {
namespace {

// The constant positions in [0, n), those from the end counted from the start; nothing when they
// are computed or one is out of range (the op then names it when it runs).
std::optional<Ints> Positions(const Value* indices, int64_t n) {
  const HostTensor* data = ConstantOf(indices);
  if (data == nullptr || !IsInteger(data->dtype())) return std::nullopt;
  Ints positions;
  for (int64_t i = 0; i < data->num_elements(); ++i) {
    int64_t at = data->AsInt(i);
    if (at < -n || at >= n) return std::nullopt;
    positions.push_back(at < 0 ? at + n : at);
  }
  return positions;
}

// gather(x, [a, a + s, a + 2 s, ...]) -> slice(x): its gradient needs no scatter, and what stays
// cut, as the batch of a mask whose elements are named one by one, needs no gathering.
Value* GatherToSlice(Builder& b, Op* op) {
  if (op->name() != "gather") return nullptr;
  Value* x = op->operands[0];
  if (op->in(1).rank() > 1 && IsParam(x)) return nullptr;  // a table of positions
  const int axis = AxisOf(op->attrs, x->type.rank());
  std::optional<Ints> at = Positions(op->operands[1], x->type.shape[axis]);
  if (!at || at->empty() || !TrainsRows(op, *at)) return nullptr;
  int64_t step = at->size() > 1 ? (*at)[1] - (*at)[0] : 1;
  for (size_t i = 1; i < at->size(); ++i) {
    if ((*at)[i] - (*at)[i - 1] != step) return nullptr;
  }
  if (step < 1) return nullptr;
  Value* part = b.Slice(x, axis, at->front(), at->back() + 1, step);
  return b.Reshape(part, op->out().shape);
}

// gather(x, [a, ..., a + n - 1, a + s, ..., a + s + n - 1, a + 2 s, ...]) -> the same part of each
// stretch of s: of a weight's heads, of which each has a part for keys and one for values.
Value* GatherToPieceOfEach(Builder& b, Op* op) {
  if (op->name() != "gather") return nullptr;
  Value* x = op->operands[0];
  const int axis = AxisOf(op->attrs, x->type.rank());
  const int64_t size = x->type.shape[axis];
  std::optional<Ints> at = Positions(op->operands[1], size);
  if (!at || at->size() < 4 || !TrainsRows(op, *at)) return nullptr;
  const auto count = std::ssize(*at);
  int64_t n = 1;
  while (n < count && (*at)[n] == (*at)[n - 1] + 1) ++n;
  if (n == count || count % n != 0) return nullptr;
  const int64_t stretch = (*at)[n] - (*at)[0];
  if (stretch <= n || size % stretch != 0) return nullptr;
  const int64_t first = (*at)[0] / stretch, start = (*at)[0] % stretch;
  if (start + n > stretch) return nullptr;
  for (int64_t i = 0; i < count; ++i) {
    if ((*at)[i] != (*at)[0] + i / n * stretch + i % n) return nullptr;
  }
  Shape apart = x->type.shape;
  apart[axis] = stretch;
  apart.insert(apart.begin() + axis, size / stretch);
  Value* part = b.Slice(b.Reshape(x, std::move(apart)), axis, first, first + count / n);
  return b.Reshape(b.Slice(part, axis + 1, start, start + n), op->out().shape);
}

// gather_nd -> gather, which more rules know: of rows by one index, or of rows of the flattened
// dims by constant indices.
Value* GatherNdToGather(Builder& b, Op* op) {
  if (op->name() != "gather_nd" || op->attrs.Int("batch_dims", 0) != 0) return nullptr;
  Value *x = op->operands[0], *indices = op->operands[1];
  if (indices->type.rank() == 0 || (!IsFloat(x->type.dtype) && !ConstantOf(indices)))
    return nullptr;
  const Shape &shape = x->type.shape, &index_shape = indices->type.shape;
  const int64_t depth = index_shape.back();
  Shape positions(index_shape.begin(), index_shape.end() - 1);
  if (depth < 1 || depth > x->type.rank()) return nullptr;
  if (depth > 1) {
    const HostTensor* data = ConstantOf(indices);
    if (data == nullptr || !IsInteger(data->dtype())) return nullptr;
    HostTensor rows(DType::kI64, positions);
    for (int64_t i = 0; i < rows.num_elements(); ++i) {
      int64_t row = 0;
      for (int64_t d = 0; d < depth; ++d) {
        int64_t at = data->AsInt(i * depth + d), n = shape[d];
        if (at < -n || at >= n) return nullptr;
        row = row * n + (at < 0 ? at + n : at);
      }
      rows.SetDouble(i, static_cast<double>(row));
    }
    Shape flat = {NumElements(Shape(shape.begin(), shape.begin() + depth))};
    flat.insert(flat.end(), shape.begin() + depth, shape.end());
    x = b.Reshape(x, std::move(flat));
    indices = b.Constant(std::move(rows));
  } else {
    indices = b.Reshape(indices, std::move(positions));
  }
  return b.Make("gather", {x, indices}, {{"axis", int64_t{0}}});
}

// transpose(slice(transpose(x))) -> transpose(slice(x)): slices of one tensor become siblings.
Value* SliceBeforeTranspose(Builder& b, Op* op) {
  if (op->name() != "transpose") return nullptr;
  Op* slice = ProducedBy(op->operands[0], "slice");
  Op* inner = slice ? ProducedBy(slice->operands[0], "transpose") : nullptr;
  if (inner == nullptr) return nullptr;
  const Ints& perm = inner->attrs.IntList("perm");
  Attributes attrs = slice->attrs;
  for (const char* name : {"starts", "limits", "steps"}) {
    Ints entries = slice->attrs.IntList(name), moved(entries.size());
    for (size_t i = 0; i < perm.size(); ++i) moved[perm[i]] = entries[i];
    attrs.Set(name, std::move(moved));
  }
  Value* part = b.Make("slice", {inner->operands[0]}, std::move(attrs));
  return b.Transpose(b.Transpose(part, perm), op->attrs.IntList("perm"));
}

// Every s-th element of a dim that s divides -> one of s pieces of a dim of its own: what lies
// between each other there (gates and their linear parts) can then be cut apart like neighbours.
Value* StridedToPiece(Builder& b, Op* op) {
  if (op->name() != "slice" || ConstantOf(op->operands[0]) != nullptr) return nullptr;
  const Ints &starts = op->attrs.IntList("starts"), &steps = op->attrs.IntList("steps");
  Value* x = op->operands[0];
  const Shape& shape = x->type.shape;
  int axis = -1;
  for (int d = 0; d < x->type.rank(); ++d) {
    if (steps[d] == 1 && shape[d] == op->out().shape[d]) continue;
    const bool all = steps[d] > 1 && shape[d] > steps[d] && shape[d] % steps[d] == 0 &&
                     starts[d] < steps[d] && op->out().shape[d] == shape[d] / steps[d];
    if (axis >= 0 || !all) return nullptr;
    axis = d;
  }
  if (axis < 0) return nullptr;
  Shape apart = shape;
  apart[axis] /= steps[axis];
  apart.insert(apart.begin() + axis + 1, steps[axis]);
  Value* rows = b.Reshape(x, std::move(apart));
  Value* piece = b.Slice(rows, axis + 1, starts[axis], starts[axis] + 1);
  return b.Reshape(piece, op->out().shape);
}

struct Piece {
  int axis = -1;
  int64_t start = 0, limit = 0;
};

// What a slice takes when it takes neighbours along one dim and all of the others.
std::optional<Piece> PieceOf(const Op* op) {
  if (op->name() != "slice") return std::nullopt;
  const Ints &starts = op->attrs.IntList("starts"), &limits = op->attrs.IntList("limits");
  const Ints& steps = op->attrs.IntList("steps");
  Piece piece;
  for (int d = 0; d < op->in(0).rank(); ++d) {
    if (steps[d] != 1) return std::nullopt;
    if (op->in(0).shape[d] == op->out().shape[d]) continue;
    if (piece.axis >= 0) return std::nullopt;
    piece = {d, starts[d], limits[d]};
  }
  return piece.axis >= 0 && piece.limit > piece.start ? std::optional(piece) : std::nullopt;
}

// Whether it is a product with a weight, or that and a bias.
bool IsOfLinear(const Op* op) {
  if (op->name() == "add" && IsParam(op->operands[1])) op = op->operands[0]->producer;
  return op != nullptr && IsProduct(op) && DependsOnParam(op->operands[1]);
}

// Slices that take a dim apart without gaps -> split. So do those of the features of a linear
// layer, and of a vector of parameters, with pieces that nothing reads in the gaps (what pads a
// vocabulary, k's bias): as segments they can be cut.
Value* SlicesToSplit(Builder& b, Op* op) {
  std::optional<Piece> own = PieceOf(op);
  if (!own) return nullptr;
  Value* x = op->operands[0];
  if (x->producer == nullptr || ConstantOf(x) != nullptr) return nullptr;
  std::map<int64_t, int64_t> limits;  // by start
  std::vector<Op*> slices;
  for (Op* user : x->users) {
    std::optional<Piece> piece = PieceOf(user);
    if (!piece || piece->axis != own->axis || !b.graph().HasUses(user->result())) continue;
    auto [it, is_new] = limits.try_emplace(piece->start, piece->limit);
    if (!is_new && it->second != piece->limit) return nullptr;
    slices.push_back(user);
  }
  const bool vector = x->type.rank() == 1 && IsParam(x);
  const bool features =
      vector || (IsLastAxis(own->axis, x->type.rank()) && IsOfLinear(x->producer));
  if (features) limits.try_emplace(x->type.shape[own->axis], x->type.shape[own->axis]);
  Ints sizes;
  int64_t end = 0;
  for (auto it = limits.begin(); it != limits.end(); ++it) {
    if (it->first > end && features) it = limits.emplace(end, it->first).first;
    if (it->first != end) return nullptr;
    if (it->second > end) sizes.push_back(it->second - end);
    end = it->second;
  }
  if (end != x->type.shape[own->axis] || sizes.size() < 2) return nullptr;
  Builder at(b.graph(), b.graph().Next(x->producer), *op);
  Op* split = at.Create("split", {x}, {{"axis", int64_t{own->axis}}, {"sizes", sizes}});
  Value* result = nullptr;
  for (Op* slice : slices) {
    size_t i = std::distance(limits.begin(), limits.find(PieceOf(slice)->start));
    Value* piece = split->results[i];
    if (slice == op) {
      result = piece;
    } else {
      b.graph().ReplaceAllUses(slice->result(), piece);
    }
  }
  return result;
}

// split(split(x)) along one dim -> one split, so that the segments of x are all pieces of it.
Value* JoinSplits(Builder& b, Op* op) {
  Op* outer = op->name() == "split" ? ProducedBy(op->operands[0], "split") : nullptr;
  if (outer == nullptr || outer->attrs.Int("axis") != op->attrs.Int("axis") ||
      CountUses(op->operands[0]) != 1) {
    return nullptr;
  }
  const size_t split_again =
      std::find(outer->results.begin(), outer->results.end(), op->operands[0]) -
      outer->results.begin();
  Ints sizes = outer->attrs.IntList("sizes");
  const Ints& inner = op->attrs.IntList("sizes");
  sizes.insert(sizes.erase(sizes.begin() + split_again), inner.begin(), inner.end());
  Builder at(b.graph(), b.graph().Next(outer), *outer);
  Op* joined = at.Create("split", {outer->operands[0]},
                         {{"axis", outer->attrs.Int("axis")}, {"sizes", sizes}});
  auto piece = joined->results.begin();
  for (size_t i = 0; i < outer->results.size(); ++i) {
    if (i != split_again) {
      b.graph().ReplaceAllUses(outer->results[i], *piece++);
      continue;
    }
    for (size_t j = 0; j < op->results.size(); ++j, ++piece) {
      if (j > 0) b.graph().ReplaceAllUses(op->results[j], *piece);
    }
  }
  return joined->results[split_again];
}

// The dim of what a reshape or transpose reads of which a dim of its result is the major part; -1
// when there is none.
int MajorPartOf(const Op* op, int dim) {
  const ShardingRule rule = op->def->rule(*op);
  const auto& factors = rule.results[0][dim].factors;
  if (factors.size() != 1) return -1;
  const int from = DimOfFactor(rule.operands[0], factors[0]);
  return from >= 0 && rule.operands[0][from].factors[0] == factors[0] ? from : -1;
}

// Whether the op puts what only it reads into other dims.
bool Reorders(const Op* op) {
  return op != nullptr && OneOf(op->name(), {"reshape", "transpose"}) &&
         CountUses(op->result()) == 1;
}

// Whether v is a piece of a split, but for its order, and its dim the major part of that along
// which it was split.
bool IsPieceAlong(const Value* v, int dim) {
  const Op* op = v->producer;
  if (op && op->name() == "split") {
    return CountUses(v) == 1 && AxisOf(op->attrs, v->type.rank()) == dim;
  }
  const int from = Reorders(op) ? MajorPartOf(op, dim) : -1;
  return from >= 0 && IsPieceAlong(op->operands[0], from);
}

// split(reshape(x)) or split(transpose(x)) of a piece x -> split(x), which is joined with what made
// x: [q | k | v | gate | up], of which [q | k | v] is split as [3, heads, head_dim].
Value* SplitBeforeReordering(Builder& b, Op* op) {
  if (op->name() != "split") return nullptr;
  Op* maker = op->operands[0]->producer;
  const int axis = AxisOf(op->attrs, op->in(0).rank());
  if (!Reorders(maker) || !IsPieceAlong(op->operands[0], axis)) return nullptr;
  const int from = MajorPartOf(maker, axis);
  Value* x = maker->operands[0];
  Ints sizes = op->attrs.IntList("sizes");
  for (int64_t& n : sizes) n *= x->type.shape[from] / op->in(0).shape[axis];
  Op* split = b.Create("split", {x}, {{"axis", int64_t{from}}, {"sizes", std::move(sizes)}});
  for (size_t i = split->results.size(); i-- > 0;) {
    Value* piece = split->results[i];
    piece = maker->name() == "reshape" ? b.Reshape(piece, op->results[i]->type.shape)
                                       : b.Transpose(piece, maker->attrs.IntList("perm"));
    if (i == 0) return piece;
    b.graph().ReplaceAllUses(op->results[i], piece);
  }
  return nullptr;
}

}  // namespace

bool SimplifyPieces(Graph& graph) {
  const bool pieces = ApplyRules(graph, {GatherNdToGather, GatherToSlice, GatherToPieceOfEach,
                                         SliceBeforeTranspose, StridedToPiece});
  return ApplyRules(graph, {SlicesToSplit, SplitBeforeReordering, JoinSplits}) || pieces;
}

}  // namespace shardc::recover
