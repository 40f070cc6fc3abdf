// Products by cuBLASLt: the algorithm of each is chosen by timing the first that it proposes.
#include <cublasLt.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/cuda/kernel_choices.h"
#include "runtime/cuda/kernels/product.h"
#include "runtime/cuda/native/check.h"
#include "runtime/cuda/native/cublas_epilogues.h"
#include "runtime/cuda/native/trial_gpu.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

constexpr int64_t kWorkspace = 32 << 20;  // what cuBLAS asks for on sm_90
constexpr int64_t kMostSums = 64 << 20;   // of a split product
constexpr int kProposals = 8;

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

// cuBLASLt's A is our right operand.
cublasLtEpilogue_t EpilogueOf(const MatrixProduct& p) {
  switch (p.epilogue) {
    case Epilogue::kGelu:
      return p.bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    case Epilogue::kGeluAux:
      return p.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case Epilogue::kGeluGrad:
      return CUBLASLT_EPILOGUE_DGELU;
    case Epilogue::kGeluGradSums:
      return CUBLASLT_EPILOGUE_DGELU_BGRAD;
    case Epilogue::kSumsOfRight:
      return CUBLASLT_EPILOGUE_BGRADA;
    case Epilogue::kSumsOfLeft:
      return CUBLASLT_EPILOGUE_BGRADB;
    case Epilogue::kNone:
      break;
  }
  return p.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

struct Layout {
  cublasLtMatrixLayout_t handle = nullptr;
  // ld 0: the rows.
  Layout(cudaDataType_t type, int64_t rows, int64_t cols, int64_t batch, int64_t stride,
         int64_t ld = 0) {
    Check(cublasLtMatrixLayoutCreate(&handle, type, static_cast<uint64_t>(rows),
                                     static_cast<uint64_t>(cols), ld > 0 ? ld : rows),
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

class ProductKernel : public CudaKernel {
 public:
  // `add_bias`: of an operand that the library adds nowhere, or as another way to do so.
  ProductKernel(const MatrixProduct& product, KernelPtr add_bias)
      : p_(product),
        plan_(p_.plan),
        add_bias_(std::move(add_bias)),
        la_(TypeOf(p_.dtype), plan_.a_rows, plan_.a_cols, plan_.batch, plan_.a_stride),
        lb_(TypeOf(p_.dtype), plan_.b_rows, plan_.b_cols, plan_.batch, plan_.b_stride, plan_.b_ld),
        ld_(TypeOf(p_.out_dtype), plan_.rows, plan_.cols, plan_.batch, plan_.d_stride, plan_.d_ld),
        padding_(p_.epilogue == Epilogue::kNone ? PlanPadding(plan_, DTypeSize(p_.dtype))
                                                : std::nullopt) {
    if (padding_) {
      const auto type = TypeOf(p_.dtype);
      padded_a_.emplace(type, plan_.a_rows, plan_.a_cols, 1, 0, padding_->a.ld);
      padded_b_.emplace(type, plan_.b_rows, plan_.b_cols, 1, 0,
                        padding_->b.ld > 0 ? padding_->b.ld : plan_.b_ld);
    }
    bool f64 = p_.dtype == DType::kF64;
    Check(cublasLtMatmulDescCreate(&desc_, f64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                   f64 ? CUDA_R_64F : CUDA_R_32F),
          "a product for cuBLASLt");
    Set(CUBLASLT_MATMUL_DESC_TRANSA, plan_.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    Set(CUBLASLT_MATMUL_DESC_TRANSB, plan_.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    for (bool padded : {false, true}) {
      if (padded && !padding_) continue;
      if (EpilogueOf(p_) != CUBLASLT_EPILOGUE_DEFAULT) forms_.push_back({true, padded});
      if (p_.epilogue == Epilogue::kNone && (add_bias_ || !p_.bias)) {
        forms_.push_back({false, padded});
      }
    }
  }
  ~ProductKernel() override { cublasLtMatmulDescDestroy(desc_); }

  // Padded operands lie behind what is cuBLASLt's.
  int64_t workspace_bytes() const override {
    const bool pads = padding_ && (!chosen_ || chosen_->form.padded);
    return kWorkspace + (pads ? padding_->bytes : 0);
  }

  void Tune(const Launch& launch, KernelChoices& choices) override {
    const std::string key = Key(launch);
    if (auto known = choices.Find(key)) {
      if (auto way = Decode(launch, *known)) return Take(*way);
    }
    if (!choices.may_measure) {
      TakeFirst(launch);
      return;
    }
    std::vector<Way> ways;
    for (Form form : forms_) {
      for (const Way& way : Proposals(launch, form, kProposals)) ways.push_back(way);
    }
    DrawOperands(launch);
    std::vector<std::function<void()>> trials;
    for (const Way& way : ways) {
      trials.push_back([&] {
        Take(way);
        Enqueue(launch);
      });
    }
    const std::vector<double> times = FastestTimes(ThisGpu(), launch.stream, trials);
    const auto best = std::min_element(times.begin(), times.end());
    if (best == times.end() || *best == HUGE_VAL) NoProposal();
    Take(ways[static_cast<size_t>(best - times.begin())]);
    choices.Set(key, Encode(*chosen_));
  }

  void Enqueue(const Launch& launch) override {
    if (!chosen_) TakeFirst(launch);
    const double one = 1, zero = 0;
    const float one_f = 1, zero_f = 0;
    bool f64 = p_.dtype == DType::kF64;
    const void *alpha = f64 ? static_cast<const void*>(&one) : &one_f,
               *none = f64 ? static_cast<const void*>(&zero) : &zero_f, *beta = p_.c ? alpha : none;
    const int64_t size = DTypeSize(p_.dtype), out_size = DTypeSize(p_.out_dtype);
    const bool padded = chosen_->form.padded;
    if (padded) EnqueuePadding(launch, p_, *padding_, launch.workspace + kWorkspace);
    const Operands from = OperandsOf(launch, padded);
    for (const MatmulPlan::Part& part : plan_.parts) {
      std::byte* d = p_.d + part.d * out_size;
      const std::byte* c = p_.c ? p_.c + part.d * out_size : d;
      Check(
          cublasLtMatmul(launch.blas, desc_, alpha, from.a + part.a * size, A(padded),
                         from.b + part.b * size, B(padded), beta, c, ld_.handle, d, ld_.handle,
                         &chosen_->algorithm, launch.workspace, WorkspaceOf(launch), launch.stream),
          "a matrix product");
    }
    if (add_bias_ && !chosen_->form.fused) add_bias_->Enqueue(launch);
  }

  // All that the speed depends on.
  std::string Key(const Launch& launch) const {
    const Alignments align = AlignmentsOf();
    return StrCat("matmul ", ThisGpu().Name(), " cublaslt ", cublasLtGetVersion(), " ", plan_.rows,
                  "x", plan_.cols, "x", plan_.k, plan_.transpose_a ? " t" : " n",
                  plan_.transpose_b ? "t " : "n ", plan_.batch, ":", plan_.a_stride, ":",
                  plan_.b_stride, ":", plan_.d_stride, ":", plan_.b_ld, ":", plan_.d_ld, " ",
                  plan_.parts.size(), " ", DTypeName(p_.dtype), " ", DTypeName(p_.out_dtype), " ",
                  align.a, ":", align.b, ":", align.d, " ", WorkspaceOf(launch), Ending());
  }
  // Where the results go from now on.
  void MoveResult(std::byte* d) {
    if (p_.c == p_.d) p_.c = d;
    p_.d = d;
  }

  // "" or why the library does not do it, given all the workspace that it may have.
  std::string WhyNot(Launch launch) {
    launch.workspace_bytes = kWorkspace;
    for (Form form : forms_) {
      if (!Proposals(launch, form, 1).empty()) return "";
    }
    return StrCat("cuBLASLt has no algorithm for it", refusal_.empty() ? "" : ": ", refusal_);
  }

 private:
  // Whether cuBLASLt does bias or epilogue, and whether it is given padded operands.
  struct Form {
    bool fused = false, padded = false;
    bool operator==(const Form&) const = default;
  };
  // A way to the result.
  struct Way {
    cublasLtMatmulAlgo_t algorithm{};
    Form form;
  };
  struct Operands {
    const std::byte *a, *b;
  };

  template <typename T>
  void Set(cublasLtMatmulDescAttributes_t attribute, T value) {
    Check(cublasLtMatmulDescSetAttribute(desc_, attribute, &value, sizeof(value)),
          "a product for cuBLASLt");
  }
  void Fuse(bool fuse) {
    Set(CUBLASLT_MATMUL_DESC_EPILOGUE, fuse ? EpilogueOf(p_) : CUBLASLT_EPILOGUE_DEFAULT);
    // Also where there is none: cuBLASLt refuses a product that has no use for one.
    const void *vector = !fuse ? nullptr : p_.sums ? p_.sums : p_.bias, *aux = p_.aux;
    Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector);
    if (fuse && aux) {
      Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
      Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, plan_.rows);
    }
  }
  void Take(const Way& way) {
    Fuse(way.form.fused);
    chosen_ = way;
  }
  // cuBLASLt's first proposal, of the operands where they are if there is one.
  void TakeFirst(const Launch& launch) {
    for (Form form : forms_) {
      std::vector<Way> first = Proposals(launch, form, 1);
      if (!first.empty()) return Take(first[0]);
    }
    NoProposal();
  }
  Operands OperandsOf(const Launch& launch, bool padded) const {
    const std::byte* work = launch.workspace + kWorkspace;
    return {padded && padding_->a.ld > 0 ? work + padding_->a.offset : OperandOf(p_, launch, p_.a),
            padded && padding_->b.ld > 0 ? work + padding_->b.offset : OperandOf(p_, launch, p_.b)};
  }
  // A GPU's clock is as high as its power allows, and numbers that are alike take less of that.
  void DrawOperands(const Launch& launch) const {
    if (p_.dtype == DType::kF64) return;  // of which no noise is drawn
    auto draw = [&](const std::byte* data, int64_t MatmulPlan::Part::*offset, int64_t stride,
                    int64_t matrix, uint64_t seed) {
      int64_t count = 0;
      for (const auto& part : plan_.parts) {
        count = std::max(count, part.*offset + (plan_.batch - 1) * stride + matrix);
      }
      auto* to = const_cast<std::byte*>(OperandOf(p_, launch, data));
      ThisGpu().Draw({to, count, p_.dtype, 0, 1, seed}, launch.stream);
    };
    draw(p_.a, &MatmulPlan::Part::a, plan_.a_stride, plan_.a_rows * plan_.a_cols, 1);
    draw(p_.b, &MatmulPlan::Part::b, plan_.b_stride, (plan_.b_cols - 1) * plan_.b_ld + plan_.b_rows,
         2);
  }
  cublasLtMatrixLayout_t A(bool padded) const { return padded ? padded_a_->handle : la_.handle; }
  cublasLtMatrixLayout_t B(bool padded) const { return padded ? padded_b_->handle : lb_.handle; }
  [[noreturn]] void NoProposal() const {
    ThrowCuda("cuBLASLt's choice of an algorithm",
              StrCat("there is none for this product", refusal_.empty() ? "" : ": ", refusal_));
  }
  static size_t WorkspaceOf(const Launch& launch) {
    return static_cast<size_t>(std::min(launch.workspace_bytes, kWorkspace));
  }

  // What all parts of an operand are aligned to, at most 64 bytes, as all places in an arena are:
  // which of them it has must not decide how a product is computed, nor be a trial of its own.
  uint32_t Alignment(const std::byte* data, int64_t MatmulPlan::Part::*offset, int64_t stride,
                     DType dtype) const {
    uint64_t bits =
        reinterpret_cast<uint64_t>(data) | 64u | static_cast<uint64_t>(stride * DTypeSize(dtype));
    for (const auto& part : plan_.parts)
      bits |= static_cast<uint64_t>(part.*offset * DTypeSize(dtype));
    return static_cast<uint32_t>(bits & (~bits + 1));
  }
  struct Alignments {
    uint32_t a, b, c, d;
  };
  Alignments AlignmentsOf() const {
    return {Alignment(p_.a, &MatmulPlan::Part::a, plan_.a_stride, p_.dtype),
            Alignment(p_.b, &MatmulPlan::Part::b, plan_.b_stride, p_.dtype),
            Alignment(p_.c ? p_.c : p_.d, &MatmulPlan::Part::d, plan_.d_stride, p_.out_dtype),
            Alignment(p_.d, &MatmulPlan::Part::d, plan_.d_stride, p_.out_dtype)};
  }

  // cuBLASLt's, the most promising first; at most kProposals.
  std::vector<Way> Proposals(const Launch& launch, Form form, int most) {
    Fuse(form.fused);
    cublasLtMatmulPreference_t preference = nullptr;
    Check(cublasLtMatmulPreferenceCreate(&preference), "cuBLASLt");
    auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      Check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
            "cuBLASLt");
    };
    Alignments alignments = AlignmentsOf();
    if (form.padded && padding_->a.ld > 0) alignments.a = 256;
    if (form.padded && padding_->b.ld > 0) alignments.b = 256;
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(WorkspaceOf(launch)));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignments.a);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignments.b);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignments.c);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignments.d);
    // Else parts of a sum may be rounded to the type of the result.
    if (DTypeSize(p_.out_dtype) < 4) {
      set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
          uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    }
    cublasLtMatmulHeuristicResult_t results[kProposals] = {};
    int found = 0;
    cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(launch.blas, desc_, A(form.padded), B(form.padded),
                                       ld_.handle, ld_.handle, preference, most, results, &found);
    cublasLtMatmulPreferenceDestroy(preference);
    // What it does not know may be an invalid value to it; another form may do.
    if (status != CUBLAS_STATUS_SUCCESS) refusal_ = cublasLtGetStatusString(status);
    std::vector<Way> ways;
    for (int i = 0; i < found; ++i) {
      if (results[i].state == CUBLAS_STATUS_SUCCESS) ways.push_back({results[i].algo, form});
    }
    return ways;
  }

  std::string Ending() const {
    if (p_.epilogue != Epilogue::kNone) {
      return StrCat(" ", EpilogueName(p_.epilogue), p_.bias ? " bias" : "", " ",
                    Alignment(p_.aux, &MatmulPlan::Part::d, 0, p_.out_dtype), ":",
                    Alignment(p_.sums ? p_.sums : p_.bias, &MatmulPlan::Part::d, 0, p_.out_dtype));
    }
    if (p_.c) return StrCat(" plus ", AlignmentsOf().c);
    if (!p_.bias) return add_bias_ ? " add" : "";
    return StrCat(" bias ", Alignment(p_.bias, &MatmulPlan::Part::d, 0, p_.out_dtype));
  }

  static std::string Encode(const Way& way) {
    std::string bytes(1 + sizeof(way.algorithm), '\0');
    bytes[0] = static_cast<char>(way.form.fused | way.form.padded << 1);
    std::memcpy(bytes.data() + 1, &way.algorithm, sizeof(way.algorithm));
    return bytes;
  }
  // Nothing for what this cuBLASLt would not run.
  std::optional<Way> Decode(const Launch& launch, const std::string& bytes) {
    Way way;
    if (bytes.size() != 1 + sizeof(way.algorithm)) return std::nullopt;
    way.form = {(bytes[0] & 1) != 0, (bytes[0] & 2) != 0};
    if (std::find(forms_.begin(), forms_.end(), way.form) == forms_.end()) return std::nullopt;
    std::memcpy(&way.algorithm, bytes.data() + 1, sizeof(way.algorithm));
    Fuse(way.form.fused);
    cublasLtMatmulHeuristicResult_t result{};
    cublasStatus_t status =
        cublasLtMatmulAlgoCheck(launch.blas, desc_, A(way.form.padded), B(way.form.padded),
                                ld_.handle, ld_.handle, &way.algorithm, &result);
    if (status != CUBLAS_STATUS_SUCCESS || result.workspaceSize > WorkspaceOf(launch))
      return std::nullopt;
    return way;
  }

  MatrixProduct p_;
  const MatmulPlan& plan_;
  KernelPtr add_bias_;
  Layout la_, lb_, ld_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  std::optional<PaddingPlan> padding_;
  std::optional<Layout> padded_a_, padded_b_;  // where there is a plan
  std::vector<Form> forms_;                    // those that give the result
  std::optional<Way> chosen_;
  std::string refusal_;  // of the last form that was refused
};

