#include <gtest/gtest.h>

#include "tests/gpu/made_again_cases.h"
#include "tests/runtime/one_op.h"

namespace shardc::testing {
namespace {

TEST(CpuKernels, WhatIsMadeAgainHasTheSameBits) {
  EXPECT_EQ(WhereMadeAgainDiffers([](const KernelCase& c) {
              return OneOp({c.op, c.name, c.operands, c.attrs}).Run(false);
            }),
            "");
}

}  // namespace
}  // namespace shardc::testing
