// add sub mul div pow max min mod.
#include "runtime/cuda/kernels/elementwise.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

using Fns = OneOf<AddFn, SubFn, MulFn, DivFn, PowFn, MaxFn, MinFn, ModFn>;

KernelPtr Make(const KernelRequest& r, Fns fns) {
  return DispatchNumeric(r.call.out[0].dtype, [&](auto t) {
    return MakeElementwise<decltype(t), decltype(t), decltype(t)>(r, fns);
  });
}
template <typename Fn>
KernelPtr Numeric(const KernelRequest& r) {
  return Make(r, Fns::Of<Fn>());
}

constexpr Binding kBindings[] = {
    {"add", Numeric<AddFn>}, {"sub", Numeric<SubFn>}, {"mul", Numeric<MulFn>},
    {"div", Numeric<DivFn>}, {"pow", Numeric<PowFn>}, {"max", Numeric<MaxFn>},
    {"min", Numeric<MinFn>}, {"mod", Numeric<ModFn>},
};

}  // namespace

std::span<const Binding> BinaryBindings() { return kBindings; }

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
