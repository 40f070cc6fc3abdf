// Binds attention, packed_attention and their gradients.
#include "ir/attention_part.h"
#include "runtime/cuda/kernels/attention.h"

#if defined(__CUDACC__)
#include "runtime/cuda/native/cudnn_attention.h"
#include "runtime/cuda/scratch.h"
#endif

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

bool HeadsFirst(const KernelRequest& r) { return r.call.attrs->String("layout", "bhsd") == "bhsd"; }

bool SetMask(const KernelRequest& r, size_t at, const Shape& scores, AttentionMask* mask) {
  if (r.call.in.size() - r.call.attrs->Has("ratio") <= at) return true;
  const TensorView& m = r.call.in[at];
  if (m.dtype != DType::kBool && !IsFloat(m.dtype)) return false;
  if (m.rank() > 4) return false;
  mask->data = m.data;
  mask->dtype = m.dtype;
  std::vector<int64_t> strides = BroadcastStrides(m.shape, scores);
  std::copy(strides.begin(), strides.end(), mask->strides);
  for (size_t d = 0; d < 4; ++d) {
    if (scores[d] == 1) mask->strides[d] = 0;
  }
  return true;
}

// q, k, v from operand `first` on.
template <typename T>
bool Describe(const KernelRequest& r, size_t first, size_t mask, Attention<T>* a) {
  const Shape &q = r.call.in[first].shape, &k = r.call.in[first + 1].shape,
              &v = r.call.in[first + 2].shape;
  const bool bshd = !HeadsFirst(r);
  size_t head = bshd ? 2 : 1, row = bshd ? 1 : 2;
  auto strides = [&](const Shape& shape, int64_t width) {
    int64_t rows = shape[row], heads = shape[head];
    return bshd ? HeadStrides{rows * heads * width, width, heads * width}
                : HeadStrides{rows * heads * width, rows * width, width};
  };
  a->b = q[0];
  a->hq = q[head];
  a->hkv = k[head];
  a->s = q[row];
  a->t = k[row];
  if (a->hkv == 0 || a->hq % a->hkv != 0 || q[3] > kMaxHeadDim || v[3] > kMaxHeadDim) return false;
  a->d = static_cast<int>(q[3]);
  a->dv = static_cast<int>(v[3]);
  a->scale = static_cast<Wide<T>>(r.call.attrs->Float("scale"));
  a->causal = r.call.attrs->Bool("causal");
  if (a->causal) a->diagonal = CausalDiagonal(r.call, r.call.in[first], !bshd, a->t);
  a->q = In<T>(r, first);
  a->k = In<T>(r, first + 1);
  a->v = In<T>(r, first + 2);
  a->sq = strides(q, q[3]);
  a->sk = strides(k, k[3]);
  a->sv = strides(v, v[3]);
  a->so = strides(q, v[3]);
  a->packed = Packs<T>(q[3], a->q, a->k, a->v) && v[3] % kPack<T> == 0;
  return SetMask(r, mask, {a->b, a->hq, a->s, a->t}, &a->mask);
}

// q, k and v as neighbours in x[b, s, 3 h, d]; o as [b, s, h, d]. Their gradients, if `dx` is
// given, as x.
template <typename T>
bool DescribePacked(const KernelRequest& r, const TensorView& x, const TensorView& o, T* dx,
                    Attention<T>* a) {
  const Shape& s = o.shape;
  if (s[3] > kMaxHeadDim) return false;
  const int64_t size = s[2] * s[3], row = x.shape[2] * s[3];
  a->b = s[0];
  a->hq = a->hkv = s[2];
  a->s = a->t = s[1];
  a->d = a->dv = static_cast<int>(s[3]);
  a->scale = static_cast<Wide<T>>(r.call.attrs->Float("scale"));
  a->causal = r.call.attrs->Bool("causal");
  a->q = x.as<const T>();
  a->k = a->q + size;
  a->v = a->k + size;
  if (dx) {
    a->dq = dx;
    a->dk = dx + size;
    a->dv_out = a->dk + size;
  }
  a->sq = a->sk = a->sv = {s[1] * row, s[3], row};
  a->so = {s[1] * size, s[3], size};
  a->packed = Packs<T>(s[3], a->q, a->k, a->v);
  return true;
}

