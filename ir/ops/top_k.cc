// top_k: where the largest (or smallest) elements along an axis are.
#include "ir/ops/top_k.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ir/ops/infer_util.h"
#include "ir/ops/reference_util.h"

namespace shardc {
namespace {

using reference::kIsFloat;

std::vector<TensorType> Infer(const InferArgs& args) {
  const TensorType& x = args[0];
  RequireNumeric("top_k", x);
  const int axis = NormalizeAxis("top_k", args.attrs.Int("axis"), x.rank());
  const int64_t k = args.attrs.Int("k"), n = x.shape[axis];
  if (k < 0 || k > n) {
    InferError("top_k", StrCat("takes ", k, " of the ", n, " elements along dim ", axis,
                               " of a tensor of shape ", ShapeToString(x.shape)));
  }
  Shape shape = x.shape;
  shape[axis] = k;
  return {TensorType(DType::kI64, std::move(shape))};
}

ShardingRule Rule(const Op& op) {
  const auto axis =
      static_cast<size_t>(NormalizeAxis("top_k", op.attrs.Int("axis"), op.in(0).rank()));
  ShardingRule rule;
  std::vector<DimFactors> x = AddDims(rule, op.in(0).shape), y = x;
  for (int id : x[axis].factors) rule.factors[id].kind = FactorKind::kReplicated;
  y[axis].factors.clear();
  const int64_t k = op.out().shape[axis];
  if (k > 1) y[axis].factors = {rule.AddFactor(k, FactorKind::kReplicated)};
  rule.operands = {std::move(x)};
  rule.results = {std::move(y)};
  return rule;
}

// Whether a goes before b. NaN is larger than all others, as in PyTorch.
template <bool kLargest, typename W>
bool Before(W a, W b) {
  if constexpr (std::is_floating_point_v<W>) {
    if (std::isnan(a) || std::isnan(b))
      return std::isnan(kLargest ? a : b) && !std::isnan(kLargest ? b : a);
  }
  return kLargest ? a > b : a < b;
}

template <bool kLargest>
void Choose(const KernelCall& call) {
  const TensorView &x = call.in[0], &y = call.out[0];
  const auto axis = static_cast<size_t>(NormalizeAxis("top_k", call.attrs->Int("axis"), x.rank()));
  const int64_t n = x.shape[axis], k = y.shape[axis];
  const int64_t inner =
      NumElements(Shape(x.shape.begin() + static_cast<int64_t>(axis) + 1, x.shape.end()));
  const int64_t lines = k == 0 ? 0 : y.num_elements() / k;
  std::vector<int64_t> order(static_cast<size_t>(n));
  reference::DispatchNumeric(x.dtype, [&](auto t) {
    using T = decltype(t);
    for (int64_t line = 0; line < lines; ++line) {
      const int64_t outer = line / inner, at = line % inner;
      auto element = [&](int64_t i) { return reference::Load<T>(x, (outer * n + i) * inner + at); };
      std::iota(order.begin(), order.end(), int64_t{0});
      std::partial_sort(order.begin(), order.begin() + k, order.end(), [&](int64_t a, int64_t b) {
        const auto va = element(a), vb = element(b);
        if (Before<kLargest>(va, vb)) return true;
        return !Before<kLargest>(vb, va) && a < b;
      });
      for (int64_t i = 0; i < k; ++i) y.as<int64_t>()[(outer * k + i) * inner + at] = order[i];
    }
  });
}

}  // namespace

void AddTopK(OpRegistry& registry) {
  OpDef def;
  def.name = "top_k";
  def.attrs = {
      {"axis", AttrKind::kInt, true}, {"k", AttrKind::kInt, true}, {"largest", AttrKind::kBool}};
  def.infer = Infer;
  def.rule = Rule;
  def.no_gradient = "positions are integers; the elements there are gather_nd's";
  def.flops = [](const Op& op) { return op.in(0).num_elements(); };
  def.reference = [](const KernelCall& call) {
    call.attrs->Bool("largest", true) ? Choose<true>(call) : Choose<false>(call);
  };
  registry.Add(std::move(def));
}

}  // namespace shardc
