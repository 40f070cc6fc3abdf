// Every sample of every op by its fast kernel, against the naive one in f64.
#include <gtest/gtest.h>

#include "ir/diagnostic.h"
#include "ir/op_def.h"
#include "tests/exec/harness.h"
#include "tests/runtime/one_op.h"

namespace shardc::testing {
namespace {

OpSample With(OpSample sample, DType dtype) {
  for (HostTensor& t : sample.operands) t = FloatsAs(t, dtype);
  return sample;
}

TEST(CpuKernels, AgreeWithNaiveOnesInF64) {
  int compared = 0;
  for (const OpSample& sample : OpSamples()) {
    const OpDef& def = GetOpDef(sample.op);
    if (!def.reference || def.communicates) continue;
    SCOPED_TRACE(sample.Name());
    std::vector<HostTensor> got, want;
    try {
      got = OneOp(With(sample, DType::kF32)).Run(/*reference=*/false);
      // The same numbers: rounded to f32 first.
      want = OneOp(With(With(sample, DType::kF32), DType::kF64)).Run(/*reference=*/true);
    } catch (const Diagnostic&) {
      continue;  // a type that the op does not take
    }
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_LE(WorstDifference(got[i], want[i], 1e-3), 1e-5) << "result " << i;
    }
    compared += got.empty() ? 0 : 1;
  }
  EXPECT_GE(compared, 390);
}

}  // namespace
}  // namespace shardc::testing
