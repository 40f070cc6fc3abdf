// matmul, matmul_nt, matmul_tn and linear: f32 without TF32, bf16 and f16 summed in f32, f64.
// Operand 2 is linear's bias; that of the others the product is added to.
#include "ir/program.h"
#include "runtime/cuda/kernels/elementwise.h"
#include "runtime/cuda/kernels/matmul_plan.h"
#include "runtime/cuda/kernels/product.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

// Adds a bias to rows, where cuBLASLt does not; also to no product at all (k = 0).
template <typename B, typename T>
struct AddBias {
  T* y;
  const B* bias;
  int64_t cols;
  __device__ void operator()(int64_t i) const {
    y[i] = Narrow<T>(Widen(y[i]) + Widen(bias[i % cols]));
  }
};
bool HasBias(const KernelRequest& r) { return r.instruction.op == "linear"; }
bool HasAddend(const KernelRequest& r) { return !HasBias(r) && r.call.in.size() > 2; }

KernelPtr MakeAddBias(const KernelRequest& r) {
  const TensorView& y = r.call.out[0];
  return DispatchFloat(y.dtype, [&](auto t) {
    using T = decltype(t);
    return DispatchNarrow<T>(r.call.in[2].dtype, [&](auto b) {
      using F = AddBias<decltype(b), T>;
      F f{Out<T>(r, 0), In<decltype(b)>(r, 2), y.shape.back()};
      return MakeKernel([f, n = y.num_elements()](const Launch& launch) {
        Grid grid = ElementGrid(n);
        LaunchKernel(launch, ElementsKernel<F>, grid.blocks, grid.threads, 0, f, n);
      });
    });
  });
}

// Makes the ends of rows that are longer than the product's zero.
template <typename T>
struct ClearEnds {
  T* y;
  int64_t cols, length;
  __device__ void operator()(int64_t i) const {
    const int64_t end = length - cols;
    y[i / end * length + cols + i % end] = Narrow<T>(Wide<T>(0));
  }
};
KernelPtr WithEnds(KernelPtr product, const KernelRequest& r, const MatmulPlan& plan) {
  const TensorView& y = r.call.out[0];
  auto ends = DispatchFloat(y.dtype, [&](auto t) {
    using F = ClearEnds<decltype(t)>;
    F f{y.as<decltype(t)>(), plan.rows, plan.d_ld};
    return MakeKernel([f, n = plan.cols * (plan.d_ld - plan.rows)](const Launch& launch) {
      Grid grid = ElementGrid(n);
      LaunchKernel(launch, ElementsKernel<F>, grid.blocks, grid.threads, 0, f, n);
    });
  });
  return MakeFollowed(std::move(product), std::move(ends));
}

KernelPtr MakeMatmul(const KernelRequest& r) {
  const TensorView& out = r.call.out[0];
  auto plan = PlanMatmul(r.instruction.op, *r.call.attrs, r.call.in[0].shape, r.call.in[1].shape,
                         out.shape);
  DType in = r.call.in[0].dtype;
  bool types = in == out.dtype || (out.dtype == DType::kF32 && in != DType::kF64);
  if (!plan || !IsFloat(in) || !types) return nullptr;
  if (out.num_elements() == 0) return NoWork();
  if (plan->k == 0 && HasAddend(r)) {
    return MakeKernel(
        [to = out.data, from = r.call.in[2].data, bytes = Bytes(out)](const Launch& launch) {
          if (from != to) CopyBytes(launch, to, from, bytes);
        });
  }
  if (plan->k == 0) {
    std::shared_ptr<CudaKernel> bias = HasBias(r) ? MakeAddBias(r) : NoWork();
    return MakeKernel([to = out.data, bytes = Bytes(out), bias](const Launch& launch) {
      ClearBytes(launch, to, bytes);
      bias->Enqueue(launch);
    });
  }
  MatrixProduct product{*plan, in, out.dtype, r.call.in[1].data, r.call.in[0].data};
  product.d = out.data;
  if (HasAddend(r)) product.c = r.call.in[2].data;
  if (plan->d_ld > plan->rows) return WithEnds(MakeProduct(product, nullptr), r, *plan);
  if (!HasBias(r)) return MakeProduct(product, nullptr);
  // The library's is of the result's type.
  if (in != DType::kF64 && r.call.in[2].dtype == out.dtype) product.bias = r.call.in[2].data;
  return MakeProduct(product, MakeAddBias(r));
}

