// matmul, matmul_nt, matmul_tn and linear by cuBLASLt: f32 without TF32, bf16 and f16 summed in
// f32, f64.
#if defined(__CUDACC__)
#include <cublasLt.h>
#endif

#include "runtime/cuda/kernels/elementwise.h"
#include "runtime/cuda/kernels/matmul_plan.h"

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
KernelPtr MakeAddBias(const KernelRequest& r) {
  const TensorView& y = r.call.out[0];
  return DispatchFloats(r.call.in[2].dtype, y.dtype, [&](auto b, auto t) {
    using F = AddBias<decltype(b), decltype(t)>;
    F f{Out<decltype(t)>(r, 0), In<decltype(b)>(r, 2), y.shape.back()};
    return MakeKernel([f, n = y.num_elements()](const Launch& launch) {
      Grid grid = ElementGrid(n);
      LaunchKernel(launch, ElementsKernel<F>, grid.blocks, grid.threads, 0, f, n);
    });
  });
}

#if defined(__CUDACC__)

constexpr int64_t kWorkspace = 32 << 20;  // what cuBLAS asks for on sm_90

void Check(cublasStatus_t status, std::string_view what) {
  if (status != CUBLAS_STATUS_SUCCESS) ThrowCuda(what, cublasLtGetStatusString(status));
}

cudaDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return CUDA_R_64F;
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kBF16:
      return CUDA_R_16BF;
    default:
      return CUDA_R_32F;
  }
}

struct Layout {
  cublasLtMatrixLayout_t handle = nullptr;
  Layout(cudaDataType_t type, int64_t rows, int64_t cols, int64_t batch, int64_t stride) {
    Check(cublasLtMatrixLayoutCreate(&handle, type, static_cast<uint64_t>(rows),
                                     static_cast<uint64_t>(cols), rows),
          "a matrix for cuBLASLt");
    auto count = static_cast<int32_t>(batch);
    Set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, count);
    Set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride);
  }
  template <typename T>
  void Set(cublasLtMatrixLayoutAttribute_t attribute, T value) {
    Check(cublasLtMatrixLayoutSetAttribute(handle, attribute, &value, sizeof(value)),
          "a matrix for cuBLASLt");
  }
  Layout(const Layout&) = delete;
  ~Layout() { cublasLtMatrixLayoutDestroy(handle); }
};

class MatmulKernel : public CudaKernel {
 public:
  MatmulKernel(const KernelRequest& r, MatmulPlan plan)
      : plan_(std::move(plan)),
        dtype_(r.call.in[0].dtype),
        out_dtype_(r.call.out[0].dtype),
        a_(r.call.in[1].data),
        b_(r.call.in[0].data),
        d_(r.call.out[0].data),
        la_(TypeOf(dtype_), plan_.a_rows, plan_.a_cols, plan_.batch, plan_.a_stride),
        lb_(TypeOf(dtype_), plan_.b_rows, plan_.b_cols, plan_.batch, plan_.b_stride),
        ld_(TypeOf(out_dtype_), plan_.rows, plan_.cols, plan_.batch, plan_.d_stride) {
    bool f64 = dtype_ == DType::kF64;
    Check(cublasLtMatmulDescCreate(&desc_, f64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                   f64 ? CUDA_R_64F : CUDA_R_32F),
          "a product for cuBLASLt");
    Set(CUBLASLT_MATMUL_DESC_TRANSA, plan_.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    Set(CUBLASLT_MATMUL_DESC_TRANSB, plan_.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    // The epilogue's bias is of the result's type.
    bool fused = !f64 && r.call.in.size() > 2 && r.call.in[2].dtype == out_dtype_;
    if (fused) {
      Set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      const void* bias = r.call.in[2].data;
      Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    }
    if (r.call.in.size() > 2 && !fused) bias_ = MakeAddBias(r);
  }
  ~MatmulKernel() override { cublasLtMatmulDescDestroy(desc_); }

  int64_t workspace_bytes() const override { return kWorkspace; }

  void Enqueue(const Launch& launch) override {
    if (!chosen_) Choose(launch);
    const double one = 1, zero = 0;
    const float one_f = 1, zero_f = 0;
    bool f64 = dtype_ == DType::kF64;
    const void *alpha = f64 ? static_cast<const void*>(&one) : &one_f,
               *beta = f64 ? static_cast<const void*>(&zero) : &zero_f;
    const int64_t size = DTypeSize(dtype_), out_size = DTypeSize(out_dtype_);
    for (const MatmulPlan::Part& part : plan_.parts) {
      std::byte* d = d_ + part.d * out_size;
      Check(cublasLtMatmul(
                launch.blas, desc_, alpha, a_ + part.a * size, la_.handle, b_ + part.b * size,
                lb_.handle, beta, d, ld_.handle, d, ld_.handle, &algorithm_, launch.workspace,
                static_cast<size_t>(std::min(launch.workspace_bytes, kWorkspace)), launch.stream),
            "a matrix product");
    }
    if (bias_) bias_->Enqueue(launch);
  }

 private:
  template <typename T>
  void Set(cublasLtMatmulDescAttributes_t attribute, T value) {
    Check(cublasLtMatmulDescSetAttribute(desc_, attribute, &value, sizeof(value)),
          "a product for cuBLASLt");
  }

  // What all parts of an operand are aligned to, at most 256 bytes.
  uint32_t Alignment(const std::byte* data, int64_t MatmulPlan::Part::*offset, int64_t stride,
                     DType dtype) const {
    uint64_t bits =
        reinterpret_cast<uint64_t>(data) | 256u | static_cast<uint64_t>(stride * DTypeSize(dtype));
    for (const auto& part : plan_.parts)
      bits |= static_cast<uint64_t>(part.*offset * DTypeSize(dtype));
    return static_cast<uint32_t>(bits & (~bits + 1));
  }

  // By cuBLASLt's heuristic, once.
  void Choose(const Launch& launch) {
    cublasLtMatmulPreference_t preference = nullptr;
    Check(cublasLtMatmulPreferenceCreate(&preference), "cuBLASLt");
    auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      Check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
            "cuBLASLt");
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
        static_cast<uint64_t>(std::min(launch.workspace_bytes, kWorkspace)));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
        Alignment(a_, &MatmulPlan::Part::a, plan_.a_stride, dtype_));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        Alignment(b_, &MatmulPlan::Part::b, plan_.b_stride, dtype_));
    uint32_t d = Alignment(d_, &MatmulPlan::Part::d, plan_.d_stride, out_dtype_);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, d);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, d);
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(launch.blas, desc_, la_.handle, lb_.handle, ld_.handle,
                                       ld_.handle, preference, 1, &result, &found);
    cublasLtMatmulPreferenceDestroy(preference);
    Check(status, "cuBLASLt's choice of an algorithm");
    if (found == 0)
      ThrowCuda("cuBLASLt's choice of an algorithm", "there is none for this product");
    algorithm_ = result.algo;
    chosen_ = true;
  }

  MatmulPlan plan_;
  DType dtype_, out_dtype_;
  const std::byte *a_, *b_;
  std::byte* d_;
  Layout la_, lb_, ld_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  KernelPtr bias_;
  cublasLtMatmulAlgo_t algorithm_{};
  bool chosen_ = false;
};

