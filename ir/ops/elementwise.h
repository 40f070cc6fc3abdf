// What the elementwise families share.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/op_def.h"
#include "ir/ops/reference_util.h"

namespace shardc {

void RegisterUnaryOps(OpRegistry& registry);    // neg ... not, cast
void RegisterBinaryOps(OpRegistry& registry);   // add ... mod
void RegisterCompareOps(OpRegistry& registry);  // equal ... xor, where
void RegisterBitwiseOps(OpRegistry& registry);
void RegisterFusedElementwiseOp(OpRegistry& registry);

// out[i] = fn(in...[i]) with numpy broadcasting; fn takes and returns Wide types. Integers and
// bools skip padding and write zero there, so that a checked operation never fails on it.
template <typename Out, typename... In, typename Fn>
void MapElements(const KernelCall& call, Fn fn) {
  constexpr size_t kInputs = sizeof...(In);
  const TensorView& out = call.out[0];
  std::array<Shape, kInputs + 1> strides;
  strides[0] = DenseStrides(out.shape);
  for (size_t i = 0; i < kInputs; ++i) {
    strides[i + 1] = BroadcastStrides(call.in[i].shape, out.shape);
  }
  std::vector<bool> valid;
  if constexpr (!(reference::kIsFloat<In> && ...)) {
    auto boxes = reference::ValidBoxes(call, out);
    if (boxes.size() != 1 || boxes[0].size != out.shape) {
      valid.assign(out.num_elements(), false);
      reference::ForEachValid(call, out, [&](int64_t at) { valid[at] = true; });
    }
  }
  auto apply = [&]<size_t... I>(const auto& at, std::index_sequence<I...>) {
    return fn(reference::Load<In>(call.in[I], at[I + 1])...);
  };
  reference::ForEach<kInputs + 1>(out.shape, strides, [&](const auto& at) {
    using Result = reference::Wide<Out>;
    bool padding = !valid.empty() && !valid[at[0]];
    reference::Store<Out>(
        out, at[0],
        padding ? Result() : static_cast<Result>(apply(at, std::make_index_sequence<kInputs>())));
  });
}

}  // namespace shardc
