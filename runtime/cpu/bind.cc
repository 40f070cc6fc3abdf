#include "runtime/cpu/bind.h"

#include <map>

#include "ir/op_def.h"

namespace shardc {
namespace cpu {

bool AllF32(const KernelRequest& r) {
  for (const TensorView& v : r.call.in) {
    if (v.dtype != DType::kF32) return false;
  }
  for (const TensorView& v : r.call.out) {
    if (v.dtype != DType::kF32) return false;
  }
  return true;
}

int64_t Product(const Shape& shape, size_t begin, size_t end) {
  int64_t n = 1;
  for (size_t i = begin; i < end; ++i) n *= shape[i];
  return n;
}

bool Full(const KernelRequest& r, const TensorView& view, int dim) {
  auto runs = r.call.Runs(view, dim);
  int64_t covered = 0;
  for (const Run& run : runs) covered += run.size;
  return covered == view.shape[dim];
}

namespace {

const std::map<std::string_view, Factory>& Table() {
  static const auto* table = [] {
    auto* t = new std::map<std::string_view, Factory>;
    for (auto family : {MatmulBindings(), AttentionBindings(), NormBindings(), LossBindings(),
                        ElementwiseBindings(), ShapeBindings(), ReduceBindings(), IndexBindings(),
                        OptimizerBindings()}) {
      for (const Binding& b : family) t->emplace(b.op, b.make);
    }
    return t;
  }();
  return *table;
}

}  // namespace
}  // namespace cpu

std::unique_ptr<Kernel> MakeCpuKernel(const KernelRequest& request) {
  auto it = cpu::Table().find(request.instruction.op);
  return it == cpu::Table().end() ? nullptr : it->second(request);
}

std::vector<std::string_view> CpuKernelOps() {
  std::vector<std::string_view> ops;
  for (const auto& [op, make] : cpu::Table()) ops.push_back(op);
  return ops;
}

}  // namespace shardc
