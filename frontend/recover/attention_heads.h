// Which dims of an attention are those of the batch, of heads and of queries.
#pragma once

#include <optional>
#include <vector>

#include "frontend/recover/attention_mask.h"

namespace shardc::recover {

// The scores are [n, s, t], of one head, [b, h, s, t], or of grouped heads [b, g, h / g, s, t] or
// [b, g, s, h / g, t]; products may have some of these dims in one.
class HeadDims {
 public:
  // `scores` is the product of q and k, `values` that of probabilities of the shape `softmax` and
  // v; the steps stand between. Nothing where heads are not grouped so.
  static std::optional<HeadDims> Find(const Op* scores, const Op* values, const Shape& softmax,
                                      const std::vector<MaskStep>& steps);

  const Shape& scores() const { return dims_; }  // [b, h, s, t]
  bool queries_before_group() const { return queries_before_group_; }

  // What masks the scores, for [b, h, s, t]; null when it differs within a group and not between
  // groups, or the reverse, or between the examples of one head.
  Value* Mask(Builder& b, Value* v) const;
  Value* Queries(Builder& b, Value* q) const;  // [b, h, s, d]
  // k or v as [b, heads, t, d], of the last dims t and d or, if `turned`, d and t.
  Value* Keys(Builder& b, Value* k, bool turned) const;
  // A result [b, h, s, d], its queries where the model has them.
  Value* AsTheModel(Builder& b, Value* o) const;

 private:
  Shape softmax_;  // the queries behind the group
  bool queries_before_group_ = false;
  Shape dims_;
  int64_t heads_ = 0;  // of k and v
};

}  // namespace shardc::recover
