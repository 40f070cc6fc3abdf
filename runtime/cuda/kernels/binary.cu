// add sub mul div pow max min mod.
#include "runtime/cuda/kernels/elementwise.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

template <typename Fn>
KernelPtr Numeric(const KernelRequest& r) {
  return DispatchNumeric(r.call.out[0].dtype, [&](auto t) {
    return MakeElementwise<Fn, decltype(t), decltype(t), decltype(t)>(r);
  });
}

constexpr Binding kBindings[] = {
    {"add", Numeric<AddFn>}, {"sub", Numeric<SubFn>}, {"mul", Numeric<MulFn>},
    {"div", Numeric<DivFn>}, {"pow", Numeric<PowFn>}, {"max", Numeric<MaxFn>},
    {"min", Numeric<MinFn>}, {"mod", Numeric<ModFn>},
};

}  // namespace

std::span<const Binding> BinaryBindings() { return kBindings; }

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
