#include "ir/run_reference.h"

#include "ir/kernel_call.h"

namespace shardc {
namespace {

TensorView View(const HostTensor& tensor) {
  // Operands are only read.
  return {const_cast<std::byte*>(tensor.raw()), tensor.dtype(), tensor.shape(), nullptr};
}

}  // namespace

std::vector<HostTensor> RunReference(const OpDef& def, const Attributes& attrs,
                                     std::span<const HostTensor* const> operands,
                                     std::span<const TensorType> results) {
  SHARDC_CHECK(def.reference, "op ", def.name, " has no reference");
  std::vector<HostTensor> made;
  for (const TensorType& type : results) made.emplace_back(type.dtype, type.shape);
  std::vector<TensorView> in, out;
  for (const HostTensor* t : operands) in.push_back(View(*t));
  for (const HostTensor& t : made) out.push_back(View(t));
  KernelCall call;
  call.attrs = &attrs;
  call.in = in;
  call.out = out;
  def.reference(call);
  return made;
}

}  // namespace shardc