KernelPtr MakeProduct(const KernelRequest& r, const MatmulPlan& plan) {
  return std::make_unique<MatmulKernel>(r, plan);
}

#else

// Does what cuBLASLt is asked to do, one element at a time.
template <typename T, typename U>
struct PlainProduct {
  MatmulPlan p;
  const T *a, *b, *bias;
  const U* result_bias;  // a bias of the result's type; at most one of the two
  U* d;
  void operator()(const Launch&) const {
    for (const MatmulPlan::Part& part : p.parts) {
      for (int64_t i = 0; i < p.batch * p.rows * p.cols; ++i) {
        int64_t row = i % p.rows, col = i / p.rows % p.cols, batch = i / (p.rows * p.cols);
        const T *am = a + part.a + batch * p.a_stride, *bm = b + part.b + batch * p.b_stride;
        Wide<T> sum = 0;
        if (bias) sum = Widen(bias[row]);
        if (result_bias) sum = Widen(result_bias[row]);
        for (int64_t k = 0; k < p.k; ++k) {
          sum += Widen(am[p.transpose_a ? k + row * p.a_rows : row + k * p.a_rows]) *
                 Widen(bm[p.transpose_b ? col + k * p.b_rows : k + col * p.b_rows]);
        }
        d[part.d + batch * p.d_stride + row + col * p.rows] = Narrow<U>(sum);
      }
    }
  }
};
KernelPtr MakeProduct(const KernelRequest& r, const MatmulPlan& plan) {
  return DispatchFloats(r.call.in[0].dtype, r.call.out[0].dtype, [&](auto t, auto u) {
    using T = decltype(t);
    using U = decltype(u);
    PlainProduct<T, U> product{plan, In<T>(r, 1), In<T>(r, 0), nullptr, nullptr, Out<U>(r, 0)};
    if (r.call.in.size() > 2 && r.call.in[2].dtype == r.call.out[0].dtype) {
      product.result_bias = In<U>(r, 2);
    } else if (r.call.in.size() > 2) {
      product.bias = In<T>(r, 2);
    }
    return MakeKernel(product);
  });
}

#endif

KernelPtr MakeMatmul(const KernelRequest& r) {
  const TensorView& out = r.call.out[0];
  auto plan = PlanMatmul(r.instruction.op, *r.call.attrs, r.call.in[0].shape, r.call.in[1].shape,
                         out.shape);
  DType in = r.call.in[0].dtype;
  bool types = in == out.dtype || (out.dtype == DType::kF32 && in != DType::kF64);
  if (!plan || !IsFloat(in) || !types) return nullptr;
  if (out.num_elements() == 0) return NoWork();
  if (plan->k == 0) {
    std::shared_ptr<CudaKernel> bias = r.call.in.size() > 2 ? MakeAddBias(r) : NoWork();
    return MakeKernel([to = out.data, bytes = Bytes(out), bias](const Launch& launch) {
      ClearBytes(launch, to, bytes);
      bias->Enqueue(launch);
    });
  }
  return MakeProduct(r, *plan);
}

constexpr Binding kBindings[] = {{"matmul", MakeMatmul},
                                 {"matmul_nt", MakeMatmul},
                                 {"matmul_tn", MakeMatmul},
                                 {"linear", MakeMatmul}};

}  // namespace

std::span<const Binding> MatmulBindings() { return kBindings; }

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
