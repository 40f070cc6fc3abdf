#include <memory>

#include "ir/attention_part.h"
#include "runtime/cpu/bind.h"
#include "runtime/cpu/draw_of.h"
#include "runtime/cpu/kernels/kernel_table.h"

namespace shardc::cpu {
namespace {

struct Layout {
  bool bshd;
  int64_t heads(const Shape& s) const { return bshd ? s[2] : s[1]; }
  int64_t length(const Shape& s) const { return bshd ? s[1] : s[2]; }
  HeadStrides strides(const Shape& s) const {
    int64_t d = s[3], row = s[2] * d;
    return bshd ? HeadStrides{s[1] * row, row, d} : HeadStrides{s[1] * row, d, row};
  }
};

// Operands q, k, v from `first` on; nothing when the fast kernel lacks the case.
bool Shapes(const KernelRequest& r, size_t first, Layout layout, AttentionShape* shape) {
  const Shape &q = r.call.in[first].shape, &k = r.call.in[first + 1].shape,
              &v = r.call.in[first + 2].shape;
  *shape = {.batch = q[0],
            .q_heads = layout.heads(q),
            .kv_heads = layout.heads(k),
            .q_len = layout.length(q),
            .kv_len = layout.length(k),
            .head_dim = q[3],
            .value_dim = v[3],
            .scale = static_cast<float>(r.call.attrs->Float("scale")),
            .causal = r.call.attrs->Bool("causal")};
  if (shape->causal) {
    shape->diagonal = CausalDiagonal(r.call, r.call.in[first], !layout.bshd, shape->kv_len);
  }
  return shape->kv_heads > 0 && shape->q_heads % shape->kv_heads == 0;
}

bool Mask(const KernelRequest& r, size_t at, const AttentionShape& shape, AttentionMask* mask) {
  if (r.call.in.size() - r.call.attrs->Has("ratio") <= at) return true;
  const TensorView& m = r.call.in[at];
  int64_t* strides[4] = {&mask->batch, &mask->head, &mask->query, &mask->key};
  int64_t full[4] = {shape.batch, shape.q_heads, shape.q_len, shape.kv_len}, stride = 1;
  for (int d = 3, i = m.rank() - 1; i >= 0; --d, --i) {
    if (m.shape[i] != 1 && m.shape[i] != full[d]) return false;
    *strides[d] = m.shape[i] == 1 ? 0 : stride;
    stride *= m.shape[i];
  }
  if (m.dtype == DType::kF32) {
    mask->add = m.as<const float>();
  } else if (m.dtype == DType::kBool) {
    mask->visible = m.as<const uint8_t>();
  } else {
    return false;
  }
  return true;
}

// make(T(), the kernel) for the type that the `count` operands from `first` on and the first result
// have; null for one that has no kernel.
template <typename F32, typename Bf16, typename Make>
std::unique_ptr<Kernel> MakeForType(const KernelRequest& r, size_t first, size_t count, F32 f32,
                                    Bf16 bf16, const Make& make) {
  const DType type = r.call.out[0].dtype;
  for (size_t i = first; i < first + count; ++i) {
    if (r.call.in[i].dtype != type) return nullptr;
  }
  if (type == DType::kF32) return make(float(), f32);
  if (type == DType::kBF16) return make(uint16_t(), bf16);
  return nullptr;
}

// Runs the kernel with what the attributes and the step of each run say is dropped. `o`: the result
// or its gradient.
template <typename Args, typename Run>
std::unique_ptr<Kernel> MakeDropping(const KernelRequest& r, Args args, Run run,
                                     const TensorView& o, bool heads_first) {
  const int threads = r.call.threads;
  if (!r.call.attrs->Has("ratio")) return MakeKernel([=] { run(args, threads); });
  const auto places = std::make_shared<const ProbabilityPlaces>(
      PlacesOfProbabilities(r.call, o, heads_first, args.shape.kv_len));
  const DropoutMask mask = MaskOf(*r.call.attrs);
  args.dropout.draw = DrawOf(mask);
  args.dropout.scale = static_cast<float>(mask.scale);
  args.dropout.batch = places->batch.data();
  args.dropout.head = places->head.data();
  args.dropout.query = places->query.data();
  return MakeKernel([args, run, threads, places, step = r.call.in.back()] {
    Args of_run = args;
    of_run.dropout.draw.step = StepIn(step);
    run(of_run, threads);
  });
}

std::unique_ptr<Kernel> MakeForward(const KernelRequest& r) {
  const AttentionKernels& kernels = Kernels().attention;
  const auto make = [&](auto type, auto run) -> std::unique_ptr<Kernel> {
    using T = decltype(type);
    Layout layout{r.call.attrs->String("layout", "bhsd") == "bshd"};
    AttentionForwardArgsOf<T> args;
    if (!Shapes(r, 0, layout, &args.shape) || !Mask(r, 3, args.shape, &args.mask)) return nullptr;
    auto in = [&](size_t i) { return r.call.in[i].as<const T>(); };
    args.q = in(0);
    args.q_strides = layout.strides(r.call.in[0].shape);
    args.k = in(1);
    args.k_strides = layout.strides(r.call.in[1].shape);
    args.v = in(2);
    args.v_strides = layout.strides(r.call.in[2].shape);
    args.o = r.call.out[0].as<T>();
    args.o_strides = layout.strides(r.call.out[0].shape);
    args.lse = Out(r, 1);
    return MakeDropping(r, args, run, r.call.out[0], !layout.bshd);
  };
  return MakeForType(r, 0, 3, kernels.forward, kernels.forward_bf16, make);
}

std::unique_ptr<Kernel> MakeBackward(const KernelRequest& r) {
  const AttentionKernels& kernels = Kernels().attention;
  const auto make = [&](auto type, auto run) -> std::unique_ptr<Kernel> {
    using T = decltype(type);
    Layout layout{r.call.attrs->String("layout", "bhsd") == "bshd"};
    AttentionBackwardArgsOf<T> args;
    if (!Shapes(r, 1, layout, &args.shape) || !Mask(r, 6, args.shape, &args.mask)) return nullptr;
    auto in = [&](size_t i) { return r.call.in[i].as<const T>(); };
    auto out = [&](size_t i) { return r.call.out[i].as<T>(); };
    auto strides = [&](const TensorView& v) { return layout.strides(v.shape); };
    args.d_o = in(0);
    args.d_o_strides = strides(r.call.in[0]);
    args.q = in(1);
    args.q_strides = strides(r.call.in[1]);
    args.k = in(2);
    args.k_strides = strides(r.call.in[2]);
    args.v = in(3);
    args.v_strides = strides(r.call.in[3]);
    args.o = in(4);
    args.o_strides = strides(r.call.in[4]);
    args.lse = In(r, 5);
    args.dq = out(0);
    args.dq_strides = strides(r.call.out[0]);
    args.dk = out(1);
    args.dk_strides = strides(r.call.out[1]);
    args.dv = out(2);
    args.dv_strides = strides(r.call.out[2]);
    return MakeDropping(r, args, run, r.call.in[0], !layout.bshd);
  };
  return MakeForType(r, 0, 5, kernels.backward, kernels.backward_bf16, make);
}

// q, k and v as neighbours in [b, s, 3 h, d], and o as [b, s, h, d].
struct Packed {
  AttentionShape shape;
  HeadStrides part, o;
  int64_t size;  // of a row of a part
  Packed(const KernelRequest& r, const TensorView& x, const TensorView& out) {
    const Shape& s = out.shape;
    shape = {.batch = s[0],
             .q_heads = s[2],
             .kv_heads = s[2],
             .q_len = s[1],
             .kv_len = s[1],
             .head_dim = s[3],
             .value_dim = s[3],
             .scale = static_cast<float>(r.call.attrs->Float("scale")),
             .causal = r.call.attrs->Bool("causal")};
    size = s[2] * s[3];
    const int64_t row = x.shape[2] * s[3];
    part = {s[1] * row, row, s[3]};
    o = {s[1] * size, size, s[3]};
  }
};

std::unique_ptr<Kernel> MakePacked(const KernelRequest& r) {
  const AttentionKernels& kernels = Kernels().attention;
  const auto make = [&](auto type, auto run) -> std::unique_ptr<Kernel> {
    using T = decltype(type);
    const Packed p(r, r.call.in[0], r.call.out[0]);
    const T* x = r.call.in[0].as<const T>();
    const AttentionForwardArgsOf<T> args{.shape = p.shape,
                                         .q = x,
                                         .q_strides = p.part,
                                         .k = x + p.size,
                                         .k_strides = p.part,
                                         .v = x + 2 * p.size,
                                         .v_strides = p.part,
                                         .mask = {},
                                         .dropout = {},
                                         .o = r.call.out[0].as<T>(),
                                         .o_strides = p.o,
                                         .lse = Out(r, 1)};
    return MakeDropping(r, args, run, r.call.out[0], false);
  };
  return MakeForType(r, 0, 1, kernels.forward, kernels.forward_bf16, make);
}

std::unique_ptr<Kernel> MakePackedBackward(const KernelRequest& r) {
  const AttentionKernels& kernels = Kernels().attention;
  const auto make = [&](auto type, auto run) -> std::unique_ptr<Kernel> {
    using T = decltype(type);
    const Packed p(r, r.call.in[1], r.call.in[2]);
    const T* x = r.call.in[1].as<const T>();
    T* dx = r.call.out[0].as<T>();
    const AttentionBackwardArgsOf<T> args{.shape = p.shape,
                                          .q = x,
                                          .q_strides = p.part,
                                          .k = x + p.size,
                                          .k_strides = p.part,
                                          .v = x + 2 * p.size,
                                          .v_strides = p.part,
                                          .mask = {},
                                          .dropout = {},
                                          .o = r.call.in[2].as<const T>(),
                                          .o_strides = p.o,
                                          .lse = In(r, 3),
                                          .d_o = r.call.in[0].as<const T>(),
                                          .d_o_strides = p.o,
                                          .dq = dx,
                                          .dq_strides = p.part,
                                          .dk = dx + p.size,
                                          .dk_strides = p.part,
                                          .dv = dx + 2 * p.size,
                                          .dv_strides = p.part};
    return MakeDropping(r, args, run, r.call.in[0], false);
  };
  return MakeForType(r, 0, 3, kernels.backward, kernels.backward_bf16, make);
}

constexpr Binding kBindings[] = {{"attention", MakeForward},
                                 {"attention_grad", MakeBackward},
                                 {"packed_attention", MakePacked},
                                 {"packed_attention_grad", MakePackedBackward}};

}  // namespace

std::span<const Binding> AttentionBindings() { return kBindings; }

}  // namespace shardc::cpu