#if defined(__CUDACC__)

// Our kernel, or cuDNN's where that has the case.
template <typename T>
KernelPtr BesideLibrary(const KernelRequest& r, KernelPtr ours, const Attention<T>& a) {
  const bool backward = a.grad != nullptr;
  // It only knows queries the last of which sees the last key.
  const int64_t seen = a.causal ? a.diagonal + a.s : a.t;
  const bool queries_see_keys = !a.causal || (a.diagonal >= 0 && seen <= a.t);
  // Its dropout draws in another order.
  if (a.mask.data || a.dropout.batch || a.b * a.s * a.t == 0 || !queries_see_keys) return ours;
  auto strides = [](const HeadStrides& s) {
    return std::array<int64_t, 3>{s.batch, s.head, s.row};
  };
  const AttentionProblem p{.backward = backward,
                           .bf16 = std::is_same_v<T, BF16>,
                           .causal = a.causal,
                           .b = a.b,
                           .hq = a.hq,
                           .hkv = a.hkv,
                           .s = a.s,
                           .t = seen,
                           .d = a.d,
                           .dv = a.dv,
                           .scale = a.scale,
                           .q_strides = strides(a.sq),
                           .k_strides = strides(a.sk),
                           .v_strides = strides(a.sv),
                           .o_strides = strides(a.so),
                           .together = a.sq.row > a.hq * a.d && a.sq.head == a.d,
                           .unseen = a.t - seen,
                           .may_vary = backward && r.may_vary};
  auto data = [](const void* p) { return const_cast<void*>(p); };
  AttentionTensors t{data(a.q), data(a.k), data(a.v), a.o, a.lse, nullptr, a.dq, a.dk, a.dv_out};
  if (backward) {
    t.o = data(a.o_in);
    t.statistics = data(a.lse_in);
    t.grad = data(a.grad);
  }
  return BesideCudnn(std::move(ours), p, t, ScratchBytes(r.program, r.instruction));
}

#else

template <typename T>
KernelPtr BesideLibrary(const KernelRequest&, KernelPtr ours, const Attention<T>&) {
  return ours;
}

#endif

// Where probabilities lie, on the device.
struct PlaceTables {
  DeviceTable<int64_t> batch, head, query;
};

// `o`: the result or its gradient.
template <typename T>
std::shared_ptr<PlaceTables> SetDropout(const KernelRequest& r, const TensorView& o,
                                        bool heads_first, Attention<T>* a) {
  if (!r.call.attrs->Has("ratio")) return nullptr;
  const ProbabilityPlaces places = PlacesOfProbabilities(r.call, o, heads_first, a->t);
  const DropoutMask mask = MaskOf(*r.call.attrs);
  a->dropout.draw = Draw(mask, r.call.in.back());
  a->dropout.scale = static_cast<Wide<T>>(mask.scale);
  a->dropout.aligned = true;
  for (const auto* table : {&places.batch, &places.head, &places.query}) {
    for (int64_t at : *table) a->dropout.aligned = a->dropout.aligned && at % 4 == 0;
  }
  auto tables = std::make_shared<PlaceTables>();
  tables->batch = DeviceTable<int64_t>(places.batch);
  tables->head = DeviceTable<int64_t>(places.head);
  tables->query = DeviceTable<int64_t>(places.query);
  a->dropout.batch = tables->batch.data();
  a->dropout.head = tables->head.data();
  a->dropout.query = tables->query.data();
  return tables;
}

// The kernel, which reads the tables.
KernelPtr Keeping(KernelPtr kernel, std::shared_ptr<PlaceTables> tables) {
  if (!tables) return kernel;
  const int64_t workspace = kernel->workspace_bytes();
  return MakeKernel([kernel = std::shared_ptr<CudaKernel>(std::move(kernel)),
                     tables](const Launch& launch) { kernel->Enqueue(launch); },
                    workspace);
}

