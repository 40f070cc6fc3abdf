#include "ir/convert.h"

namespace shardc {

HostTensor Converted(const HostTensor& t, DType to) {
  HostTensor out(to, t.shape());
  for (int64_t i = 0; i < t.num_elements(); ++i) out.SetDouble(i, t.AsDouble(i));
  return out;
}

}  // namespace shardc