// An item per pack of `to`: the columns of a matrix, with zeros up to the next whole pack.
struct PadColumns {
  static constexpr int kN = kPack<uint16_t>;
  const uint16_t* from;
  uint16_t* to;
  int64_t rows, ld, packs;  // of `from`; packs of a column of `to`
  bool small;               // fewer than 2^32 items
  __device__ void operator()(int64_t item) const {
    const int64_t col = small ? static_cast<uint32_t>(item) / static_cast<uint32_t>(packs)
                              : item / packs,
                  row = (item - col * packs) * kN;
    const uint16_t* at = from + col * ld + row;
    Pack<uint16_t, kN> v;
    for (int j = 0; j < kN; ++j) v.v[j] = row + j < rows ? at[j] : uint16_t{0};
    StorePack<uint16_t, kN>(to + item * kN, v);
  }
};

template <typename T>
struct NarrowSums {
  const float* from;
  T* to;
  __device__ void operator()(int64_t i) const { to[i] = Narrow<T>(from[i]); }
};

class Followed : public CudaKernel {
 public:
  Followed(KernelPtr product, KernelPtr next)
      : product_(std::move(product)), next_(std::move(next)) {}
  void Prepare(const Launch& launch) override { product_->Prepare(launch); }
  void Tune(const Launch& launch, KernelChoices& choices) override {
    product_->Tune(launch, choices);
  }
  int64_t workspace_bytes() const override { return product_->workspace_bytes(); }
  void Enqueue(const Launch& launch) override {
    product_->Enqueue(launch);
    next_->Enqueue(launch);
  }

 private:
  KernelPtr product_, next_;
};

constexpr Binding kBindings[] = {{"matmul", MakeMatmul},
                                 {"matmul_nt", MakeMatmul},
                                 {"matmul_tn", MakeMatmul},
                                 {"linear", MakeMatmul}};

}  // namespace

std::span<const Binding> MatmulBindings() { return kBindings; }

KernelPtr MakeFollowed(KernelPtr product, KernelPtr next) {
  return std::make_unique<Followed>(std::move(product), std::move(next));
}

void EnqueuePadding(const Launch& launch, const MatrixProduct& product, const PaddingPlan& padding,
                    std::byte* to) {
  auto copy = [&](const PaddingPlan::Operand& operand, const std::byte* from, int64_t rows,
                  int64_t ld, int64_t cols) {
    if (operand.ld == 0) return;
    const int64_t packs = operand.ld / PadColumns::kN, items = packs * cols;
    PadColumns f{reinterpret_cast<const uint16_t*>(from),
                 reinterpret_cast<uint16_t*>(to + operand.offset),
                 rows,
                 ld,
                 packs,
                 items < (int64_t{1} << 32)};
    Grid grid = ElementGrid(items);
    LaunchKernel(launch, ElementsKernel<PadColumns>, grid.blocks, grid.threads, 0, f, items);
  };
  const MatmulPlan& plan = product.plan;
  copy(padding.a, OperandOf(product, launch, product.a), plan.a_rows, plan.a_rows, plan.a_cols);
  copy(padding.b, OperandOf(product, launch, product.b), plan.b_rows, plan.b_ld, plan.b_cols);
}

void EnqueueNarrowing(const Launch& launch, const std::byte* from, std::byte* to, DType half,
                      int64_t count) {
  auto enqueue = [&](auto t) {
    using F = NarrowSums<decltype(t)>;
    F f{reinterpret_cast<const float*>(from), reinterpret_cast<decltype(t)*>(to)};
    Grid grid = ElementGrid(count);
    LaunchKernel(launch, ElementsKernel<F>, grid.blocks, grid.threads, 0, f, count);
  };
  if (half == DType::kBF16) return enqueue(BF16());
  enqueue(F16());
}

KernelPtr MakeFusedProduct(const FusedProduct& f, const Launch& launch, std::string* why_not) {
  auto plan = PlanMatmul(f.product->op, f.product->attrs, f.left.shape, f.right.shape,
                         f.product_result.shape);
  if (!plan || plan->parts.size() != 1 || plan->batch != 1) {
    *why_not = "it is not one product";
    return nullptr;
  }
  MatrixProduct product{*plan, f.left.dtype, f.result.dtype, f.right.data, f.left.data};
  product.d = f.result.data;
  product.bias = f.bias.data;
  product.epilogue = f.epilogue;
  product.aux = f.aux.data;
  product.sums = f.sums.data;
  return MakeEpilogueProduct(product, launch, why_not);
}

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
