#include "ir/diagnostic.h"
#include "runtime/backend.h"
#include "runtime/kernel.h"
#include "runtime/process_runner.h"

namespace shardc {

std::unique_ptr<StepRunner> MakeRunner(const RunnerRequest& request) {
  const SessionOptions& o = request.options;
  const bool cuda = o.backend == "cuda";
  if (cuda || o.backend == "cpu") {
    if (!cuda) CheckCpuKernels();
    if (o.processes) return MakeProcessRunner(request);
    return cuda ? MakeCudaRunner(request) : MakeCpuRunner(request);
  }
  throw Diagnostic("E4304", ExitCode::kUsage, "backend", "there is no backend '" + o.backend + "'",
                   "use cpu or cuda");
}

}  // namespace shardc