// A product beside the same in two, as planned; the faster one is taken.
class SplitProduct : public CudaKernel {
 public:
  SplitProduct(const MatrixProduct& product, const SplitPlan& split,
               std::unique_ptr<ProductKernel> whole)
      : p_(product), whole_(std::move(whole)) {
    MatrixProduct first = p_, second = p_;
    first.plan = split.first;
    second.plan = split.second;
    const int64_t size = DTypeSize(p_.dtype);
    second.a += split.offset.a * size;
    second.b += split.offset.b * size;
    if (split.sums) {
      narrows_ = DTypeSize(p_.out_dtype) < 4;  // parts of a sum are not rounded to halves
      if (narrows_) first.out_dtype = second.out_dtype = DType::kF32;
      second.c = second.d;
    } else {
      const int64_t at = split.offset.d * DTypeSize(p_.out_dtype);
      second.d += at;
      if (second.c) second.c += at;
      if (second.bias && p_.plan.rows != split.first.rows) second.bias += at;
    }
    parts_[0] = std::make_unique<ProductKernel>(first, nullptr);
    parts_[1] = std::make_unique<ProductKernel>(second, nullptr);
  }

  // Sums in f32 lie behind what is the products'.
  int64_t workspace_bytes() const override {
    const int64_t whole = whole_->workspace_bytes(), split = PartsBytes() + SumsBytes();
    return !tuned_ ? std::max(whole, split) : taken_ ? split : whole;
  }

