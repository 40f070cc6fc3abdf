#include "ir/diagnostic.h"
#include "ir/op_def.h"
#include "ir/program.h"
#include "runtime/movements.h"

namespace shardc {

std::unique_ptr<Kernel> MakeReferenceKernel(const KernelRequest& request) {
  if (auto kernel = MakeMovementKernel(request)) return kernel;
  const OpDef& def = GetOpDef(request.instruction.op);
  if (!def.reference) throw InternalError(StrCat("no reference kernel for ", def.name));
  return MakeKernel([&def, call = request.call] { def.reference(call); });
}

}  // namespace shardc
