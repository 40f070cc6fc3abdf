#include "runtime/cuda/epilogue_kernel.h"

#include <algorithm>
#include <cmath>

#include "ir/diagnostic.h"

namespace shardc::cuda {
namespace {

class SeparateKernels : public CudaKernel {
 public:
  explicit SeparateKernels(std::vector<CudaKernel*> kernels) : kernels_(std::move(kernels)) {}
  void Enqueue(const Launch& launch) override {
    for (CudaKernel* k : kernels_) k->Enqueue(launch);
  }
  int64_t workspace_bytes() const override {
    int64_t bytes = 0;
    for (const CudaKernel* k : kernels_) bytes = std::max(bytes, k->workspace_bytes());
    return bytes;
  }

 private:
  std::vector<CudaKernel*> kernels_;
};

// At most 64, as all places in an arena have it: a trial takes seconds, and more hardly matters.
uint64_t AlignmentOf(const std::byte* data) {
  const uint64_t bits = reinterpret_cast<uint64_t>(data) | 64u;
  return bits & (~bits + 1);
}

std::string KeyOf(const FusedProduct& p) {
  std::string key = StrCat("epilogue ", EpilogueName(p.epilogue), " ", p.product->op);
  if (p.product->attrs.Bool("nt")) key += " nt";
  for (const TensorView* v :
       {&p.left, &p.right, &p.product_result, &p.bias, &p.aux, &p.result, &p.sums}) {
    if (!v->data) continue;
    const char* what = v == &p.bias   ? " bias "
                       : v == &p.aux  ? " aux "
                       : v == &p.sums ? " sums "
                                      : " ";
    key += StrCat(what, DTypeName(v->dtype), ShapeToString(v->shape));
    // The product may be left in registers; how it would be aligned is no matter.
    if (v != &p.product_result) key += StrCat(":", AlignmentOf(v->data));
  }
  return key;
}

// What one rounding on the way to a result is. Sums of k products are in f32, in different orders:
// where that is by rounding to nearest they are about sqrt(k) 2^-24 apart, and k 2^-28 on tensor
// cores, which cut off after every 16 products; k may be some ten thousands.
double UnitOf(DType result, DType operands) {
  if (result == DType::kBF16) return 0x1p-8;
  if (result == DType::kF16) return 0x1p-11;
  return operands == DType::kF32 ? 0x1p-16 : 0x1p-12;
}

// Values whose products have about the variance 1, when those that they are multiplied with are
// spread over -1 ... 1: each of k products has a ninth of that spread's square.
double SpreadOfFactor(int64_t k) {
  return 3 / std::sqrt(static_cast<double>(std::max<int64_t>(k, 1)));
}

}  // namespace

FusedProduct FusedProductOf(const Program& program, const ProductGroup& group,
                            const std::function<TensorView(int)>& view) {
  const Instruction& product = program.instructions[group.product];
  auto optional = [&](int buffer) { return buffer < 0 ? TensorView() : view(buffer); };
  FusedProduct p;
  p.epilogue = group.epilogue;
  p.product = &product;
  p.left = view(group.left);
  p.right = view(group.right);
  p.product_result = view(product.results[0]);
  p.bias = optional(group.bias);
  p.aux = optional(group.aux);
  p.result = view(group.result);
  p.sums = optional(group.sums);
  return p;
}

Rivalry RivalryOf(const FusedProduct& p, EpilogueLibrary& library) {
  Rivalry rivalry;
  rivalry.key = StrCat(KeyOf(p), " ", library.Version());
  auto operand = [](const TensorView& v, double spread) {
    return Rivalry::Operand{v.data, v.num_elements(), v.dtype, 0, spread};
  };
  auto result = [&p](const TensorView& v) {
    return Rivalry::Result{v.data, v.num_elements(), v.dtype, UnitOf(v.dtype, p.left.dtype)};
  };
  const int64_t rows = p.product_result.num_elements() / p.product_result.shape.back();
  const int64_t k = p.product->op == "matmul_tn"
                        ? p.left.num_elements() / p.left.shape.back()
                        : p.left.num_elements() / std::max<int64_t>(rows, 1);
  const bool writes_aux = p.epilogue == Epilogue::kGeluAux;
  rivalry.operands = {operand(p.left, 1), operand(p.right, SpreadOfFactor(k))};
  if (p.bias.data) rivalry.operands.push_back(operand(p.bias, 1));
  if (p.aux.data && !writes_aux) rivalry.operands.push_back(operand(p.aux, 3));
  rivalry.results = {result(p.result)};
  if (writes_aux) rivalry.results.push_back(result(p.aux));
  if (p.sums.data) rivalry.results.push_back(result(p.sums));
  rivalry.make = [p, &library](const Launch& launch, std::string* why_not) {
    return library.Make(p, launch, why_not);
  };
  return rivalry;
}

std::unique_ptr<RivalKernel> MakeGroupKernel(std::vector<CudaKernel*> separate,
                                             const FusedProduct& product,
                                             EpilogueLibrary& library) {
  return MakeRivalKernel(std::make_unique<SeparateKernels>(std::move(separate)),
                         RivalryOf(product, library), library.Gpu());
}

}  // namespace shardc::cuda