  void Tune(const Launch& launch, KernelChoices& choices) override {
    whole_->Tune(launch, choices);
    const std::string key = "split " + whole_->Key(launch);
    const auto known = choices.Find(key);
    taken_ = known ? *known == "1" : choices.may_measure;
    try {
      if (taken_) {
        Place(launch);
        for (auto& part : parts_) part->Tune(launch, choices);
      }
      if (!known && taken_) taken_ = IsFaster(launch);
    } catch (const Diagnostic&) {
      taken_ = false;  // the library may have no algorithm for a part
    }
    if (choices.may_measure) choices.Set(key, taken_ ? "1" : "0");
    tuned_ = true;
  }

  void Enqueue(const Launch& launch) override {
    if (taken_) {
      EnqueueParts(launch);
    } else {
      whole_->Enqueue(launch);
    }
  }

 private:
  int64_t PartsBytes() const {
    return std::max(parts_[0]->workspace_bytes(), parts_[1]->workspace_bytes());
  }
  int64_t SumsBytes() const {
    return narrows_ ? CeilDiv(p_.plan.rows * p_.plan.cols * 4, 256) * 256 : 0;
  }
  void Place(const Launch& launch) {
    if (!narrows_) return;
    sums_ = launch.workspace + (launch.workspace_bytes - SumsBytes()) / 256 * 256;
    for (auto& part : parts_) part->MoveResult(sums_);
  }
  void EnqueueParts(const Launch& launch) {
    Place(launch);
    for (auto& part : parts_) part->Enqueue(launch);
    if (narrows_) {
      EnqueueNarrowing(launch, sums_, p_.d, p_.out_dtype, p_.plan.rows * p_.plan.cols);
    }
  }
  bool IsFaster(const Launch& launch) {
    const std::vector<double> times =
        FastestTimes(ThisGpu(), launch.stream,
                     {[&] { whole_->Enqueue(launch); }, [&] { EnqueueParts(launch); }});
    return times[1] < times[0];
  }

