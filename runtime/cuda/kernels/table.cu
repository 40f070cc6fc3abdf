// All kernels by op.
#include <map>

#include "ir/program.h"
#include "runtime/cuda/joined.h"
#include "runtime/cuda/kernels/batch.h"
#include "runtime/cuda/kernels/rotary.h"

namespace shardc::cuda {
namespace SHARDC_KERNEL_SPACE {

const std::map<std::string_view, Factory>& Kernels() {
  static const auto* table = [] {
    auto* t = new std::map<std::string_view, Factory>;
    for (auto family :
         {UnaryBindings(),     BinaryBindings(),     FusedElementwiseBindings(), CompareBindings(),
          CastBindings(),      ShapeBindings(),      MovementBindings(),         ReduceBindings(),
          SoftmaxBindings(),   NormBindings(),       NormGradBindings(),         IndexBindings(),
          ScatterBindings(),   LossBindings(),       OptimizerBindings(),        DropoutBindings(),
          MatmulBindings(),    MatmulRowsBindings(), AttentionBindings(),        RotaryBindings(),
          SumSquaresBindings()}) {
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

KernelPtr MakeJoinedKernelFor(std::span<const KernelRequest> run) {
  const std::string_view op = run[0].instruction.op;
  if (op == "adamw") return MakeAdamWs(run);
  if (op == "sgd") return MakeSgds(run);
  if (op == "cast") return MakeCasts(run);
  if (op == "sum_squares") return MakeSquares(run);
  return nullptr;
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
std::unique_ptr<CudaKernel> MakeJoinedKernel(std::span<const KernelRequest> run) {
  return device::MakeJoinedKernelFor(run);
}
#endif

}  // namespace shardc::cuda
