// equal ... greater_equal, and or xor, bitwise_and ..., where.
#include "runtime/cuda/kernels/elementwise.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

using Comparisons = OneOf<EqualFn, NotEqualFn, LessFn, LessEqualFn>;
using Logic = OneOf<AndFn, OrFn, NotEqualFn>;

KernelPtr Make(const KernelRequest& r, Comparisons fns) {
  return DispatchAny(r.call.in[0].dtype, [&](auto t) {
    return MakeElementwise<Bool, decltype(t), decltype(t)>(r, fns);
  });
}
template <typename Fn>
KernelPtr Any(const KernelRequest& r) {
  return Make(r, Comparisons::Of<Fn>());
}
// Fn of the operands in the other order.
template <typename Fn>
KernelPtr Swapped(const KernelRequest& r) {
  if (r.call.in.size() != 2) return nullptr;
  const TensorView in[] = {r.call.in[1], r.call.in[0]};
  KernelRequest swapped = r;
  swapped.call.in = in;
  return Any<Fn>(swapped);
}
template <typename Fn>
KernelPtr Logical(const KernelRequest& r) {
  return MakeElementwise<Bool, Bool, Bool>(r, Logic::Of<Fn>());
}

struct BitAndFn {
  template <typename W>
  __device__ W operator()(W a, W b) const {
    return a & b;
  }
};
struct BitOrFn {
  template <typename W>
  __device__ W operator()(W a, W b) const {
    return a | b;
  }
};
struct BitXorFn {
  template <typename W>
  __device__ W operator()(W a, W b) const {
    return a ^ b;
  }
};
template <typename Fn>
KernelPtr Bitwise(const KernelRequest& r) {
  const auto fns = OneOf<BitAndFn, BitOrFn, BitXorFn>::template Of<Fn>();
  if (r.call.out[0].dtype == DType::kI32) {
    return MakeElementwise<int32_t, int32_t, int32_t>(r, fns);
  }
  return MakeElementwise<int64_t, int64_t, int64_t>(r, fns);
}

struct SelectFn {
  template <typename W>
  __device__ W operator()(bool c, W a, W b) const {
    return c ? a : b;
  }
};
template <typename T>
KernelPtr Select(const KernelRequest& r) {
  return MakeElementwise<T, Bool, T, T>(r, OneOf<SelectFn>());
}
// It only moves: integers of the elements' size stand for every type.
KernelPtr Where(const KernelRequest& r) {
  switch (DTypeSize(r.call.out[0].dtype)) {
    case 1:
      return Select<Bool>(r);
    case 2:
      return Select<int16_t>(r);
    case 4:
      return Select<int32_t>(r);
    default:
      return Select<int64_t>(r);
  }
}

constexpr Binding kBindings[] = {
    {"equal", Any<EqualFn>},
    {"not_equal", Any<NotEqualFn>},
    {"less", Any<LessFn>},
    {"less_equal", Any<LessEqualFn>},
    {"greater", Swapped<LessFn>},
    {"greater_equal", Swapped<LessEqualFn>},
    {"and", Logical<AndFn>},
    {"or", Logical<OrFn>},
    {"xor", Logical<NotEqualFn>},
    {"where", Where},
    {"bitwise_and", Bitwise<BitAndFn>},
    {"bitwise_or", Bitwise<BitOrFn>},
    {"bitwise_xor", Bitwise<BitXorFn>},
};

}  // namespace

std::span<const Binding> CompareBindings() { return kBindings; }

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
