#include "runtime/cpu/bind.h"

#include <algorithm>
#include <cstdlib>
#include <map>

#include "ir/diagnostic.h"
#include "ir/op_def.h"
#include "ir/program.h"
#include "runtime/cpu/kernels/isa.h"
#include "runtime/cpu/widen.h"

namespace shardc {
namespace cpu {

namespace {

bool Are(std::span<const TensorView> views, DType type) {
  return std::all_of(views.begin(), views.end(),
                     [&](const TensorView& v) { return v.dtype == type; });
}

}  // namespace

bool AllF32(const KernelRequest& r) {
  return Are(r.call.in, DType::kF32) && Are(r.call.out, DType::kF32);
}

bool AllBf16(const KernelRequest& r) {
  return Are(r.call.in, DType::kBF16) && Are(r.call.out, DType::kBF16);
}

bool AllF32But(const KernelRequest& r, size_t result, size_t operand) {
  auto fit = [](std::span<const TensorView> views, size_t either) {
    for (size_t i = 0; i < views.size(); ++i) {
      const DType type = views[i].dtype;
      if (type != DType::kF32 && (i != either || type != DType::kBF16)) return false;
    }
    return true;
  };
  return fit(r.call.in, operand) && fit(r.call.out, result);
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
    for (auto family :
         {MatmulBindings(), AttentionBindings(), NormBindings(), LossBindings(),
          ElementwiseBindings(), FusedElementwiseBindings(), ShapeBindings(), ReduceBindings(),
          IndexBindings(), OptimizerBindings(), DropoutBindings(), RotaryBindings()}) {
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
  if (it == cpu::Table().end()) return nullptr;
  auto kernel = it->second(request);
  return kernel ? std::move(kernel) : cpu::MakeWidened(request, it->second);
}

void CheckCpuKernels() {
  const char* wanted = std::getenv("SHARDC_ISA");
  if (wanted == nullptr) return;
  std::string known;
  for (const cpu::Isa isa : cpu::SupportedIsas()) {
    if (std::string_view(wanted) == cpu::IsaName(isa)) return;
    known += StrCat(known.empty() ? "" : ", ", cpu::IsaName(isa));
  }
  throw Diagnostic("E4305", ExitCode::kUsage, "the environment variable SHARDC_ISA",
                   StrCat("this machine has no level '", wanted, "'"),
                   StrCat("unset it, or use one of: ", known));
}

std::vector<std::string_view> CpuKernelOps() {
  std::vector<std::string_view> ops;
  for (const auto& [op, make] : cpu::Table()) ops.push_back(op);
  return ops;
}

}  // namespace shardc
