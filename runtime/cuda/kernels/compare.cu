// equal ... greater_equal, and or xor, where.
#include "runtime/cuda/kernels/elementwise.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

template <typename Fn>
KernelPtr Any(const KernelRequest& r) {
  return DispatchAny(r.call.in[0].dtype, [&](auto t) {
    return MakeElementwise<Fn, Bool, decltype(t), decltype(t)>(r);
  });
}
template <typename Fn>
KernelPtr Logical(const KernelRequest& r) {
  return MakeElementwise<Fn, Bool, Bool, Bool>(r);
}

struct SelectFn {
  template <typename W>
  __device__ W operator()(bool c, W a, W b) const {
    return c ? a : b;
  }
};
KernelPtr Where(const KernelRequest& r) {
  return DispatchAny(r.call.out[0].dtype, [&](auto t) {
    return MakeElementwise<SelectFn, decltype(t), Bool, decltype(t), decltype(t)>(r);
  });
}

constexpr Binding kBindings[] = {
    {"equal", Any<EqualFn>},      {"not_equal", Any<NotEqualFn>},
    {"less", Any<LessFn>},        {"less_equal", Any<LessEqualFn>},
    {"greater", Any<GreaterFn>},  {"greater_equal", Any<GreaterEqualFn>},
    {"and", Logical<AndFn>},      {"or", Logical<OrFn>},
    {"xor", Logical<NotEqualFn>}, {"where", Where},
};

}  // namespace

std::span<const Binding> CompareBindings() { return kBindings; }

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
