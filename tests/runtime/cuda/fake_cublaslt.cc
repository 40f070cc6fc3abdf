#include "tests/runtime/cuda/fake_cublaslt.h"

#include <cublasLt.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "ir/diagnostic.h"
#include "runtime/cuda/kernels/math.h"

namespace shardc::testing {

FakeCublasLt& FakeCublasLt::Get() {
  static FakeCublasLt fake;
  return fake;
}

namespace {

using cuda::BF16;
using cuda::F16;
using cuda::GeluTanhFn;
using cuda::GeluTanhGradFn;
using cuda::Narrow;
using cuda::Wide;
using cuda::Widen;

struct Layout {
  cudaDataType type;
  int64_t rows, cols, ld, batch = 1, stride = 0;
};
struct Desc {
  cublasComputeType_t compute;
  cudaDataType scale;
  int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* vector = nullptr;  // bias, or sums
  const void* aux = nullptr;
  int64_t aux_ld = 0;
};
struct Preference {
  uint64_t workspace = 0;
  uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint32_t alignments[4] = {256, 256, 256, 256};  // of A, B, C, D
};
// What an algorithm's opaque bytes hold.
struct Algorithm {
  uint64_t problem = 0, workspace = 0;
  uint32_t alignments[4] = {};
  bool splits = false;  // the sum, and rounds its parts to the type of the result
  bool refused = false;
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

template <typename T, typename Opaque>
const T& Of(const Opaque* opaque) {
  return *reinterpret_cast<const T*>(opaque);
}

cublasStatus_t Refuse(const std::string& why) {
  FakeCublasLt::Get().refusal = why;
  return CUBLAS_STATUS_INVALID_VALUE;
}

template <typename T>
cublasStatus_t Take(T* to, const void* value, size_t bytes) {
  if (bytes != sizeof(T)) return Refuse("an attribute of another size");
  std::memcpy(to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

int64_t SizeOf(cudaDataType type) { return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2; }

bool Has(const Desc& d, uint32_t epilogue) { return (d.epilogue & epilogue) == epilogue; }
bool HasBias(const Desc& d) { return Has(d, CUBLASLT_EPILOGUE_BIAS); }
bool HasAux(const Desc& d) { return Has(d, 128); }
bool SumsResult(const Desc& d) { return Has(d, 16); }
bool SumsOperand(const Desc& d) {
  return d.epilogue == CUBLASLT_EPILOGUE_BGRADA || d.epilogue == CUBLASLT_EPILOGUE_BGRADB;
}

struct Problem {
  const Desc& d;
  const Layout &a, &b, &c, &out;

  int64_t k() const { return d.transpose_a == CUBLAS_OP_T ? a.rows : a.cols; }

  std::string WhyNot() const {
    for (const Layout* l : {&a, &b, &c, &out}) {
      if (l->ld < l->rows) return "a leading dim below the rows";
      if (l->batch != out.batch) return "batches that differ";
      if (l->rows <= 0 || l->cols <= 0) return "an empty matrix";
    }
    const bool ta = d.transpose_a == CUBLAS_OP_T, tb = d.transpose_b == CUBLAS_OP_T;
    if ((ta ? a.cols : a.rows) != out.rows || (tb ? b.rows : b.cols) != out.cols ||
        (tb ? b.cols : b.rows) != k()) {
      return "shapes that do not fit";
    }
    if (c.rows != out.rows || c.cols != out.cols || c.ld != out.ld || c.stride != out.stride ||
        c.type != out.type) {
      return "C unlike D";
    }
    if (out.batch > 1 && out.stride < out.ld * (out.cols - 1) + out.rows) return "D over itself";
    std::string why = WhyNotTypes();
    return why.empty() ? WhyNotEpilogue() : why;
  }

  std::string WhyNotTypes() const {
    const bool f64 = a.type == CUDA_R_64F;
    if (a.type != b.type) return "operands of two types";
    if (out.type != a.type && (out.type != CUDA_R_32F || f64)) return "a result of another type";
    if (d.compute != (f64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F)) return "another arithmetic";
    if (d.scale != (f64 ? CUDA_R_64F : CUDA_R_32F)) return "scalars of another type";
    return "";
  }

  std::string WhyNotEpilogue() const {
    if (d.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return "";
    if (a.type == CUDA_R_64F || out.batch > 1) return "no epilogue for f64 or batches";
    if ((HasBias(d) || SumsResult(d) || SumsOperand(d)) && !d.vector) return "no vector";
    if (HasAux(d)) {
      if (!d.aux || reinterpret_cast<uintptr_t>(d.aux) % 16 != 0) return "no aligned aux";
      if (d.aux_ld % 8 != 0 || d.aux_ld < out.rows) return "a leading dim that aux cannot have";
    }
    return "";
  }

  // All but alignments that an algorithm depends on.
  uint64_t Hash() const {
    uint64_t hash = 0xcbf29ce484222325u;
    auto mix = [&](int64_t v) { hash = (hash ^ static_cast<uint64_t>(v)) * 0x100000001b3u; };
    for (const Layout* l : {&a, &b, &out}) {
      for (int64_t v :
           {static_cast<int64_t>(l->type), l->rows, l->cols, l->ld, l->batch, l->stride}) {
        mix(v);
      }
    }
    for (int64_t v :
         {int64_t{d.transpose_a}, int64_t{d.transpose_b}, int64_t{d.epilogue}, d.aux_ld}) {
      mix(v);
    }
    return hash;
  }

  std::string WhyNotAligned(const Algorithm& algorithm, const void* const (&data)[4]) const {
    const Layout* layouts[] = {&a, &b, &c, &out};
    for (int i = 0; i < 4; ++i) {
      const auto at = reinterpret_cast<uint64_t>(data[i]);
      const auto step = static_cast<uint64_t>(layouts[i]->stride * SizeOf(layouts[i]->type));
      const uint64_t alignment = algorithm.alignments[i];
      if (at % alignment != 0 || (layouts[i]->batch > 1 && step % alignment != 0)) {
        return "an operand that is less aligned than was promised";
      }
    }
    return "";
  }
};

// Elements of type T, results of type U; sums in W.
template <typename T, typename U>
void Multiply(const Problem& p, const Algorithm& algorithm, const void* alpha, const void* beta,
              const void* const (&data)[4], void* result) {
  using W = Wide<T>;
  const Desc& d = p.d;
  W scale, keep;
  std::memcpy(&scale, alpha, sizeof(W));
  std::memcpy(&keep, beta, sizeof(W));
  const int64_t k = p.k(), rows = p.out.rows, cols = p.out.cols;
  auto part = [&](const T* a, const T* b, int64_t row, int64_t col, int64_t begin, int64_t end) {
    W sum = 0;
    for (int64_t i = begin; i < end; ++i) {
      sum += Widen(d.transpose_a == CUBLAS_OP_T ? a[i + row * p.a.ld] : a[row + i * p.a.ld]) *
             Widen(d.transpose_b == CUBLAS_OP_T ? b[col + i * p.b.ld] : b[i + col * p.b.ld]);
    }
    return sum;
  };
  auto narrow = [](W v) { return Narrow<U>(static_cast<Wide<U>>(v)); };
  std::vector<W> sums(static_cast<size_t>(SumsResult(d) ? rows : 0));
  for (int64_t batch = 0; batch < p.out.batch; ++batch) {
    const T *a = static_cast<const T*>(data[0]) + batch * p.a.stride,
            *b = static_cast<const T*>(data[1]) + batch * p.b.stride;
    const U* c = static_cast<const U*>(data[2]) + batch * p.c.stride;
    U* out = static_cast<U*>(result) + batch * p.out.stride;
    for (int64_t i = 0; i < rows * cols; ++i) {
      const int64_t row = i % rows, col = i / rows, at = row + col * p.out.ld;
      W value = 0;
      if (algorithm.splits && k > 1) {
        for (int64_t half : {int64_t{0}, int64_t{1}}) {
          const W each = part(a, b, row, col, half * (k / 2), half == 0 ? k / 2 : k);
          value = static_cast<W>(Widen(narrow(value + each)));
        }
      } else {
        value = part(a, b, row, col, 0, k);
      }
      value *= scale;
      if (keep != 0) value += keep * static_cast<W>(Widen(c[at]));
      if (HasBias(d)) value += static_cast<W>(Widen(static_cast<const U*>(d.vector)[row]));
      U* aux = const_cast<U*>(static_cast<const U*>(d.aux)) + row + col * d.aux_ld;
      if (Has(d, CUBLASLT_EPILOGUE_DGELU)) {
        value = GeluTanhGradFn()(value, static_cast<W>(Widen(*aux)));
      } else if (Has(d, CUBLASLT_EPILOGUE_GELU)) {
        if (HasAux(d)) *aux = narrow(value);
        value = GeluTanhFn()(value);
      }
      out[at] = narrow(value);
      if (SumsResult(d)) sums[row] += value;
    }
  }
  U* vector = const_cast<U*>(static_cast<const U*>(d.vector));
  for (size_t row = 0; row < sums.size(); ++row) vector[row] = narrow(sums[row]);
  if (!SumsOperand(d)) return;
  const bool of_a = d.epilogue == CUBLASLT_EPILOGUE_BGRADA;
  const T* x = static_cast<const T*>(data[of_a ? 0 : 1]);
  const int64_t ld = of_a ? p.a.ld : p.b.ld;
  // Whether its columns are what is summed over.
  const bool by_columns = of_a ? d.transpose_a == CUBLAS_OP_N : d.transpose_b == CUBLAS_OP_T;
  for (int64_t i = 0; i < (of_a ? rows : cols); ++i) {
    W sum = 0;
    for (int64_t j = 0; j < k; ++j) {
      sum += static_cast<W>(Widen(by_columns ? x[i + j * ld] : x[j + i * ld]));
    }
    vector[i] = narrow(sum);
  }
}

void Run(const Problem& p, const Algorithm& algorithm, const void* alpha, const void* beta,
         const void* const (&data)[4], void* out) {
  const bool wide = p.out.type == CUDA_R_32F;
  switch (p.a.type) {
    case CUDA_R_64F:
      return Multiply<double, double>(p, algorithm, alpha, beta, data, out);
    case CUDA_R_32F:
      return Multiply<float, float>(p, algorithm, alpha, beta, data, out);
    case CUDA_R_16BF:
      return wide ? Multiply<BF16, float>(p, algorithm, alpha, beta, data, out)
                  : Multiply<BF16, BF16>(p, algorithm, alpha, beta, data, out);
    default:
      return wide ? Multiply<F16, float>(p, algorithm, alpha, beta, data, out)
                  : Multiply<F16, F16>(p, algorithm, alpha, beta, data, out);
  }
}

// A product with all that the caller may change after its call.
struct Product {
  Desc d;
  Layout a, b, c, out;
  Algorithm algorithm;
  const void* data[4];
  void *result, *workspace;
  std::byte alpha[8], beta[8];

  void Do() const {
    // It may use all of the workspace; the ends will do here.
    const auto bytes = std::min<size_t>(algorithm.workspace, 4096);
    std::memset(workspace, 0xff, bytes);
    std::memset(static_cast<std::byte*>(workspace) + algorithm.workspace - bytes, 0xff, bytes);
    Run({d, a, b, c, out}, algorithm, alpha, beta, data, result);
  }
};

}  // namespace
}  // namespace shardc::testing

using shardc::testing::Algorithm;
using shardc::testing::Desc;
using shardc::testing::FakeCublasLt;
using shardc::testing::Layout;
using shardc::testing::Of;
using shardc::testing::Preference;
using shardc::testing::Problem;
using shardc::testing::Product;
using shardc::testing::Refuse;
using shardc::testing::SizeOf;
using shardc::testing::Take;

const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "no error" : FakeCublasLt::Get().refusal.c_str();
}
size_t cublasLtGetVersion() { return 130000; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(&FakeCublasLt::Get());
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(
      new Layout{type, static_cast<int64_t>(rows), static_cast<int64_t>(cols), ld});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<Layout*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t bytes) {
  auto* l = reinterpret_cast<Layout*>(layout);
  if (attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET) {
    return Take(&l->stride, value, bytes);
  }
  if (attribute != CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) return Refuse("an unknown attribute");
  int32_t batch = 0;
  const cublasStatus_t status = Take(&batch, value, bytes);
  l->batch = batch;
  return status;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  *desc = reinterpret_cast<cublasLtMatmulDesc_t>(new Desc{compute, scale});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete reinterpret_cast<Desc*>(desc);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  auto* d = reinterpret_cast<Desc*>(desc);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return Take(&d->transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return Take(&d->transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return Take(&d->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return Take(&d->vector, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return Take(&d->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return Take(&d->aux_ld, value, bytes);
    default:
      return Refuse("an unknown attribute");
  }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<Preference*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  auto* p = reinterpret_cast<Preference*>(preference);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return Take(&p->workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return Take(&p->schemes, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return Take(&p->alignments[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return Take(&p->alignments[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return Take(&p->alignments[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return Take(&p->alignments[3], value, bytes);
    default:
      return Refuse("an unknown attribute");
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  FakeCublasLt& fake = FakeCublasLt::Get();
  const Problem p{Of<Desc>(desc), Of<Layout>(a), Of<Layout>(b), Of<Layout>(c), Of<Layout>(d)};
  const auto& wishes = Of<Preference>(preference);
  *found = 0;
  ++fake.proposals;
  if (!handle) return Refuse("no handle");
  if (!fake.any) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (!fake.epilogues && p.d.epilogue != CUBLASLT_EPILOGUE_DEFAULT) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (const std::string why = p.WhyNot(); !why.empty()) return Refuse(why);
  auto propose = [&](uint64_t workspace, bool splits, bool refused) {
    if (*found == wanted) return;
    Algorithm algorithm{p.Hash(), workspace, {}, splits, refused};
    std::copy_n(wishes.alignments, 4, algorithm.alignments);
    cublasLtMatmulHeuristicResult_t& r = results[(*found)++];
    std::memcpy(&r.algo, &algorithm, sizeof(algorithm));
    r.workspaceSize = algorithm.workspace;
    r.state = CUBLAS_STATUS_SUCCESS;
  };
  constexpr uint32_t kRounds =
      CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
  propose(wishes.workspace, (wishes.schemes & kRounds) != 0, false);
  propose(0, false, true);
  propose(0, false, false);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
  ++FakeCublasLt::Get().checks;
  const Problem p{Of<Desc>(desc), Of<Layout>(a), Of<Layout>(b), Of<Layout>(c), Of<Layout>(d)};
  const auto& algorithm = Of<Algorithm>(algo);
  if (algorithm.problem != p.Hash()) return Refuse("an algorithm of another problem");
  result->workspaceSize = algorithm.workspace;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t adesc, const void* b,
                              cublasLtMatrixLayout_t bdesc, const void* beta, const void* c,
                              cublasLtMatrixLayout_t cdesc, void* d, cublasLtMatrixLayout_t ddesc,
                              const cublasLtMatmulAlgo_t* algo, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  const Problem p{Of<Desc>(desc), Of<Layout>(adesc), Of<Layout>(bdesc), Of<Layout>(cdesc),
                  Of<Layout>(ddesc)};
  const auto& algorithm = Of<Algorithm>(algo);
  const void* const data[] = {a, b, c, d};
  std::string why = handle ? p.WhyNot() : "no handle";
  if (why.empty() && algorithm.problem != p.Hash()) why = "an algorithm of another problem";
  if (why.empty()) why = p.WhyNotAligned(algorithm, data);
  if (why.empty() && p.d.epilogue == CUBLASLT_EPILOGUE_DEFAULT && p.d.vector) {
    why = "a vector that nothing is done with";  // as by cuBLASLt 12.4, although it proposes
                                                 // algorithms
  }
  if (why.empty() && algorithm.workspace > workspace_bytes) why = "too little workspace";
  if (why.empty() && reinterpret_cast<uintptr_t>(workspace) % 16 != 0) why = "bad workspace";
  if (!why.empty()) return Refuse(why);
  if (algorithm.refused) return CUBLAS_STATUS_NOT_SUPPORTED;
  ++FakeCublasLt::Get().products;
  Product product{p.d, p.a, p.b, p.c, p.out, algorithm, {a, b, c, d}, d, workspace, {}, {}};
  std::memcpy(product.alpha, alpha, static_cast<size_t>(SizeOf(p.d.scale)));
  std::memcpy(product.beta, beta, static_cast<size_t>(SizeOf(p.d.scale)));
  FakeCublasLt::Get().enqueue(stream, [product] { product.Do(); });
  return CUBLAS_STATUS_SUCCESS;
}