// Whether in f32 tiles of 64 queries have room for the heads, and 32 bits count rows and what lies
// between them. A few queries would leave most of a tile empty; the plain kernels have a warp for
// each.
template <typename T>
bool Tiles(const Attention<T>& a) {
  const int64_t most = std::max({a.s, a.t, a.sq.row, a.sk.row, a.sv.row, a.so.row});
  return std::max(a.d, a.dv) <= kTiledHeadDim && a.s > 8 && most < INT32_MAX / 2;
}

template <typename T>
KernelPtr MakeForwardOf(const KernelRequest& r, bool heads_first, Attention<T> a) {
  auto tables = SetDropout(r, r.call.out[0], heads_first, &a);
  a.o = Out<T>(r, 0);
  a.lse = Out<Wide<T>>(r, 1);
  if constexpr (sizeof(T) == 2) {
    return Keeping(BesideLibrary(r, MakeMmaForward(a), a), tables);
  } else {
    if constexpr (sizeof(T) == 4) {
      KernelPtr tiled = Tiles(a) ? MakeTiledForward(a) : nullptr;
      if (tiled) return Keeping(std::move(tiled), tables);
    }
    return Keeping(MakePlainForward(a), tables);
  }
}

template <typename T>
KernelPtr MakeBackwardOf(const KernelRequest& r, bool heads_first, Attention<T> a) {
  auto tables = SetDropout(r, r.call.in[0], heads_first, &a);
  a.grad = In<T>(r, 0);
  a.packed = a.packed && Aligned(a.grad, 16);
  if constexpr (sizeof(T) == 2) {
    return Keeping(BesideLibrary(r, MakeMmaBackward(a), a), tables);
  } else {
    if constexpr (sizeof(T) == 4) {
      KernelPtr tiled = Tiles(a) ? MakeTiledBackward(a) : nullptr;
      if (tiled) return Keeping(std::move(tiled), tables);
    }
    return Keeping(MakePlainBackward(a), tables);
  }
}

KernelPtr MakeForward(const KernelRequest& r) {
  return DispatchFloat(r.call.out[0].dtype, [&](auto t) -> KernelPtr {
    using T = decltype(t);
    Attention<T> a{};
    if (!Describe(r, 0, 3, &a)) return nullptr;
    return MakeForwardOf(r, HeadsFirst(r), a);
  });
}

KernelPtr MakeBackward(const KernelRequest& r) {
  return DispatchFloat(r.call.out[0].dtype, [&](auto t) -> KernelPtr {
    using T = decltype(t);
    Attention<T> a{};
    if (!Describe(r, 1, 6, &a)) return nullptr;
    a.o_in = In<T>(r, 4);
    a.lse_in = In<Wide<T>>(r, 5);
    a.dq = Out<T>(r, 0);
    a.dk = Out<T>(r, 1);
    a.dv_out = Out<T>(r, 2);
    return MakeBackwardOf(r, HeadsFirst(r), a);
  });
}

KernelPtr MakePacked(const KernelRequest& r) {
  return DispatchFloat(r.call.out[0].dtype, [&](auto t) -> KernelPtr {
    using T = decltype(t);
    Attention<T> a{};
    if (!DescribePacked<T>(r, r.call.in[0], r.call.out[0], nullptr, &a)) return nullptr;
    return MakeForwardOf(r, false, a);
  });
}

KernelPtr MakePackedBackward(const KernelRequest& r) {
  return DispatchFloat(r.call.out[0].dtype, [&](auto t) -> KernelPtr {
    using T = decltype(t);
    Attention<T> a{};
    if (!DescribePacked<T>(r, r.call.in[1], r.call.in[2], Out<T>(r, 0), &a)) return nullptr;
    a.o_in = In<T>(r, 2);
    a.lse_in = In<Wide<T>>(r, 3);
    return MakeBackwardOf(r, false, a);
  });
}

constexpr Binding kBindings[] = {{"attention", MakeForward},
                                 {"attention_grad", MakeBackward},
                                 {"packed_attention", MakePacked},
                                 {"packed_attention_grad", MakePackedBackward}};

}  // namespace

std::span<const Binding> AttentionBindings() { return kBindings; }

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
