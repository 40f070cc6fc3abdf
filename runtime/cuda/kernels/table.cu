// All kernels by op.
#include <map>

#include "runtime/cuda/kernels/bind.h"
#include "runtime/cuda/kernels/rotary.h"

namespace shardc::cuda {
namespace SHARDC_KERNEL_SPACE {

const std::map<std::string_view, Factory>& Kernels() {
  static const auto* table = [] {
    auto* t = new std::map<std::string_view, Factory>;
    for (auto family :
         {UnaryBindings(),   BinaryBindings(),     FusedElementwiseBindings(), CompareBindings(),
          CastBindings(),    ShapeBindings(),      MovementBindings(),         ReduceBindings(),
          SoftmaxBindings(), NormBindings(),       NormGradBindings(),         IndexBindings(),
          ScatterBindings(), LossBindings(),       OptimizerBindings(),        DropoutBindings(),
          MatmulBindings(),  MatmulRowsBindings(), AttentionBindings(),        RotaryBindings()}) {
      for (const Binding& b : family) t->emplace(b.op, b.make);
    }
    return t;
  }();
  return *table;
}

KernelPtr MakeKernelFor(const KernelRequest& request) {
  auto it = Kernels().find(request.instruction.op);
  return it == Kernels().end() ? nullptr : it->second(request);
}

std::vector<std::string_view> KernelOps() {
  std::vector<std::string_view> ops;
  for (const auto& [op, make] : Kernels()) ops.push_back(op);
  return ops;
}

}  // namespace SHARDC_KERNEL_SPACE

#if defined(__CUDACC__)
std::unique_ptr<CudaKernel> MakeCudaKernel(const KernelRequest& request) {
  return device::MakeKernelFor(request);
}
#endif

}  // namespace shardc::cuda