  const MatrixProduct p_;
  std::unique_ptr<ProductKernel> whole_, parts_[2];
  std::byte* sums_ = nullptr;
  bool narrows_ = false, tuned_ = false, taken_ = false;
};

// Whether what is contracted may be split: sums of halves are in f32 until the last.
bool CanAddUp(const MatrixProduct& p) {
  if (p.bias) return false;
  if (DTypeSize(p.out_dtype) == 4) return true;
  return !p.c && p.plan.d_ld == p.plan.rows && p.plan.rows * p.plan.cols * 4 <= kMostSums;
}

}  // namespace

KernelPtr MakeProduct(const MatrixProduct& product, KernelPtr add_bias) {
  const bool library_adds = product.bias || !add_bias;
  auto whole = std::make_unique<ProductKernel>(product, std::move(add_bias));
  const auto split = PlanSplit(product.plan, DTypeSize(product.dtype));
  if (!split || !library_adds || (split->sums && !CanAddUp(product))) return whole;
  return std::make_unique<SplitProduct>(product, *split, std::move(whole));
}

KernelPtr MakeEpilogueProduct(const MatrixProduct& product, const Launch& launch,
                              std::string* why_not) {
  try {
    auto kernel = std::make_unique<ProductKernel>(product, nullptr);
    *why_not = kernel->WhyNot(launch);
    if (why_not->empty()) return kernel;
  } catch (const Diagnostic& d) {
    *why_not = d.message();
  }
  return nullptr;
}

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE

namespace shardc::cuda {
namespace {

class CublasLt : public EpilogueLibrary {
 public:
  std::string Version() override { return StrCat("cublaslt ", cublasLtGetVersion()); }
  TrialGpu& Gpu() override { return ThisGpu(); }
  std::unique_ptr<CudaKernel> Make(const FusedProduct& product, const Launch& launch,
                                   std::string* why_not) override {
    return SHARDC_KERNEL_SPACE::MakeFusedProduct(product, launch, why_not);
  }
};

}  // namespace

EpilogueLibrary* CublasLtEpilogues() {
  static CublasLt library;
  return std::getenv("SHARDC_NO_EPILOGUES") ? nullptr : &library;
}

}  // namespace shardc::cuda
