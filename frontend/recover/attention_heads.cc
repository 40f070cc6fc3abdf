#include "frontend/recover/attention_heads.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace shardc::recover {
namespace {

// The dims of an attention: of the softmax's [b, h, s, t], [n, s, t] as [n, 1, s, t], or of grouped
// heads [b, g, h / g, s, t].
Shape DimsOf(const Shape& softmax) {
  const Shape& s = softmax;
  if (s.size() == 3) return {s[0], 1, s[1], s[2]};
  if (s.size() == 5) return {s[0], s[1] * s[2], s[3], s[4]};
  return s;
}

// How many heads `each` has when the matmul multiplies the rows [b, h, s] with it: every head of it
// is for h / heads neighbours of them, or s rows. 0: they are not grouped so.
int64_t HeadsOf(const Op* matmul, const Shape& dims) {
  const Shape &rows = matmul->in(0).shape, &each = matmul->in(1).shape;
  if (rows.size() != each.size()) return 0;
  int64_t groups = 1;
  size_t d = 0;
  for (; d + 2 < each.size() && each[d] == rows[d]; ++d) groups *= each[d];
  for (; d + 2 < each.size(); ++d) {
    if (each[d] != 1) return 0;
  }
  const int64_t b = dims[0], h = dims[1], s = dims[2];
  if (b * h * s != NumElements(Shape(rows.begin(), rows.end() - 1)) || groups % b != 0) return 0;
  const int64_t heads = groups / b;
  return h % heads == 0 ? heads : 0;
}

// What masks scores [b, g, h / g, s, t], for [b, h, s, t]; null when it differs within a group and
// not between groups, or the reverse.
Value* WithGroupsMerged(Builder& b, Value* v, const Shape& softmax) {
  const Shape& shape = v->type.shape;
  const size_t rank = shape.size();
  if (rank < 3) return v;
  const int64_t within = shape[rank - 3], groups = rank >= 4 ? shape[rank - 4] : 1;
  const bool all = within == softmax[2] && groups == softmax[1];
  if (!all && (within != 1 || groups != 1)) return nullptr;
  Shape merged(shape.begin(), shape.end() - std::min<size_t>(rank, 4));
  merged.insert(merged.end(), {groups * within, shape[rank - 2], shape[rank - 1]});
  return b.Reshape(v, std::move(merged));
}

// Whether the dims of a softmax are [b, g, s, h / g, t], as of einsum("btkgh,bskh->btkgs"): a mask
// differs between queries, and not within a group. Without one, where q's dims are [b, s, g, h / g,
// d] before a transpose. Where keys differ along the third dim, as between rows of an axial
// attention, it is none of queries.
bool QueriesBeforeGroup(const Op* scores, const std::vector<MaskStep>& steps,
                        const Shape& softmax) {
  if (HeadsOf(scores, DimsOf(softmax)) > softmax[1]) return false;
  bool masked = false;
  for (const MaskStep& step : steps) {
    if (step.value == nullptr || step.value->type.rank() < 3) continue;
    const Shape& shape = step.value->type.shape;
    const int64_t third = shape[shape.size() - 3], second = shape[shape.size() - 2];
    if (third != 1 && second == 1) return softmax[2] != 1;
    masked |= third != 1 || second != 1;
  }
  if (masked) return false;
  const Value* q = scores->operands[0];
  while (ScaledBy(q) || ProducedBy(q, "reshape")) {
    q = ScaledBy(q) ? ScaledBy(q)->first : q->producer->operands[0];
  }
  return IsPerm(ProducedBy(q, "transpose"), {0, 2, 1, 3, 4}) && q->type.shape[1] == softmax[1] &&
         q->type.shape[2] == softmax[2];
}

// [.., s, h / g, t] -> [.., h / g, s, t], or the reverse.
Value* WithQueriesAfterGroup(Builder& b, Value* v) {
  const int64_t rank = v->type.rank();
  if (rank < 2) return v;
  if (rank == 2) v = b.Reshape(v, {1, v->type.shape[0], v->type.shape[1]});
  Ints perm(v->type.rank());
  std::iota(perm.begin(), perm.end(), 0);
  std::swap(perm[perm.size() - 2], perm[perm.size() - 3]);
  return b.Transpose(v, std::move(perm));
}

}  // namespace

std::optional<HeadDims> HeadDims::Find(const Op* scores, const Op* values, const Shape& softmax,
                                       const std::vector<MaskStep>& steps) {
  if (softmax.size() < 3 || softmax.size() > 5) return std::nullopt;
  HeadDims found;
  found.softmax_ = softmax;
  found.queries_before_group_ = softmax.size() == 5 && QueriesBeforeGroup(scores, steps, softmax);
  if (found.queries_before_group_) std::swap(found.softmax_[2], found.softmax_[3]);
  found.dims_ = DimsOf(found.softmax_);
  found.heads_ = HeadsOf(scores, found.dims_);
  if (found.heads_ == 0 || HeadsOf(values, found.dims_) != found.heads_) return std::nullopt;
  return found;
}

Value* HeadDims::Mask(Builder& b, Value* v) const {
  if (softmax_.size() == 3) {
    return v->type.rank() == 3 && v->type.shape[0] != 1 ? nullptr : v;
  }
  if (queries_before_group_) v = WithQueriesAfterGroup(b, v);
  return softmax_.size() == 5 ? WithGroupsMerged(b, v, softmax_) : v;
}

Value* HeadDims::Queries(Builder& b, Value* q) const {
  const int64_t depth = q->type.shape.back();
  if (queries_before_group_) {
    q = b.Reshape(q, {softmax_[0], softmax_[1], softmax_[3], softmax_[2], depth});
    q = WithQueriesAfterGroup(b, q);
  }
  return b.Reshape(q, {dims_[0], dims_[1], dims_[2], depth});
}

Value* HeadDims::Keys(Builder& b, Value* k, bool turned) const {
  const Shape& shape = k->type.shape;
  k = b.Reshape(k, {dims_[0], heads_, shape[shape.size() - 2], shape.back()});
  return turned ? b.Transpose(k, {0, 1, 3, 2}) : k;
}

Value* HeadDims::AsTheModel(Builder& b, Value* o) const {
  if (!queries_before_group_) return o;
  const Shape& s = softmax_;
  return WithQueriesAfterGroup(b, b.Reshape(o, {s[0], s[1], s[2], s[3], o->type.shape.back()}));
}

}  // namespace shardc::recover
