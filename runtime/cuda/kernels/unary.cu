// Ops of one operand, and the gradients of activations.
#include "runtime/cuda/kernels/elementwise.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

using Signs = OneOf<NegFn, AbsFn, SignFn>;
// Those of large activations first: the others are found after comparing with these.
using Floats =
    OneOf<GeluTanhFn, SiluFn, GeluErfFn, ReluFn, TanhFn, SigmoidFn, ExpFn, LogFn, Log1pFn, SqrtFn,
          RsqrtFn, ReciprocalFn, FloorFn, CeilFn, RoundFn, SinFn, CosFn, ErfFn>;
// Seldom ones.
#define SHARDC_FUNCTION(Name, function) \
  struct Name {                         \
    template <typename W>               \
    SHARDC_HD W operator()(W x) const { \
      return ::function(x);             \
    }                                   \
  };
SHARDC_FUNCTION(AsinFn, asin)
SHARDC_FUNCTION(AcosFn, acos)
SHARDC_FUNCTION(AtanFn, atan)
SHARDC_FUNCTION(SinhFn, sinh)
SHARDC_FUNCTION(CoshFn, cosh)
SHARDC_FUNCTION(AsinhFn, asinh)
SHARDC_FUNCTION(AcoshFn, acosh)
SHARDC_FUNCTION(AtanhFn, atanh)
#undef SHARDC_FUNCTION
using Others = OneOf<AsinFn, AcosFn, AtanFn, SinhFn, CoshFn, AsinhFn, AcoshFn, AtanhFn>;
using Predicates = OneOf<IsNanFn, IsInfFn>;
using Gradients =
    OneOf<GeluTanhGradFn, SiluGradFn, GeluErfGradFn, ReluGradFn, TanhGradFn, SigmoidGradFn>;

KernelPtr Make(const KernelRequest& r, Floats fns) {
  return DispatchFloat(r.call.out[0].dtype,
                       [&](auto t) { return MakeElementwise<decltype(t), decltype(t)>(r, fns); });
}
KernelPtr Make(const KernelRequest& r, Others fns) {
  return DispatchFloat(r.call.out[0].dtype,
                       [&](auto t) { return MakeElementwise<decltype(t), decltype(t)>(r, fns); });
}
KernelPtr Make(const KernelRequest& r, Signs fns) {
  return DispatchNumeric(r.call.out[0].dtype,
                         [&](auto t) { return MakeElementwise<decltype(t), decltype(t)>(r, fns); });
}
KernelPtr Make(const KernelRequest& r, Predicates fns) {
  return DispatchFloat(r.call.in[0].dtype,
                       [&](auto t) { return MakeElementwise<Bool, decltype(t)>(r, fns); });
}
KernelPtr Make(const KernelRequest& r, Gradients fns) {
  return DispatchFloat(r.call.out[0].dtype, [&](auto t) {
    return MakeElementwise<decltype(t), decltype(t), decltype(t)>(r, fns);
  });
}
KernelPtr Not(const KernelRequest& r) { return MakeElementwise<Bool, Bool>(r, OneOf<NotFn>()); }

template <typename Fn>
KernelPtr Float(const KernelRequest& r) {
  return Make(r, Floats::Of<Fn>());
}
template <typename Fn>
KernelPtr Other(const KernelRequest& r) {
  return Make(r, Others::Of<Fn>());
}
template <typename Fn>
KernelPtr Numeric(const KernelRequest& r) {
  return Make(r, Signs::Of<Fn>());
}
template <typename Fn>
KernelPtr Predicate(const KernelRequest& r) {
  return Make(r, Predicates::Of<Fn>());
}
template <typename Fn>
KernelPtr Gradient(const KernelRequest& r) {
  return Make(r, Gradients::Of<Fn>());
}
bool ByTanh(const KernelRequest& r) { return r.call.attrs->String("approximate") == "tanh"; }
KernelPtr Gelu(const KernelRequest& r) {
  return ByTanh(r) ? Float<GeluTanhFn>(r) : Float<GeluErfFn>(r);
}
KernelPtr GeluGrad(const KernelRequest& r) {
  return ByTanh(r) ? Gradient<GeluTanhGradFn>(r) : Gradient<GeluErfGradFn>(r);
}

constexpr Binding kBindings[] = {
    {"neg", Numeric<NegFn>},
    {"abs", Numeric<AbsFn>},
    {"sign", Numeric<SignFn>},
    {"exp", Float<ExpFn>},
    {"log", Float<LogFn>},
    {"log1p", Float<Log1pFn>},
    {"sqrt", Float<SqrtFn>},
    {"rsqrt", Float<RsqrtFn>},
    {"reciprocal", Float<ReciprocalFn>},
    {"floor", Float<FloorFn>},
    {"ceil", Float<CeilFn>},
    {"round", Float<RoundFn>},
    {"sin", Float<SinFn>},
    {"cos", Float<CosFn>},
    {"asin", Other<AsinFn>},
    {"acos", Other<AcosFn>},
    {"atan", Other<AtanFn>},
    {"sinh", Other<SinhFn>},
    {"cosh", Other<CoshFn>},
    {"asinh", Other<AsinhFn>},
    {"acosh", Other<AcoshFn>},
    {"atanh", Other<AtanhFn>},
    {"is_nan", Predicate<IsNanFn>},
    {"is_inf", Predicate<IsInfFn>},
    {"not", Not},
    {"relu", Float<ReluFn>},
    {"tanh", Float<TanhFn>},
    {"sigmoid", Float<SigmoidFn>},
    {"erf", Float<ErfFn>},
    {"silu", Float<SiluFn>},
    {"gelu", Gelu},
    {"relu_grad", Gradient<ReluGradFn>},
    {"tanh_grad", Gradient<TanhGradFn>},
    {"sigmoid_grad", Gradient<SigmoidGradFn>},
    {"silu_grad", Gradient<SiluGradFn>},
    {"gelu_grad", GeluGrad},
};

}  // namespace

std::span<const Binding> UnaryBindings() { return kBindings; }

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
