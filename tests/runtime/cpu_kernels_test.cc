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
  auto compare = [&](const OpSample& narrow, const OpSample& wide, double most) {
    SCOPED_TRACE(narrow.Name());
    std::vector<HostTensor> got, want;
    try {
      got = OneOp(narrow).Run(/*reference=*/false);
      want = OneOp(wide).Run(/*reference=*/true);
    } catch (const Diagnostic&) {
      return;  // a type that the op does not take
    }
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_LE(WorstDifference(got[i], want[i], 1e-3), most) << "result " << i;
    }
    compared += got.empty() ? 0 : 1;
  };
  for (const OpSample& sample : OpSamples()) {
    const OpDef& def = GetOpDef(sample.op);
    if (!def.reference || def.communicates) continue;
    OpSample f32 = With(sample, DType::kF32);
    const OpSample wide = With(f32, DType::kF64);  // the same numbers: rounded to f32 first
    compare(f32, wide, 1e-5);
    if (def.typed_result < 0) continue;
    f32.attrs.Set("out", "bf16");  // the result whose type the op chooses
    compare(f32, wide, 1.0 / 128);
  }
  EXPECT_GE(compared, 490);
}

}  // namespace
}  // namespace shardc::testing
