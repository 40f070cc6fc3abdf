// The fake libnccl.so.2, between FakeDevices, under a test.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "tests/runtime/cuda/fake_gpus.h"

namespace shardc::testing {

// Of the fake, which is loaded here so that it is the one that is found.
template <typename Function>
Function* InFake(const char* name) {
  static void* fake = dlopen(SHARDC_FAKE_NCCL, RTLD_NOW | RTLD_GLOBAL);
  return reinterpret_cast<Function*>(dlsym(fake, name));
}
inline int LiveCommunicators() { return InFake<FakeNcclCount>("shardc_fake_nccl_live")(); }
inline int LiveAllocations() { return InFake<FakeNcclCount>("shardc_fake_nccl_allocations")(); }
inline void RefuseMemory(int after) {
  InFake<FakeNcclRefuseMemory>("shardc_fake_nccl_refuse_memory")(after);
}

class NcclFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    InFake<FakeNcclUse>("shardc_fake_nccl_use")(&FakeDevicesForNccl());
    ASSERT_EQ(LiveCommunicators(), 0);
  }
  void TearDown() override {
    EXPECT_EQ(LiveCommunicators(), 0) << "not destroyed";
    EXPECT_EQ(LiveAllocations(), 0) << "not freed";
  }
};

}  // namespace shardc::testing
