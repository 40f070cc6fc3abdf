#include "ir/attention_mask.h"

#include <algorithm>
#include <limits>

#include "ir/attention_part.h"
#include "ir/constant.h"
#include "ir/ops/draws.h"
#include "ir/ops/infer_util.h"

namespace shardc {

TopLimits TopLimitsOf(DType statistic) {
  const double half_digit = statistic == DType::kF64 ? std::numeric_limits<double>::epsilon() / 2
                                                     : std::numeric_limits<float>::epsilon() / 2;
  return {.rounds = 0x1p-10 / half_digit, .absorbs = 32 / half_digit};
}

Value* MaskOf(const Op& attention) {
  return attention.operands.size() - Drops(attention) > 3 ? attention.operands[3] : nullptr;
}

Value* AddedToScores(Builder& b, const Op& attention) {
  const int rows = attention.attrs.String("layout", "bhsd") == "bhsd" ? 2 : 1;
  const int64_t s = attention.in(0).shape[rows], t = attention.in(1).shape[rows];
  Value* mask = b.Cast(MaskOf(attention), StatisticType(attention.in(0).dtype));
  Shape shape(4 - mask->type.rank(), 1);
  shape.insert(shape.end(), mask->type.shape.begin(), mask->type.shape.end());
  mask = b.Reshape(mask, shape);
  shape[3] = t;
  mask = b.BroadcastTo(mask, shape);
  if (!attention.attrs.Bool("causal")) return mask;
  HostTensor sees(DType::kBool, {s, t});
  const int64_t diagonal = CausalDiagonal(attention.attrs, s, t);
  for (int64_t i = 0; i < s; ++i) {
    for (int64_t j = 0; j < t; ++j) sees.data<bool>()[i * t + j] = j <= i + diagonal;
  }
  Value* hidden = b.Scalar(mask->type.dtype, -std::numeric_limits<double>::infinity());
  return b.Make("where", {b.Constant(std::move(sees)), mask, hidden});
}

std::optional<std::vector<double>> KnownTops(const Op& attention) {
  const HostTensor* mask = ConstantOf(MaskOf(attention));
  if (mask == nullptr || mask->shape().empty() || attention.attrs.Bool("causal"))
    return std::nullopt;
  const int64_t columns = mask->shape().back();
  std::vector<double> tops;
  for (int64_t i = 0; i < mask->num_elements(); i += columns) {
    double top = -std::numeric_limits<double>::infinity();
    for (int64_t j = 0; j < columns; ++j) top = std::max(top, mask->AsDouble(i + j));
    tops.push_back(top);
  }
  return tops;
}

}  // namespace shardc
