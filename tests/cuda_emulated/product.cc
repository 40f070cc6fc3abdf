// Products by loops, in place of cuBLASLt's, with what its epilogues do; of padded operands where
// there is a plan for it.
#include "runtime/cuda/kernels/product.h"

#include "runtime/cuda/kernels/math.h"

namespace shardc::cuda::emulated {
namespace {

// Operands of type T, all else of type U. Epilogues work on what was not rounded yet.
template <typename T, typename U>
struct PlainProduct {
  MatrixProduct p;
  std::shared_ptr<CudaKernel> add_bias;  // instead of p.bias

  template <typename E>
  static const E* At(const std::byte* data) {
    return reinterpret_cast<const E*>(data);
  }
  template <typename E>
  static E* At(std::byte* data) {
    return reinterpret_cast<E*>(data);
  }
  int64_t AtA(int64_t row, int64_t k) const {
    return p.plan.transpose_a ? k + row * p.plan.a_rows : row + k * p.plan.a_rows;
  }
  int64_t AtB(int64_t k, int64_t col) const {
    return p.plan.transpose_b ? col + k * p.plan.b_ld : k + col * p.plan.b_ld;
  }

  void operator()(const Launch& launch) const {
    if (p.from_workspace) {
      PlainProduct placed = *this;
      placed.p.a = OperandOf(p, launch, p.a);
      placed.p.b = OperandOf(p, launch, p.b);
      placed.p.from_workspace = false;
      return placed(launch);
    }
    const bool sums_d = p.epilogue == Epilogue::kGeluGradSums;
    std::vector<Wide<T>> sums(static_cast<size_t>(sums_d ? p.plan.rows : 0));
    for (const MatmulPlan::Part& part : p.plan.parts) {
      for (int64_t i = 0; i < p.plan.batch * p.plan.rows * p.plan.cols; ++i) {
        const int64_t row = i % p.plan.rows, col = i / p.plan.rows % p.plan.cols,
                      batch = i / (p.plan.rows * p.plan.cols);
        const T *a = At<T>(p.a) + part.a + batch * p.plan.a_stride,
                *b = At<T>(p.b) + part.b + batch * p.plan.b_stride;
        const int64_t at = part.d + batch * p.plan.d_stride + row + col * p.plan.d_ld;
        Wide<T> value = p.bias ? Widen(At<U>(p.bias)[row]) : Wide<T>(0);
        if (p.c) value = Widen(At<U>(p.c)[at]);
        for (int64_t k = 0; k < p.plan.k; ++k)
          value += Widen(a[AtA(row, k)]) * Widen(b[AtB(k, col)]);
        value = Finish(value, at);
        At<U>(p.d)[at] = Narrow<U>(static_cast<Wide<U>>(value));
        if (sums_d) sums[static_cast<size_t>(row)] += value;
      }
    }
    for (size_t row = 0; row < sums.size(); ++row) {
      At<U>(p.sums)[row] = Narrow<U>(static_cast<Wide<U>>(sums[row]));
    }
    SumOperand();
    if (add_bias) add_bias->Enqueue(launch);
  }

  Wide<T> Finish(Wide<T> value, int64_t at) const {
    switch (p.epilogue) {
      case Epilogue::kGeluAux:
        At<U>(p.aux)[at] = Narrow<U>(static_cast<Wide<U>>(value));
        [[fallthrough]];
      case Epilogue::kGelu:
        return GeluTanhFn()(value);
      case Epilogue::kGeluGrad:
      case Epilogue::kGeluGradSums:
        return GeluTanhGradFn()(value, static_cast<Wide<T>>(Widen(At<U>(p.aux)[at])));
      default:
        return value;
    }
  }

  void SumOperand() const {
    const bool right = p.epilogue == Epilogue::kSumsOfRight;
    if (!right && p.epilogue != Epilogue::kSumsOfLeft) return;
    for (int64_t i = 0; i < (right ? p.plan.rows : p.plan.cols); ++i) {
      Wide<T> sum = 0;
      for (int64_t k = 0; k < p.plan.k; ++k) {
        sum += right ? Widen(At<T>(p.a)[AtA(i, k)]) : Widen(At<T>(p.b)[AtB(k, i)]);
      }
      At<U>(p.sums)[i] = Narrow<U>(static_cast<Wide<U>>(sum));
    }
  }
};

KernelPtr MakePlain(const MatrixProduct& product, std::shared_ptr<CudaKernel> add_bias) {
  return DispatchFloats(product.dtype, product.out_dtype, [&](auto t, auto u) {
    PlainProduct<decltype(t), decltype(u)> plain{product, std::move(add_bias)};
    if (plain.p.bias && plain.add_bias) plain.add_bias.reset();
    return MakeKernel(plain);
  });
}

}  // namespace

KernelPtr MakeProduct(const MatrixProduct& product, KernelPtr add_bias) {
  if (auto padding = PlanPadding(product.plan, DTypeSize(product.dtype))) {
    auto bias = std::shared_ptr<CudaKernel>(std::move(add_bias));
    return MakeKernel(
        [product, padding, bias](const Launch& launch) {
          EnqueuePadding(launch, product, *padding, launch.workspace);
          MatrixProduct padded = product;
          padded.a = OperandOf(product, launch, product.a);
          padded.b = OperandOf(product, launch, product.b);
          padded.from_workspace = false;
          auto move = [&](const PaddingPlan::Operand& to, const std::byte** data, int64_t* ld) {
            if (to.ld == 0) return;
            *data = launch.workspace + to.offset;
            *ld = to.ld;
          };
          move(padding->a, &padded.a, &padded.plan.a_rows);
          move(padding->b, &padded.b, &padded.plan.b_ld);
          MakePlain(padded, bias)->Enqueue(launch);
        },
        padding->bytes);
  }
  return MakePlain(product, std::move(add_bias));
}

KernelPtr MakeEpilogueProduct(const MatrixProduct& product, const Launch&, std::string*) {
  return MakePlain(product, nullptr);
}

}  // namespace shardc::cuda::emulated
