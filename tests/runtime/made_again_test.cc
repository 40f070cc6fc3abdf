#include <gtest/gtest.h>

#include "tests/gpu/made_again_cases.h"
#include "tests/runtime/one_op.h"

namespace shardc::testing {
namespace {

TEST(CpuKernels, WhatIsMadeAgainHasTheSameBits) {
  for (bool reference : {false, true}) {
    EXPECT_EQ(WhereMadeAgainDiffers([&](const KernelCase& c) {
                return OneOp({c.op, c.name, c.operands, c.attrs}).Run(reference);
              }),
              "")
        << reference;
  }
}

}  // namespace
}  // namespace shardc::testing
