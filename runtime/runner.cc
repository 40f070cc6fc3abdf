#include "ir/diagnostic.h"
#include "runtime/backend.h"
#include "runtime/process_runner.h"

namespace shardc {

std::unique_ptr<StepRunner> MakeRunner(const RunnerRequest& request) {
  const SessionOptions& o = request.options;
  if (o.backend == "cpu" && o.processes) return MakeProcessRunner(request);
  if (o.backend == "cpu") return MakeCpuRunner(request);
  if (o.backend == "cuda") return MakeCudaRunner(request);
  throw Diagnostic("E4304", ExitCode::kUsage, "backend", "there is no backend '" + o.backend + "'",
                   "use cpu or cuda");
}

}  // namespace shardc
