// What a build without nvcc has in place of runtime/cuda.
#include "ir/diagnostic.h"
#include "runtime/backend.h"

namespace shardc {

std::unique_ptr<StepRunner> MakeCudaRunner(const RunnerRequest&) {
  throw Diagnostic("E4302", ExitCode::kIo, "--backend cuda",
                   "this build has no CUDA backend: nvcc was missing, or SHARDC_CUDA was OFF",
                   "configure again with nvcc in PATH, or use --backend cpu");
}

}  // namespace shardc
