// matmul_rows, matmul_rows_nt and matmul_rows_tn: products of all rows, of which those that are not
// chosen become zero afterwards or, where they are summed over, before.
#include <utility>

#include "ir/program.h"
#include "runtime/cuda/kernels/matmul_plan.h"
#include "runtime/cuda/kernels/product.h"
#include "runtime/cuda/kernels/strided_copy.h"
#include "runtime/cuda/kernels/vector.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

constexpr int64_t kPlace = 256;

template <typename T>
struct ClearRows {
  T* y;
  const uint8_t* chosen;
  int64_t cols;
  __device__ void operator()(int64_t i) const {
    if (chosen[i / cols] == 0) y[i] = Narrow<T>(Wide<T>(0));
  }
};

KernelPtr MakeClearRows(const KernelRequest& r) {
  const TensorView& y = r.call.out[0];
  return DispatchFloat(y.dtype, [&](auto t) {
    using F = ClearRows<decltype(t)>;
    F f{y.as<decltype(t)>(), In<uint8_t>(r, 2), y.shape.back()};
    return MakeKernel([f, n = y.num_elements()](const Launch& launch) {
      const Grid grid = ElementGrid(n);
      LaunchKernel(launch, ElementsKernel<F>, grid.blocks, grid.threads, 0, f, n);
    });
  });
}

// The rows of an operand, broadcast to what is chosen, at `offset` in the workspace.
template <typename T>
struct SelectRows {
  Walk walk;  // over the elements of all rows
  const T* from;
  const uint8_t* chosen;
  T* to;
  int64_t cols;
  __device__ void operator()(int64_t i) const {
    int64_t at[1];
    Locate(walk, i, at);
    to[i] = chosen[i / cols] != 0 ? from[at[0]] : Narrow<T>(Wide<T>(0));
  }
};
KernelPtr MakeSelect(const KernelRequest& r, size_t operand, const Shape& all, int64_t offset) {
  const TensorView& from = r.call.in[operand];
  const auto walk = MakeWalk(all, {BroadcastStrides(from.shape, all)});
  if (!walk) return nullptr;
  return DispatchFloat(from.dtype, [&](auto t) {
    using F = SelectRows<decltype(t)>;
    F f{*walk, from.as<const decltype(t)>(), In<uint8_t>(r, 2), nullptr, all.back()};
    return MakeKernel([f, offset, n = NumElements(all)](const Launch& launch) {
      F placed = f;
      placed.to = reinterpret_cast<decltype(t)*>(launch.workspace + offset);
      const Grid grid = ElementGrid(n);
      LaunchKernel(launch, ElementsKernel<F>, grid.blocks, grid.threads, 0, placed, n);
    });
  });
}

// The chosen rows of both operands, and zeros for the others, lie before what is the product's of
// the workspace.
class ProductOfSelected : public CudaKernel {
 public:
  ProductOfSelected(KernelPtr product, KernelPtr left, KernelPtr right, int64_t bytes)
      : product_(std::move(product)),
        left_(std::move(left)),
        right_(std::move(right)),
        bytes_(bytes) {}
  void Prepare(const Launch& launch) override { product_->Prepare(launch); }
  void Tune(const Launch& launch, KernelChoices& choices) override {
    product_->Tune(Behind(launch), choices);
  }
  int64_t workspace_bytes() const override { return bytes_ + product_->workspace_bytes(); }
  void Enqueue(const Launch& launch) override {
    left_->Enqueue(launch);
    right_->Enqueue(launch);
    product_->Enqueue(Behind(launch));
  }

 private:
  Launch Behind(Launch launch) const {
    launch.workspace += bytes_;
    launch.workspace_bytes -= bytes_;
    return launch;
  }

  KernelPtr product_, left_, right_;
  const int64_t bytes_;
};

bool HasTypes(const KernelRequest& r) {
  const DType in = r.call.in[0].dtype, out = r.call.out[0].dtype;
  return IsFloat(in) && (in == out || (out == DType::kF32 && in != DType::kF64));
}

KernelPtr MakeClear(const TensorView& y) {
  return MakeKernel(
      [to = y.data, bytes = Bytes(y)](const Launch& launch) { ClearBytes(launch, to, bytes); });
}

KernelPtr MakeRows(const KernelRequest& r) {
  const TensorView &a = r.call.in[0], &b = r.call.in[1], &y = r.call.out[0];
  const auto plan = PlanMatmul(r.instruction.op == "matmul_rows_nt" ? "matmul_nt" : "matmul", {},
                               a.shape, b.shape, y.shape);
  if (!plan || !HasTypes(r)) return nullptr;
  if (y.num_elements() == 0) return NoWork();
  if (plan->k == 0) return MakeClear(y);
  MatrixProduct product{*plan, a.dtype, y.dtype, b.data, a.data};
  product.d = y.data;
  return MakeFollowed(MakeProduct(product, nullptr), MakeClearRows(r));
}

KernelPtr MakeRowsTN(const KernelRequest& r) {
  const TensorView &a = r.call.in[0], &b = r.call.in[1], &rows = r.call.in[2], &y = r.call.out[0];
  if (!HasTypes(r)) return nullptr;
  if (y.num_elements() == 0) return NoWork();
  const std::byte* addend = r.call.in.size() > 3 ? r.call.in[3].data : nullptr;
  if (rows.num_elements() == 0) {
    return addend ? MakeStretchCopy(y.data, addend, Bytes(y)) : MakeClear(y);
  }
  auto all = [&](const TensorView& v) {
    Shape shape = rows.shape;
    shape.push_back(v.shape.back());
    return shape;
  };
  auto bytes = [](const Shape& shape, DType dtype) {
    return CeilDiv(NumElements(shape) * DTypeSize(dtype), kPlace) * kPlace;
  };
  const Shape left = all(a), right = all(b);
  const int64_t left_bytes = bytes(left, a.dtype), both = left_bytes + bytes(right, b.dtype);
  const auto plan = PlanMatmul(
      "matmul_tn", {{"batch", static_cast<int64_t>(rows.shape.size()) - 1}}, left, right, y.shape);
  KernelPtr select_left = MakeSelect(r, 0, left, 0),
            select_right = MakeSelect(r, 1, right, left_bytes);
  if (!plan || !select_left || !select_right) return nullptr;
  MatrixProduct product{*plan, a.dtype, y.dtype};
  product.from_workspace = true;
  product.a = reinterpret_cast<const std::byte*>(left_bytes - both);
  product.b = reinterpret_cast<const std::byte*>(-both);
  product.c = addend;
  product.d = y.data;
  return std::make_unique<ProductOfSelected>(MakeProduct(product, nullptr), std::move(select_left),
                                             std::move(select_right), both);
}

constexpr Binding kBindings[] = {
    {"matmul_rows", MakeRows}, {"matmul_rows_nt", MakeRows}, {"matmul_rows_tn", MakeRowsTN}};

}  // namespace

std::span<const Binding> MatmulRowsBindings() { return kBindings; }

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
