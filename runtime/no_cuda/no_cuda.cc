// What a build without nvcc has in place of runtime/cuda.
#include "ir/diagnostic.h"
#include "runtime/backend.h"

namespace shardc {
namespace {

[[noreturn]] void Missing() {
  throw Diagnostic("E4302", ExitCode::kIo, "--backend cuda",
                   "this build has no CUDA backend: nvcc was missing, or SHARDC_CUDA was OFF",
                   "configure again with nvcc in PATH, or use --backend cpu");
}

}  // namespace

std::unique_ptr<StepRunner> MakeCudaRunner(const RunnerRequest&) { Missing(); }
int CountCudaGpus() { Missing(); }
std::unique_ptr<StepRunner> MakeCudaRank(const RunnerRequest&, ProcessSeat) { Missing(); }

}  // namespace shardc
