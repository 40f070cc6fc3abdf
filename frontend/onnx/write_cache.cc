#include "frontend/onnx/write_cache.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "frontend/onnx/convert_util.h"

namespace shardc::onnx_import {
namespace {

void CheckShapes(NodeContext& c, const Value* cache, const Value* x, const Value* starts,
                 int axis) {
  const Shape &whole = cache->type.shape, &part = x->type.shape;
  const auto dim = static_cast<size_t>(axis);
  bool fits = axis > 0 && whole.size() == part.size() && part[dim] <= whole[dim];
  for (size_t d = 0; fits && d < whole.size(); ++d) fits = d == dim || whole[d] == part[d];
  if (!fits) {
    c.Fail("E1303", StrCat("what is written, ", ShapeToString(part), ", does not fit a cache of ",
                           ShapeToString(whole), " along dim ", axis));
  }
  if (cache->type.dtype != x->type.dtype) {
    c.Fail("E1303", "the cache and what is written into it have different types");
  }
  if (IsFloat(starts->type.dtype) || starts->type.num_elements() != whole[0]) {
    c.Fail("E1303", StrCat("where to write is not one place for each of ", whole[0], " sequences"));
  }
}

// Where all sequences begin, if that is one known place.
std::optional<int64_t> KnownStart(NodeContext& c, Value* starts, int64_t latest, bool circular) {
  const HostTensor* known = c.ConstantOf(starts);
  if (known == nullptr) return std::nullopt;
  bool same = true;
  for (int64_t b = 0; b < known->num_elements(); ++b) {
    const int64_t start = known->AsInt(b);
    same &= start == known->AsInt(0);
    if (circular || (start >= 0 && start <= latest)) continue;
    c.Fail("E1303", StrCat("sequence ", b, " is written from place ", start,
                           " on, and the last from which it fits is ", latest));
  }
  return same ? std::optional(known->AsInt(0)) : std::nullopt;
}

// With x from one place on, over the end and in front again.
Value* WriteAt(NodeContext& c, Value* cache, Value* x, int64_t start, int axis) {
  const int64_t n = cache->type.shape[axis];
  const int64_t s = x->type.shape[axis];
  const int64_t over = std::max<int64_t>(0, start + s - n);
  std::vector<Value*> pieces;
  auto add = [&](Value* v, int64_t from, int64_t to) {
    if (from < to) pieces.push_back(SliceDim(c, v, axis, from, to));
  };
  add(x, s - over, s);
  add(cache, over, start);
  add(x, 0, s - over);
  add(cache, start + s, n);
  return Joined(c, std::move(pieces), axis);
}

// For each place of each sequence what x holds at its offset, [batch, n, 1].
Value* AtOffsets(NodeContext& c, Value* x, Value* offsets, int axis) {
  // Behind the batch stand the dims that tuples index.
  Ints perm = Count(x->type.rank());
  perm.erase(perm.begin() + axis);
  perm.insert(perm.begin() + 1, axis);
  Ints back(perm.size());
  for (size_t d = 0; d < perm.size(); ++d) {
    back[perm[d]] = static_cast<int64_t>(d);
  }
  Value* rows =
      c.Make("gather_nd", {c.Transpose(x, std::move(perm)), offsets}, {{"batch_dims", int64_t{1}}});
  return c.Transpose(rows, std::move(back));
}

}  // namespace

Value* WriteCache(NodeContext& c, Value* cache, Value* x, Value* starts, int axis, bool circular) {
  CheckShapes(c, cache, x, starts, axis);
  if (x->type.num_elements() == 0) return cache;
  const auto dim = static_cast<size_t>(axis);
  const int64_t batch = cache->type.shape[0];
  const int64_t n = cache->type.shape[dim], s = x->type.shape[dim], latest = n - s;
  if (auto start = KnownStart(c, starts, latest, circular))
    return WriteAt(c, cache, x, ((*start % n) + n) % n, axis);
  starts = c.Reshape(c.Cast(starts, DType::kI64), {batch, 1});
  if (!circular && c.ConstantOf(starts) == nullptr) {
    // Of the places from which x fits: a lookup fails for others, and counts negative ones from the
    // end.
    Value* early = c.Make("less", {starts, Like(c, starts, 0)});
    starts = Where(c, early, Like(c, starts, static_cast<double>(n)), starts);
    starts = LookUp(c, Iota(c, latest + 1, 0, 1), starts);
  }
  Value* offsets = Sub(c, Iota(c, n, 1, 2), starts);
  if (circular) offsets = c.Make("mod", {offsets, Like(c, offsets, static_cast<double>(n))});
  Value* last = Like(c, offsets, static_cast<double>(s - 1));
  Value* written = c.Make("less_equal", {offsets, last});
  if (!circular) {
    Value* first = Like(c, offsets, 0);
    written = c.Make("and", {written, c.Make("greater_equal", {offsets, first})});
    offsets = c.Make("max", {offsets, first});
  }
  if (s > 1) x = AtOffsets(c, x, c.Reshape(c.Make("min", {offsets, last}), {batch, n, 1}), axis);
  Shape places(cache->type.shape.size(), 1);
  places[0] = batch;
  places[dim] = n;
  return Where(c, c.Reshape(written, std::move(places)), x, cache);
}

}  // namespace shardc::onnx_import
