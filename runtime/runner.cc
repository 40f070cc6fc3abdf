#include "ir/diagnostic.h"
#include "runtime/backend.h"
#include "runtime/groups.h"
#include "runtime/process_runner.h"

namespace shardc {

std::unique_ptr<StepRunner> MakeRunner(const RunnerRequest& request) {
  const SessionOptions& o = request.options;
  const bool cuda = o.backend == "cuda";
  if (cuda && HasTransfers(request.programs)) {
    throw Diagnostic("E4328", ExitCode::kUsage, "--backend cuda",
                     "the plan has pipeline stages, which run on CPU ranks only",
                     "use --backend cpu, or compile for a mesh without the pipeline's axis");
  }
  if (cuda || o.backend == "cpu") {
    if (o.processes) return MakeProcessRunner(request);
    return cuda ? MakeCudaRunner(request) : MakeCpuRunner(request);
  }
  throw Diagnostic("E4304", ExitCode::kUsage, "backend", "there is no backend '" + o.backend + "'",
                   "use cpu or cuda");
}

}  // namespace shardc
