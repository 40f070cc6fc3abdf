// matmul, matmul_nt, matmul_tn and linear by cuBLASLt: f32 without TF32, bf16 and f16 summed in
// f32, f64. Operand 2 is linear's bias; that of the others the product is added to.
#if defined(__CUDACC__)
#include <cublasLt.h>

#include <optional>
#include <string>

#include "runtime/cuda/kernel_choices.h"
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
bool HasBias(const KernelRequest& r) { return r.instruction.op == "linear"; }
bool HasAddend(const KernelRequest& r) { return !HasBias(r) && r.call.in.size() > 2; }

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
constexpr int kProposals = 8, kTimings = 3;

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

// Time on a stream.
class Stopwatch {
 public:
  Stopwatch() {
    CheckCuda(cudaEventCreate(&begin_), "new event");
    CheckCuda(cudaEventCreate(&end_), "new event");
  }
  Stopwatch(const Stopwatch&) = delete;
  ~Stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  // Milliseconds of the fastest of some calls, after one that is not counted.
  template <typename F>
  float Fastest(cudaStream_t s, const F& f) {
    f();
    float fastest = 0;
    for (int i = 0; i < kTimings; ++i) {
      float took = 0;
      CheckCuda(cudaEventRecord(begin_, s), "record of an event");
      f();
      CheckCuda(cudaEventRecord(end_, s), "record of an event");
      CheckCuda(cudaEventSynchronize(end_), "a product that is timed");
      CheckCuda(cudaEventElapsedTime(&took, begin_, end_), "time between events");
      if (i == 0 || took < fastest) fastest = took;
    }
    return fastest;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

class MatmulKernel : public CudaKernel {
 public:
  MatmulKernel(const KernelRequest& r, MatmulPlan plan)
      : plan_(std::move(plan)),
        dtype_(r.call.in[0].dtype),
        out_dtype_(r.call.out[0].dtype),
        a_(r.call.in[1].data),
        b_(r.call.in[0].data),
        c_(HasAddend(r) ? r.call.in[2].data : nullptr),
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
    if (HasBias(r)) {
      bias_ = MakeAddBias(r);
      bias_data_ = r.call.in[2].data;
      // The epilogue's bias is of the result's type.
      can_fuse_ = !f64 && r.call.in[2].dtype == out_dtype_;
    }
  }
  ~MatmulKernel() override { cublasLtMatmulDescDestroy(desc_); }

  int64_t workspace_bytes() const override { return kWorkspace; }

  void Tune(const Launch& launch, KernelChoices& choices) override {
    const std::string key = Key(launch);
    if (auto known = choices.Find(key)) {
      if (auto way = Decode(launch, *known)) return Take(*way);
    }
    if (!choices.may_measure) return;  // Enqueue takes the first proposal
    std::optional<Way> best;
    float fastest = 0;
    Stopwatch watch;
    for (bool fuse : {true, false}) {
      if (fuse && !can_fuse_) continue;
      for (const Way& way : Proposals(launch, fuse, kProposals)) {
        Take(way);
        float took = 0;
        try {
          took = watch.Fastest(launch.stream, [&] { Enqueue(launch); });
        } catch (const Diagnostic&) {
          continue;  // proposed, but refused
        }
        if (best && took >= fastest) continue;
        best = way;
        fastest = took;
      }
    }
    if (!best) NoProposal();
    Take(*best);
    choices.Set(key, Encode(*best));
  }

  void Enqueue(const Launch& launch) override {
    if (!chosen_) {
      std::vector<Way> first = Proposals(launch, can_fuse_, 1);
      if (first.empty() && can_fuse_) first = Proposals(launch, false, 1);
      if (first.empty()) NoProposal();
      Take(first[0]);
    }
    const double one = 1, zero = 0;
    const float one_f = 1, zero_f = 0;
    bool f64 = dtype_ == DType::kF64;
    const void *alpha = f64 ? static_cast<const void*>(&one) : &one_f,
               *none = f64 ? static_cast<const void*>(&zero) : &zero_f, *beta = c_ ? alpha : none;
    const int64_t size = DTypeSize(dtype_), out_size = DTypeSize(out_dtype_);
    for (const MatmulPlan::Part& part : plan_.parts) {
      std::byte* d = d_ + part.d * out_size;
      const std::byte* c = c_ ? c_ + part.d * out_size : d;
      Check(
          cublasLtMatmul(launch.blas, desc_, alpha, a_ + part.a * size, la_.handle,
                         b_ + part.b * size, lb_.handle, beta, c, ld_.handle, d, ld_.handle,
                         &chosen_->algorithm, launch.workspace, WorkspaceOf(launch), launch.stream),
          "a matrix product");
    }
    if (bias_ && !chosen_->fused) bias_->Enqueue(launch);
  }

 private:
  // A way to the result: what cuBLASLt runs, and whether that adds the bias.
  struct Way {
    cublasLtMatmulAlgo_t algorithm{};
    bool fused = false;
  };

  template <typename T>
  void Set(cublasLtMatmulDescAttributes_t attribute, T value) {
    Check(cublasLtMatmulDescSetAttribute(desc_, attribute, &value, sizeof(value)),
          "a product for cuBLASLt");
  }
  void Fuse(bool fuse) {
    Set(CUBLASLT_MATMUL_DESC_EPILOGUE, fuse ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT);
    if (fuse) Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias_data_);
  }
  void Take(const Way& way) {
    Fuse(way.fused);
    chosen_ = way;
  }
  [[noreturn]] static void NoProposal() {
    ThrowCuda("cuBLASLt's choice of an algorithm", "there is none for this product");
  }
  static size_t WorkspaceOf(const Launch& launch) {
    return static_cast<size_t>(std::min(launch.workspace_bytes, kWorkspace));
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
  struct Alignments {
    uint32_t a, b, c, d;
  };
  Alignments AlignmentsOf() const {
    return {Alignment(a_, &MatmulPlan::Part::a, plan_.a_stride, dtype_),
            Alignment(b_, &MatmulPlan::Part::b, plan_.b_stride, dtype_),
            Alignment(c_ ? c_ : d_, &MatmulPlan::Part::d, plan_.d_stride, out_dtype_),
            Alignment(d_, &MatmulPlan::Part::d, plan_.d_stride, out_dtype_)};
  }

  // cuBLASLt's, the most promising first; at most kProposals.
  std::vector<Way> Proposals(const Launch& launch, bool fuse, int most) {
    Fuse(fuse);
    cublasLtMatmulPreference_t preference = nullptr;
    Check(cublasLtMatmulPreferenceCreate(&preference), "cuBLASLt");
    auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      Check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
            "cuBLASLt");
    };
    const Alignments alignments = AlignmentsOf();
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(WorkspaceOf(launch)));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignments.a);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignments.b);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignments.c);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignments.d);
    cublasLtMatmulHeuristicResult_t results[kProposals] = {};
    int found = 0;
    cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(launch.blas, desc_, la_.handle, lb_.handle, ld_.handle,
                                       ld_.handle, preference, most, results, &found);
    cublasLtMatmulPreferenceDestroy(preference);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) Check(status, "cuBLASLt's choice of an algorithm");
    std::vector<Way> ways;
    for (int i = 0; i < found; ++i) {
      if (results[i].state == CUBLAS_STATUS_SUCCESS) ways.push_back({results[i].algo, fuse});
    }
    return ways;
  }

  // All that the speed of a way depends on.
  std::string Key(const Launch& launch) const {
    cudaDeviceProp gpu;
    CheckCuda(cudaGetDeviceProperties(&gpu, launch.device), "properties of a GPU");
    const Alignments align = AlignmentsOf();
    return StrCat("matmul ", gpu.name, " ", launch.sm_count, " cublaslt ", cublasLtGetVersion(),
                  " ", plan_.rows, "x", plan_.cols, "x", plan_.k, plan_.transpose_a ? " t" : " n",
                  plan_.transpose_b ? "t " : "n ", plan_.batch, ":", plan_.a_stride, ":",
                  plan_.b_stride, ":", plan_.d_stride, " ", plan_.parts.size(), " ",
                  DTypeName(dtype_), " ", DTypeName(out_dtype_), " ", align.a, ":", align.b, ":",
                  align.d, " ", WorkspaceOf(launch),
                  c_          ? StrCat(" plus ", align.c)
                  : !bias_    ? ""
                  : can_fuse_ ? " bias"
                              : " add");
  }

  static std::string Encode(const Way& way) {
    std::string bytes(1 + sizeof(way.algorithm), way.fused ? '\1' : '\0');
    std::memcpy(bytes.data() + 1, &way.algorithm, sizeof(way.algorithm));
    return bytes;
  }
  // Nothing for what this cuBLASLt would not run.
  std::optional<Way> Decode(const Launch& launch, const std::string& bytes) {
    Way way;
    if (bytes.size() != 1 + sizeof(way.algorithm)) return std::nullopt;
    way.fused = bytes[0] != '\0';
    if (way.fused && !can_fuse_) return std::nullopt;
    std::memcpy(&way.algorithm, bytes.data() + 1, sizeof(way.algorithm));
    Fuse(way.fused);
    cublasLtMatmulHeuristicResult_t result{};
    cublasStatus_t status =
        cublasLtMatmulAlgoCheck(launch.blas, desc_, la_.handle, lb_.handle, ld_.handle, ld_.handle,
                                &way.algorithm, &result);
    if (status != CUBLAS_STATUS_SUCCESS || result.workspaceSize > WorkspaceOf(launch))
      return std::nullopt;
    return way;
  }

  MatmulPlan plan_;
  DType dtype_, out_dtype_;
  const std::byte *a_, *b_, *c_;  // C: what the product is added to, or null
  std::byte* d_;
  Layout la_, lb_, ld_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  KernelPtr bias_;
  const void* bias_data_ = nullptr;
  bool can_fuse_ = false;
  std::optional<Way> chosen_;
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
  const U* c;            // what the product is added to, or null
  U* d;
  void operator()(const Launch&) const {
    for (const MatmulPlan::Part& part : p.parts) {
      for (int64_t i = 0; i < p.batch * p.rows * p.cols; ++i) {
        int64_t row = i % p.rows, col = i / p.rows % p.cols, batch = i / (p.rows * p.cols);
        const T *am = a + part.a + batch * p.a_stride, *bm = b + part.b + batch * p.b_stride;
        Wide<T> sum = 0;
        if (bias) sum = Widen(bias[row]);
        if (result_bias) sum = Widen(result_bias[row]);
        const int64_t at = part.d + batch * p.d_stride + row + col * p.rows;
        if (c) sum = Widen(c[at]);
        for (int64_t k = 0; k < p.k; ++k) {
          sum += Widen(am[p.transpose_a ? k + row * p.a_rows : row + k * p.a_rows]) *
                 Widen(bm[p.transpose_b ? col + k * p.b_rows : k + col * p.b_rows]);
        }
        d[at] = Narrow<U>(sum);
      }
    }
  }
};
KernelPtr MakeProduct(const KernelRequest& r, const MatmulPlan& plan) {
  return DispatchFloats(r.call.in[0].dtype, r.call.out[0].dtype, [&](auto t, auto u) {
    using T = decltype(t);
    using U = decltype(u);
    PlainProduct<T, U> product{plan,    In<T>(r, 1), In<T>(r, 0), nullptr,
                               nullptr, nullptr,     Out<U>(r, 0)};
    if (HasAddend(r)) {
      product.c = In<U>(r, 2);
    } else if (HasBias(r) && r.call.in[2].dtype == r.call.out[0].dtype) {
      product.result_bias = In<U>(r, 2);
    } else if (HasBias(r)) {
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
  return MakeProduct(r, *plan);
}

constexpr Binding kBindings[] = {{"matmul", MakeMatmul},
                                 {"matmul_nt", MakeMatmul},
                                 {"matmul_tn", MakeMatmul},
                                 {"linear", MakeMatmul}};

}  // namespace

std::span<const Binding> MatmulBindings() { return kBindings; }

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
